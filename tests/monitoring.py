"""A real Prometheus scrapes a daemon under load, with errors, workers that end, and reloads: every query of
config/grafana/dashboard.json and of config/prometheus/alerts.yml has data.

STDIO_BUS names the daemon's program. Prometheus is Debian's.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUS = os.environ["STDIO_BUS"]
PATIENCE = 90

# Answers with a result, with an error, never, or exits.
WORKER = r"""
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "end":
        os._exit(1)
    if asked["method"] != "wait":
        said = {"error": {"code": -1, "message": "no"}} if asked["method"] == "fail" else {"result": asked["method"]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


def config(admin, spares):
    pools = [
        {"id": "shared", "command": sys.executable, "args": ["-c", WORKER], "instances": 2, "request_timeout_sec": 1},
        {"id": "own", "command": BUS, "args": ["worker", "echo"], "instances": spares, "assignment": "dedicated"},
    ]
    # Workers have to keep ending throughout the test.
    limits = {"max_restarts": 1000}
    return {"pools": pools, "limits": limits, "admin": {"listen": admin}, "log": {"level": "error", "requests": True}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


def until(what, holds):
    """Waits until something holds, and returns it."""
    end, seen = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        try:
            seen = holds()
            if seen:
                return seen
        except (urllib.error.URLError, ConnectionError, FileNotFoundError) as error:
            seen = error
        time.sleep(0.2)
    raise TimeoutError(f"{what}: {seen}")


class Load(threading.Thread):
    """Sends all kinds of requests repeatedly until it is stopped."""

    def __init__(self, socket_path, reload):
        super().__init__()
        self.socket_path, self.reload, self.stopped, self.error = socket_path, reload, threading.Event(), None

    def run(self):
        try:
            while not self.stopped.is_set():
                self.round()
        except Exception as error:  # The thread that joins this one raises it.
            self.error = error

    def round(self):
        methods = ["ask", "fail", "ask", "wait", "ask", "end"]
        requests = [{"jsonrpc": "2.0", "id": at, "method": one, "pool": "shared"} for at, one in enumerate(methods)]
        requests.append({"jsonrpc": "2.0", "id": len(methods), "method": "ask", "pool": "nowhere"})
        requests.append({"jsonrpc": "2.0", "id": len(methods) + 1, "method": "ask", "pool": "own"})
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(self.socket_path)
            client.sendall("".join(json.dumps(one) + "\n" for one in requests).encode())
            answers = client.makefile()
            answered = {json.loads(answers.readline())["id"] for _ in requests}
            assert answered == set(range(len(requests))), answered
        self.reload()


class Scene:
    """A daemon under load, and a Prometheus that scrapes it."""

    def __init__(self, folder):
        self.folder, self.children, self.spares, self.load = folder, [], 1, None

    def begin(self):
        self.admin, self.port = f"127.0.0.1:{free_port()}", free_port()
        self.configure()
        daemon = [BUS, "--config", self.path("bus.json"), "--unix", self.path("bus.sock")]
        self.daemon = self.start("daemon", daemon)
        until("the daemon is ready", lambda: fetch(f"http://{self.admin}/readyz"))
        scrape = {"job_name": "stdio_bus", "static_configs": [{"targets": [self.admin]}]}
        rules = os.path.join(ROOT, "config", "prometheus", "alerts.yml")
        settings = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        with open(self.path("prometheus.yml"), "w") as file:
            yaml.safe_dump({"global": settings, "rule_files": [rules], "scrape_configs": [scrape]}, file)
        command = ["prometheus", f"--config.file={self.path('prometheus.yml')}", f"--storage.tsdb.path={self.path('data')}"]
        self.start("prometheus", [*command, f"--web.listen-address=127.0.0.1:{self.port}"])
        until("Prometheus is ready", lambda: fetch(f"http://127.0.0.1:{self.port}/-/ready"))
        self.load = Load(self.path("bus.sock"), self.reload)
        self.load.start()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, command):
        with open(self.path(name + ".log"), "w") as log:
            # It hears hang-ups, which may be ignored where the tests run (nohup).
            self.children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)))
        return self.children[-1]

    def configure(self):
        with open(self.path("new.json"), "w") as file:
            json.dump(config(self.admin, self.spares), file)
        os.rename(self.path("new.json"), self.path("bus.json"))

    def reload(self):
        self.spares = 3 - self.spares
        self.configure()
        self.daemon.send_signal(signal.SIGHUP)

    def end(self):
        if self.load:
            self.load.stopped.set()
            self.load.join()
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def ask(self, what, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            return json.loads(fetch(url))["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def has_data(self, query):
        """The values of a query at one moment; values that are not numbers are not meant to be shown."""
        if self.load.error:
            raise self.load.error
        values = [float(row["value"][1]) for row in self.ask("query", query=query)["result"]]
        return [value for value in values if value == value]


def dashboard():
    with open(os.path.join(ROOT, "config", "grafana", "dashboard.json")) as file:
        return json.load(file)


def as_grafana_asks(expression):
    """Replaces its variables as when all daemons are selected."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "15s")


def without_comparison(expression):
    """The data of an alert, whether or not it would fire: what it watches, and each thing that excuses it, which would excuse
    nothing if there were no such metric."""
    expression = re.sub(r"\babsent\((\w+)\)", r"\1", expression)
    expression = re.sub(r"\s+(==|>|<) [0-9.]+", "", expression)
    return re.split(r"\s+unless on \([a-z, ]+\)\s+", expression)


def each_query_of_the_dashboard_has_data(scene):
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    assert len(asked) > 30, asked
    for expression in map(as_grafana_asks, asked):
        until(expression, lambda expression=expression: scene.has_data(expression))


def the_dashboard_finds_its_daemons(scene):
    [variable] = [one for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
    found = until("the daemon", lambda: scene.ask(f"label/{label}/values", **{"match[]": metric}))
    assert found == [scene.admin], found


def each_alert_has_data(scene):
    with open(os.path.join(ROOT, "config", "prometheus", "alerts.yml")) as file:
        rules = [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]
    assert len(rules) > 10, rules
    for rule in rules:
        for expression in without_comparison(rule["expr"]):
            assert not re.search(r"[<>]|==|unless", expression), expression
            until(f"{rule['alert']}: {expression}", lambda expression=expression: scene.has_data(expression))


def prometheus_evaluates_each_rule(scene):
    def rules():
        found = [rule for group in scene.ask("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = until("the rules", rules)
    assert len(found) > 10 and all(rule["health"] == "ok" for rule in found), found


def main():
    if shutil.which("prometheus") is None:
        return cases.skip("there is no prometheus, which scrapes the daemon")
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(folder)
        try:
            scene.begin()
            tests = [
                each_query_of_the_dashboard_has_data,
                the_dashboard_finds_its_daemons,
                each_alert_has_data,
                prometheus_evaluates_each_rule,
            ]
            cases.run(tests, scene)
        finally:
            scene.end()


if __name__ == "__main__":
    main()
