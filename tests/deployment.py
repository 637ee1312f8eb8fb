"""The files of config/docker and config/kubernetes: the daemon and its workers run under the seccomp profile, which
forbids namespaces; without io_uring in it the daemon says what to do; the manifests are valid, and allow time to drain.
And the recipes of docs/pools.md and docs/operations.md.

STDIO_BUS is the daemon's program.
"""

import ctypes
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

import kubernetes_validate
import yaml

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUS = os.environ["STDIO_BUS"]
PATIENCE = 60
KUBERNETES = ["1.29", "1.33", "1.37"]

NODE = r"""
require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: JSON.parse(line).id, result: "node" }) + "\n");
});
"""
PYTHON = r"""
import json, sys
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": "python"}), flush=True)
"""


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def profile():
    with open(os.path.join(ROOT, "config", "docker", "seccomp.json")) as file:
        return json.load(file)


def confine(profile):
    """Applies a profile to this process, like a container runtime (seccomp_init(3), seccomp_rule_add(3))."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    add = library.seccomp_rule_add_array
    add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument)]
    comparisons = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}

    def action(name, error):
        return {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000 | (error or 1)}[name]

    default = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    context = library.seccomp_init(default)
    for rule in profile["syscalls"]:
        wanted = action(rule["action"], rule.get("errnoRet"))
        arguments = [
            Argument(one["index"], comparisons[one["op"]], one["value"], one["valueTwo"]) for one in rule.get("args", [])
        ]
        for name in rule["names"]:
            # Names unknown to this machine's library are ignored, as in container runtimes.
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1 and wanted != default:
                error = add(context, wanted, number, len(arguments), (Argument * len(arguments))(*arguments))
                assert error == 0, f"{name}: {error}"
    assert library.seccomp_load(context) == 0


def confined(profile, command, **options):
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    return subprocess.run(command, preexec_fn=lambda: confine(profile), **options)


def pool(name, command, *arguments):
    return {"id": name, "command": command, "args": list(arguments), "instances": 1}


def the_daemon_and_its_workers_live_under_the_profile():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bus.json")
        pools = [pool("python", sys.executable, "-c", PYTHON), pool("node", "node", "-e", NODE)]
        with open(path, "w") as file:
            json.dump({"pools": pools}, file)
        requests = [{"jsonrpc": "2.0", "id": one, "method": "x", "pool": one} for one in ["python", "node"]]
        lines = "".join(json.dumps(one) + "\n" for one in requests)
        done = confined(profile(), [BUS, "--config", path, "--stdio"], input=lines)
        assert done.returncode == 0, done.stderr
        answers = {json.loads(line)["id"]: json.loads(line).get("result") for line in done.stdout.splitlines()}
        assert answers == {"python": "python", "node": "node"}, (answers, done.stderr)


def without_io_uring_in_the_profile_epoll_serves_and_the_daemon_says_what_to_do():
    refusing = profile()
    refusing["syscalls"] = [rule for rule in refusing["syscalls"] if "io_uring_setup" not in rule["names"]]
    assert len(refusing["syscalls"]) == len(profile()["syscalls"]) - 1
    done = confined(refusing, [BUS, "--stdio", "--io", "ring"], stdin=subprocess.DEVNULL)
    assert done.returncode == 69 and "seccomp" in done.stderr, (done.returncode, done.stderr)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": [7]}) + "\n"
    done = confined(refusing, [BUS, "--stdio"], input=line)
    assert done.returncode == 0 and json.loads(done.stdout)["result"]["echo"] == [7], (done.stdout, done.stderr)
    assert "epoll is used instead" in done.stderr and "seccomp" in done.stderr, done.stderr
    done = confined(refusing, [BUS, "doctor"])
    assert done.returncode == 0 and "seccomp" in done.stdout and "epoll" in done.stdout, (done.stdout, done.stderr)
    done = confined(profile(), [BUS, "doctor"])
    assert done.returncode == 0 and "io_uring      works" in done.stdout, (done.returncode, done.stdout)


def no_process_makes_a_namespace_or_traces_under_the_profile():
    calls = {"unshare": [0x10000000], "ptrace": [0, 0, 0, 0], "mount": [0, 0, 0, 0, 0], "keyctl": [0, 0]}
    program = f"""
import ctypes, errno, json
libc, calls = ctypes.CDLL(None, use_errno=True), {calls!r}
seccomp = ctypes.CDLL("libseccomp.so.2")
number = lambda name: seccomp.seccomp_syscall_resolve_name(name.encode())
told = {{}}
for name, arguments in [*calls.items(), ("clone", [0x10000000, 0, 0, 0, 0]), ("socket", [40, 1, 0]), ("clone3", [0, 0])]:
    libc.syscall(number(name), *arguments)
    told[name] = errno.errorcode[ctypes.get_errno()]
print(json.dumps(told))
"""
    done = confined(profile(), [sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    expected = dict.fromkeys(calls, "EPERM") | {"clone": "ENOSYS", "socket": "ENOSYS", "clone3": "ENOSYS"}
    assert json.loads(done.stdout) == expected, done.stdout


def manifest(name):
    with open(os.path.join(ROOT, "config", "kubernetes", name)) as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


def the_manifests_are_valid_and_give_a_drain_its_time():
    common = {"ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler"}
    for name, workload, key in (("stdio_bus.yaml", "Deployment", "tcp"), ("sessions.yaml", "StatefulSet", "http")):
        documents = manifest(name)
        assert set(documents) == common | {workload}, name
        for one in documents.values():
            for version in KUBERNETES:
                kubernetes_validate.validate(one, version, strict=True)
        text = documents["ConfigMap"]["data"]["bus.json"]
        config = checked(text)
        annotations = documents[workload]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["stdio-bus/configuration"] == hashlib.sha256(text.encode()).hexdigest()[:16], name
        patched(documents[workload])
        fits(documents, workload, config, key)
        scales(documents, workload, config)


def patched(workload):
    """The workload that the patch for io_uring makes is valid, and has our profile."""
    with open(os.path.join(ROOT, "config", "kubernetes", "io_uring.yaml")) as file:
        patch = yaml.safe_load(file)

    def merged(old, new):
        return {**old, **{key: merged(old[key], one) if isinstance(one, dict) else one for key, one in new.items()}}

    # A strategic merge replaces a value of another type by keeping its other fields; the two of a profile fit together.
    workload = merged(workload, patch)
    kubernetes_validate.validate(workload, KUBERNETES[0], strict=True)
    assert workload["spec"]["template"]["spec"]["securityContext"]["seccompProfile"]["type"] == "Localhost"
    assert workload["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def checked(text):
    """Checks a configuration with the daemon."""
    config = json.loads(text)
    token = config["admin"]["token_file"]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("0" * 64)
        file.flush()
        done = subprocess.run(
            [BUS, "check", "--config", "-"], input=text.replace(token, file.name), capture_output=True, text=True,
            timeout=PATIENCE,
            env={**os.environ, "PATH": f"{os.path.dirname(os.path.abspath(BUS))}:{os.environ['PATH']}"},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return config


def grace(limits):
    return limits["lame_duck_sec"] + limits["quiesce_sec"] + limits["drain_timeout_sec"]


def fits(documents, workload, config, key):
    """The pods get what the daemon needs."""
    limits, token = config["limits"], config["admin"]["token_file"]
    pod = documents[workload]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= grace(limits) + 10
    container = pod["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["STDIO_BUS_ADMIN_TOKEN_FILE"] == token
    assert environment["STDIO_BUS_ADMIN"].split(":")[1] == config["admin"]["listen"].split(":")[1]
    assert os.path.dirname(token) in [mount["mountPath"] for mount in container["volumeMounts"]]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config["admin"]["listen"].endswith(f":{ports['admin']}")
    assert config["listeners"][0][key].endswith(f":{ports['clients']}")
    assert documents["Service"]["spec"]["ports"][0]["targetPort"] == "clients"
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert probe["httpGet"]["port"] == "admin"
    probe = container["readinessProbe"]
    assert limits["lame_duck_sec"] > probe["periodSeconds"] * (probe["failureThreshold"] + 1)
    labels = documents[workload]["spec"]["template"]["metadata"]["labels"]
    for one in ["Service", "PodDisruptionBudget", "NetworkPolicy", workload]:
        spec = documents[one]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector) == labels, one
    # The container's memory fits the daemon's limit, and workers beside it.
    most = limits.get("max_memory", 256 << 20)
    assert container["resources"]["limits"]["memory"] == "1Gi" and most * 5 // 4 < 1 << 29


def scales(documents, workload, config):
    """The autoscaler uses existing metrics, below the daemon's limits, and is not faster than a drain."""
    spec = documents["HorizontalPodAutoscaler"]["spec"]
    target = documents[workload]
    assert spec["scaleTargetRef"] == {"apiVersion": target["apiVersion"], "kind": workload, "name": target["metadata"]["name"]}
    asked = {one["pods"]["metric"]["name"]: int(one["pods"]["target"]["averageValue"]) for one in spec["metrics"]}
    with Running(config) as daemon:
        there = daemon.metrics()
    assert asked and set(asked) <= {line.partition("{")[0].partition(" ")[0] for line in there}, asked
    assert asked["stdio_bus_clients"] < 1024
    assert all(policy["periodSeconds"] >= grace(config["limits"]) for policy in spec["behavior"]["scaleDown"]["policies"])


class Running:
    """The daemon with the configuration of a manifest, on other ports, and with these limits."""

    def __init__(self, config, **limits):
        self.folder = tempfile.TemporaryDirectory()
        self.admin = os.path.join(self.folder.name, "admin")
        key = next(key for key in ("tcp", "http") if key in config["listeners"][0])
        listener = {**config["listeners"][0], key: "127.0.0.1:0"}
        pools = [{**one, "command": BUS} for one in config["pools"]]
        config = {**config, "pools": pools, "listeners": [listener], "admin": {"listen": f"unix:{self.admin}"}}
        config["limits"] = {**config["limits"], **limits}
        self.path = os.path.join(self.folder.name, "bus.json")
        with open(self.path, "w") as file:
            json.dump(config, file)

    def __enter__(self):
        self.process = subprocess.Popen([BUS, "--config", self.path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for line in self.process.stderr:
                if " listening on " in line:
                    self.address = line.split(" listening on ")[1].split()[0]
                    break
            self.until(lambda: self.asks("/readyz?listener=0")[0] == 200)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.05)

    def asks(self, path):
        """The admin listener's response: status and body."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(PATIENCE)
            try:
                one.connect(self.admin)
            except OSError:
                return 0, ""
            one.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: one.recv(65536), b"")).decode().partition("\r\n\r\n")
            return int(head.split()[1]), body

    def metrics(self):
        return [line for line in self.asks("/metrics")[1].splitlines() if not line.startswith("#")]


def post(address, method, params, session=None, id=1):
    """One request to an MCP listener, or the end of its session: status and fields of the response."""
    url = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
    fields = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if session:
        fields["Mcp-Session-Id"] = session
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) if method != "DELETE" else None
    connection.request("DELETE" if method == "DELETE" else "POST", url.path, body, fields)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.headers


def a_drain_that_scales_down_kills_no_session_that_ends_within_its_grace():
    """Does what the kubelet does: SIGTERM, and SIGKILL after terminationGracePeriodSeconds. The manifest's times are
    shortened here, in the same order."""
    documents = manifest("sessions.yaml")
    config = json.loads(documents["ConfigMap"]["data"]["bus.json"])
    with Running(config, lame_duck_sec=20, quiesce_sec=20, drain_timeout_sec=20) as daemon:
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        sessions = []
        for _ in range(20):
            status, fields = post(daemon.address, "initialize", begin)
            assert status == 200, status
            sessions.append(fields["Mcp-Session-Id"])
        assert all(one.startswith(sessions[0].split(".")[0] + ".") for one in sessions)
        daemon.process.terminate()
        # The pod is removed from the endpoints: no new clients connect.
        daemon.until(lambda: daemon.asks("/readyz?listener=0")[0] == 404)
        for id in range(2, 5):
            assert {post(daemon.address, "tools/list", {}, one, id)[0] for one in sessions} == {200}
        assert {post(daemon.address, "DELETE", None, one)[0] for one in sessions} == {204}
        # It exits by itself before it would be killed.
        assert daemon.process.wait(60 + 10) == 0


def the_recipes_of_the_book_answer():
    with open(os.path.join(ROOT, "docs", "pools.md")) as file:
        recipes = file.read().split("## Recipes")[1].split("```json")[1:]
    pools = [json.loads(recipe.split("```")[0]) for recipe in recipes]
    # The second one needs systemd, which is not on every machine that runs tests.
    assert [one["id"] for one in pools] == ["clean", "scoped"]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "worker.py"), "w") as file:
            file.write(PYTHON)
        with open(os.path.join(folder, "bus.json"), "w") as file:
            json.dump({"pools": pools[:1]}, file)
        lines = "".join(json.dumps({"jsonrpc": "2.0", "id": one["id"], "method": "x", "pool": one["id"]}) + "\n" for one in pools[:1])
        done = subprocess.run(
            [BUS, "--config", "bus.json", "--stdio"], input=lines, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
        )
        answers = {json.loads(line)["id"]: json.loads(line).get("result") for line in done.stdout.splitlines()}
        assert answers == {"clean": "python"}, (answers, done.stderr)


def haproxy_takes_the_lines_of_the_book_for_pods():
    with open(os.path.join(ROOT, "docs", "operations.md")) as file:
        lines = next(block for block in file.read().split("```\n") if block.startswith("resolvers cluster"))
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write("defaults\n    timeout connect 3s\n    timeout client 1h\n    timeout server 1h\n" + lines)
        file.write("frontend all\n    bind 127.0.0.1:1\n    default_backend daemons\n")
        file.flush()
        done = subprocess.run(["haproxy", "-c", "-f", file.name], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr


TESTS = [
    the_daemon_and_its_workers_live_under_the_profile,
    without_io_uring_in_the_profile_epoll_serves_and_the_daemon_says_what_to_do,
    no_process_makes_a_namespace_or_traces_under_the_profile,
    the_manifests_are_valid_and_give_a_drain_its_time,
    a_drain_that_scales_down_kills_no_session_that_ends_within_its_grace,
    the_recipes_of_the_book_answer,
    haproxy_takes_the_lines_of_the_book_for_pods,
]

cases.run(TESTS)
