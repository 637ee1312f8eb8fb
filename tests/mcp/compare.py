"""What a call through the door costs beside other bridges, with the same server behind all of them: one that answers at
once, a tools/call whose text has 100 bytes. One table; `scripts/compare-mcp` installs what is compared.

compare.py SECONDS FOLDER: STDIO_BUS names the daemon's program, and FOLDER has the other bridges.
"""

import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from mcp_site import QUICK, free_port
from wire import BOTH, LEGACY, META, MODERN

TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 60
TEXT = "x" * 100


class Process:
    """A bridge, in a process group of its own."""

    def __init__(self, command, port, path="/mcp", lines=False):
        self.port, self.path, self.lines = port, path, lines
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True)
        self.pid = self.process.pid
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    self.log.seek(0)
                    said = self.log.read().decode(errors="replace")
                    self.end()
                    raise SystemExit(f"{command[0]} does not listen:\n{said[-2000:]}") from None
                time.sleep(0.1)

    def cpu(self):
        """Seconds that the process itself has used, with all its threads and without its children."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory(self):
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def children(self):
        """All that have come from it."""
        parents = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    parents[int(pid)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
        below, found = {self.pid}, 0
        while below:
            below = {pid for pid, parent in parents.items() if parent in below}
            found += len(below)
        return found

    def end(self):
        try:
            os.killpg(self.pid, signal.SIGTERM)
            self.process.wait(10)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)


def head(bridge, body, session=None, era=LEGACY, method=None, close=False):
    fields = [f"POST {bridge.path} HTTP/1.1", f"Host: 127.0.0.1:{bridge.port}", f"Accept: {BOTH}",
              "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if session:
        fields += [f"Mcp-Session-Id: {session}"]
    if session or era == MODERN:
        fields += [f"MCP-Protocol-Version: {era}"]
    if era == MODERN:
        fields += [f"Mcp-Method: {method}", "Mcp-Name: echo"]
    if close:
        fields += ["Connection: close"]
    return ("\r\n".join(fields) + "\r\n\r\n").encode() + body


def is_whole(data):
    """Whether an answer has come to its end."""
    at = data.find(b"\r\n\r\n")
    if at < 0:
        return False
    fields = data[:at].lower()
    length = fields.find(b"content-length:")
    if length >= 0:
        return len(data) >= at + 4 + int(fields[length + 15:].split(b"\r\n", 1)[0])
    return data.endswith(b"\r\n0\r\n\r\n") or data.endswith(b"\n0\r\n\r\n")


def exchange(bridge, request):
    with socket.create_connection(("127.0.0.1", bridge.port), PATIENCE) as connection:
        connection.sendall(request)
        data = b""
        while not is_whole(data):
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
        return data


def begin(bridge):
    """Begins a session, and gives its id."""
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "compare", "version": "1"}}}
    answer = exchange(bridge, head(bridge, json.dumps(message).encode()))
    assert b" 200 " in answer[:20], answer[:500]
    fields = answer.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")
    session = next(field.split(":", 1)[1].strip() for field in fields if field.lower().startswith("mcp-session-id:"))
    said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = exchange(bridge, head(bridge, json.dumps(said).encode(), session))
    assert b" 202 " in answer[:20], answer[:500]
    return session


class Caller:
    """One that asks, and asks again when it has its answer."""

    def __init__(self, bridge, era, anew):
        self.bridge, self.era, self.anew = bridge, era, anew
        self.session = None if bridge.lines or era == MODERN else begin(bridge)
        self.id = 0
        self.socket = None

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.bridge.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    def message(self):
        self.id += 1
        params = {"name": "echo", "arguments": {"text": TEXT}}
        if self.era == MODERN:
            params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "method": "tools/call", "params": params}).encode()

    def ask(self):
        body = self.message()
        request = body + b"\n" if self.bridge.lines else head(self.bridge, body, self.session, self.era, "tools/call", self.anew)
        self.data = b""
        self.asked = time.perf_counter()
        if self.socket is None:
            self.connect()
        self.socket.sendall(request)

    def read(self):
        """Whether it has its answer."""
        piece = self.socket.recv(65536)
        self.data += piece
        done = self.data.endswith(b"\n") if self.bridge.lines else is_whole(self.data)
        assert done or piece, f"the connection ended after {self.data[:500]!r}"
        if done:
            assert TEXT.encode() in self.data, self.data[:500]
        return done


def load(callers, seconds):
    """How long the answers took."""
    selector = selectors.DefaultSelector()
    took = []

    def ask(caller):
        if caller.anew and caller.socket is not None:
            selector.unregister(caller.socket)
            caller.socket.close()
            caller.socket = None
        caller.ask()
        if caller.socket not in selector.get_map():
            selector.register(caller.socket, selectors.EVENT_READ, caller)
    for caller in callers:
        ask(caller)
    end = time.perf_counter() + seconds
    left = len(callers)
    while left:
        ready = selector.select(PATIENCE)
        assert ready, f"no answer for {PATIENCE} s"
        for key, _ in ready:
            caller = key.data
            if caller.read():
                now = time.perf_counter()
                took.append(now - caller.asked)
                if now < end:
                    ask(caller)
                else:
                    left -= 1
    for caller in callers:
        selector.unregister(caller.socket)
        if caller.anew:
            caller.socket.close()
            caller.socket = None
    return sorted(took)


def bus(folder, assignment):
    port = free_port()
    lines = assignment is None
    pool = {"id": "quick", "command": sys.executable, "args": ["-c", QUICK], "instances": 1, "assignment": assignment or "client"}
    path = os.path.join(folder, f"{port}.json")
    with open(path, "w") as file:
        json.dump({"pools": [pool], "listeners": [{"tcp" if lines else "http": f"127.0.0.1:{port}"}]}, file)
    return Process([os.environ["STDIO_BUS"], "--config", path], port, lines=lines)


def supergateway(others):
    program = os.path.join(others, "node_modules", "supergateway", "dist", "index.js")
    if not os.path.exists(program):
        return None
    port = free_port()
    worker = f"{shlex.quote(sys.executable)} -c {shlex.quote(QUICK)}"
    node = os.environ.get("STDIO_BUS_MCP_NODE", "node")
    return Process([node, program, "--stdio", worker, "--outputTransport", "streamableHttp", "--stateful", "--port", str(port),
                    "--logLevel", "none"], port)


def mcp_proxy(others):
    program = os.path.join(others, "venv", "bin", "mcp-proxy")
    if not os.path.exists(program):
        return None
    port = free_port()
    return Process([program, "--port", str(port), "--log-level", "ERROR", sys.executable, "--", "-c", QUICK], port)


def main():
    seconds, others = float(sys.argv[1]), sys.argv[2]
    folder = tempfile.mkdtemp()
    version = subprocess.run([os.environ["STDIO_BUS"], "--version"], capture_output=True, text=True).stdout.strip()
    bridges = [
        ("supergateway 4.0.0", LEGACY, lambda: supergateway(others)),
        ("mcp-proxy 0.13.0", LEGACY, lambda: mcp_proxy(others)),
        (version, LEGACY, lambda: bus(folder, "client")),
        (f"{version}, 2026-07-28", MODERN, lambda: bus(folder, "client")),
        (f"{version}, lines over TCP", LEGACY, lambda: bus(folder, None)),
    ]
    print("| bridge | sessions | connections | CPU a call | p50 | p99 | calls a second | memory | children |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for name, era, make in bridges:
        for count, anew in ((1, False), (16, False), (1, True), (16, True)):
            bridge = make()
            if bridge is None:
                print(f"| {name} | | not installed | | | | | | |")
                break
            try:
                if bridge.lines and anew:
                    continue
                callers = [Caller(bridge, era, anew) for _ in range(count)]
                load(callers, min(1, seconds))
                before, begun = bridge.cpu(), time.perf_counter()
                took = load(callers, seconds)
                used, lasted = bridge.cpu() - before, time.perf_counter() - begun
                print(f"| {name} | {count} | {'new' if anew else 'kept'} | {1e6 * used / len(took):,.1f} µs "
                      f"| {1e3 * took[len(took) // 2]:.2f} ms | {1e3 * took[len(took) * 99 // 100]:.2f} ms "
                      f"| {len(took) / lasted:,.0f} | {bridge.memory():.0f} MB | {bridge.children()} |", flush=True)
            finally:
                bridge.end()
    shutil.rmtree(folder)


main()
