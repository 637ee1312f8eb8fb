"""The page of the admin listener in a real browser: at rest, under load, while draining, in dark, on a telephone.

STDIO_BUS names the program. Screenshots go to the directory that is the first argument, or nowhere. Everything has an
end; the last line counts.
"""

import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["STDIO_BUS"]
PATIENCE = 60
#: What a client calls its session: shown as markup, it would change the title.
NAME = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        sys.exit("please install chromium")
    return found


class Daemon:
    """A daemon with a worker that answers only some requests, and keeps the rest pending."""

    WORKER = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m.get('method') != 'hold' and 'id' in m:\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': 1}), flush=True)\n"
    )

    def __init__(self, directory):
        self.config, self.log = os.path.join(directory, "bus.json"), os.path.join(directory, "log")
        pools = [{"id": "agents", "command": sys.executable, "args": ["-c", self.WORKER], "instances": 2}]
        with open(self.config, "w", encoding="utf-8") as file:
            json.dump({"pools": pools, "limits": {"quiesce_sec": 600}}, file)

    def __enter__(self):
        command = [PROGRAM, "--config", self.config, "--tcp", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stderr=log)
        try:
            self.admin = self.until("the admin listener is logged", lambda: self.told("the admin listener is"))
            self.clients = self.until("the other listener is logged", lambda: self.told("listening on"))
            self.until("it is ready", lambda: self.ask("/readyz")[0] == 200)
        except BaseException:
            self.__exit__()
            raise
        return self

    def told(self, what):
        with open(self.log, encoding="utf-8") as log:
            found = re.search(what + r" tcp://(\S+)\n", log.read())
        return found and found.group(1)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, target):
        host, port = self.admin.rsplit(":", 1)
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            connection.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), head.decode(), body.decode()

    def connect(self):
        host, port = self.clients.rsplit(":", 1)
        return socket.create_connection((host, int(port)), PATIENCE)

    @staticmethod
    def until(what, condition):
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain: {what}")
            time.sleep(0.01)
        return found


class Browser:
    def __init__(self, directory, shots):
        self.path, self.profile, self.shots = browser(), os.path.join(directory, "profile"), shots

    def run(self, url, *options):
        command = [self.path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--no-first-run", f"--user-data-dir={self.profile}", "--virtual-time-budget=6000", *options, url]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)

    def text(self, url):
        """The page after some seconds: its title, and its text without markup."""
        ran = self.run(url, "--dump-dom", "--enable-logging=stderr", "--log-level=0")
        refused = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        assert not refused, refused
        title = re.search(r"<title>(.*?)</title>", ran.stdout, re.S).group(1)
        body = re.sub(r"<(style|script)\b.*?</\1>", "", ran.stdout, flags=re.S)
        return html.unescape(title), html.unescape(re.sub(r"<[^>]*>", " ", body))

    def shoot(self, url, name, width, height, *options):
        if self.shots:
            path = os.path.join(self.shots, f"{name}.png")
            self.run(url, f"--screenshot={path}", f"--window-size={width},{height}", "--hide-scrollbars", *options)
            assert os.path.getsize(path) > 5000, f"{path} is empty"


def main():
    shots = sys.argv[1] if len(sys.argv) > 1 else None
    if shots:
        os.makedirs(shots, exist_ok=True)
    passed = 0
    with tempfile.TemporaryDirectory() as directory, Daemon(directory) as daemon:
        url, chromium = f"http://{daemon.admin}/", Browser(directory, shots)

        def page(name, wanted):
            nonlocal passed
            title, text = chromium.text(url)
            for part in wanted:
                assert part in text or part == title, f"{name}: no {part!r} in {title!r}: {text}"
            assert "owned" != title, "a client's text was run"
            chromium.shoot(url, name, 1200, 1000)
            passed += 1
            print(f"{name}: ok")

        status, head, _ = daemon.ask("/")
        policy = re.search(r"Content-Security-Policy: (.*)\r", head).group(1)
        assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy, policy
        passed += 1

        page("rest", ["ready – stdio_bus", "agents/0", "agents/1", "running", "lines per second"])

        clients = [daemon.connect() for _ in range(40)]
        for number, client in enumerate(clients):
            for at in range(20):
                message = {"jsonrpc": "2.0", "id": at, "method": "m", "sessionId": f"s{number}"}
                client.sendall(json.dumps(message).encode() + b"\n")
            message = {"jsonrpc": "2.0", "id": NAME, "method": "hold", "sessionId": NAME}
            client.sendall(json.dumps({**message, "sessionId": f"{NAME}{number}"}).encode() + b"\n")
        look = lambda: json.loads(daemon.ask("/status.json")[2])
        daemon.until("40 requests wait", lambda: look()["requests"]["used"] == 40)
        daemon.until("800 are answered", lambda: look()["pools"][0]["requests"]["answered"] == 800)
        # A client that leaves pending requests is reported, with its own id.
        clients.pop().close()
        daemon.until("the error is shown", lambda: look()["errors"])
        for at in range(12):
            # Refused for two reasons: more warnings than the page shows.
            for name in ("s" * 300, "s0"):
                message = {"jsonrpc": "2.0", "id": at, "method": "m", "sessionId": name}
                clients[1].sendall(json.dumps(message).encode() + b"\n")
        daemon.until("more are kept than are shown", lambda: look()["errors_kept"] > 15)
        page("load", ["ready – stdio_bus", "39", "800", "p50", "p99", "session_denied", "more: stdio_bus show errors"])
        chromium.shoot(url, "dark", 1200, 1000, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
        chromium.shoot(url, "telephone", 500, 1400)

        daemon.process.terminate()
        daemon.until("it is draining", lambda: look()["state"] == "draining")
        page("draining", ["draining – stdio_bus", "draining"])
    print(f"{passed} passed, 0 failed")


if __name__ == "__main__":
    main()
