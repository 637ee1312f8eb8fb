"""HAProxy with config/haproxy-websocket.cfg in front of two daemons, and nginx with config/nginx-websocket.conf:
WebSocket clients use TLS, a cookie leads back to the same daemon, the daemon knows the clients' addresses, a draining
daemon fails no request, and nginx goes on using a daemon that refuses one client for a reason of its own.

STDIO_BUS is the daemon's program; STDIO_BUS_BALANCER_CLIENTS is the number of clients.
"""

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile

from acp.ws import create_websocket_stream
from acp.ws.client import MemoryAcpCookieStore
from websockets import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from balancer import PATIENCE, Bus, Tally, are_seen, certificates, changed, end, exists, free_ports, haproxy
from balancer import has_answered, has_logged, is_seen, until

TESTS = 8
CLIENTS = int(os.environ.get("STDIO_BUS_BALANCER_CLIENTS", "100"))

# Answers each request after a delay, in any order, and names its daemon.
WORKER = r"""
import json, random, sys, threading
lock = threading.Lock()
def answer(id):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": {"at": int(sys.argv[1])}}) + "\n")
        sys.stdout.flush()
for line in sys.stdin:
    threading.Timer(random.uniform(0.02, 0.3), answer, [json.loads(line)["id"]]).start()
"""


class WebSocketBus(Bus):
    def __init__(self, folder, port, admin, **listener):
        super().__init__(folder, port, admin, [sys.executable, "-c", WORKER, str(port)], trusted_proxies=["127.0.0.1"],
                         **listener)

    def listens(self, port):
        return {"ws": f"127.0.0.1:{port}"}

    async def is_healthy(self):
        """The load balancer's health check, on the clients' port."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status = await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.close()
            return status.split()[1:2] == [b"200"]
        except OSError:
            return False


class Front:
    """A load balancer as its clients see it."""

    def __init__(self, folder, port):
        self.url = f"wss://localhost:{port}/acp"
        self.trust = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))

    def connect(self, cookie=None, **more):
        fields = {"Cookie": cookie} if cookie else {}
        fields |= more.pop("fields", {})
        url = more.pop("url", self.url)
        return connect(url, ssl=self.trust, additional_headers=fields, ping_interval=None, open_timeout=PATIENCE,
                       close_timeout=PATIENCE, host="127.0.0.1", **more)


async def ask(websocket, id=1):
    await websocket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": "x"}))
    return json.loads(await asyncio.wait_for(websocket.recv(), PATIENCE))


def cookie_of(websocket):
    """The load balancer's cookie, or None."""
    found = websocket.response.headers.get("Set-Cookie")
    return found and found.split(";")[0]


async def client(number, front, tally, running):
    """Sends one request at a time, and keeps its cookie. Repeats a request that was not delivered: a refused one, or one that
    has no answer when the daemon closes the connection because it shuts down, and nothing else."""
    websocket = cookie = None
    id, again = 0, False
    while running.is_set() or again:
        try:
            if websocket is None:
                websocket = await front.connect(cookie)
                cookie = cookie_of(websocket) or cookie
            if not again:
                id += 1
            again = False
            answer = await ask(websocket, id)
        except ConnectionClosed as closed:
            # On a busy machine a request may take longer to a daemon that drains than a client may be silent there. Of
            # what has no answer when this comes nothing reached a worker (docs/restart.md, "Drain").
            if not (closed.rcvd and (closed.rcvd.code, closed.rcvd.reason) == (1001, "shutting_down")):
                tally.failed.append(f"client {number}, request {id}: {closed!r}")
                return
            tally.crossed += 1
            websocket, again = None, True
            continue
        except (InvalidStatus, OSError, asyncio.TimeoutError) as error:
            tally.failed.append(f"client {number}, request {id}: {error!r}")
            return
        if answer.get("id") != id:
            tally.failed.append(f"client {number} got {answer} for request {id}")
        elif "result" in answer:
            tally.answered += 1
        elif answer["error"]["data"].get("delivered") is False:
            tally.not_delivered += 1
            await websocket.close()
            websocket, again = None, True
        else:
            tally.failed.append(f"client {number}: {answer}")
    if websocket:
        await websocket.close()


async def sticks(front, ports):
    """Clients without a cookie are balanced; those with one get the same daemon again."""
    async def comes(cookie=None):
        async with front.connect(cookie) as websocket:
            # All clients are connected at once, so that the load balancer has something to balance.
            return (await ask(websocket))["result"]["at"], cookie_of(websocket)

    found = {}
    for at, cookie in await asyncio.gather(*(comes() for _ in range(20))):
        found.setdefault(at, []).append(cookie)
    assert set(found) == set(ports), f"these daemons had clients: {set(found)}"

    async def comes_again(cookie, port):
        for _ in range(5):
            at, _ = await comes(cookie)
            assert at == port, f"{cookie} of {port} led to {at}"

    await asyncio.gather(*(comes_again(cookie, port) for port, cookies in found.items() for cookie in cookies))


async def official_client_sticks(front, folder):
    """The Python SDK's client keeps the cookie, so it returns to the same daemon."""
    # It has no parameter for trusted certificates.
    os.environ["SSL_CERT_FILE"] = os.path.join(folder, "ca.pem")
    for _ in range(4):
        store, seen = MemoryAcpCookieStore(), set()
        for _ in range(3):
            stream = await create_websocket_stream(front.url, cookie_store=store)
            await stream.send({"jsonrpc": "2.0", "id": 1, "method": "x"})
            seen.add((await asyncio.wait_for(stream.receive(), PATIENCE))["result"]["at"])
            await stream.close()
        assert len(seen) == 1, f"one client was sent to {seen}"


async def who_is_there(front, buses, own):
    """The daemon learns the client's real address, whatever the client claims."""
    lies = {"X-Forwarded-For": "192.0.2.66", "Forwarded": "for=192.0.2.67"}
    async with front.connect(local_addr=(own, 0), fields=lies) as websocket:
        assert "result" in await ask(websocket)
        await until("its address is logged", lambda: has_logged(buses, "client_opened", f"from={own}"))
    for liar in ("192.0.2.66", "192.0.2.67"):
        assert not await has_logged(buses, liar), f"{liar} was believed"
    try:
        async with front.connect(url=front.url.replace("/acp", "/healthz")):
            raise AssertionError("there is more than /acp")
    except InvalidStatus as refused:
        assert refused.response.status_code == 404, refused


async def rolling(buses, front, statistics):
    """Each daemon is restarted in turn under load."""
    tally, running = Tally(), asyncio.Event()
    running.set()
    clients = [asyncio.create_task(client(n, front, tally, running)) for n in range(CLIENTS)]
    for at, bus in enumerate(buses):
        before = tally.answered
        await until("everybody asks", lambda: has_answered(tally, before + CLIENTS))
        bus.process.send_signal(signal.SIGTERM)
        await until("it is out for HAProxy", lambda: is_seen(statistics, f"bus{at + 1}", "DOWN"))
        code = await bus.ends()
        assert code == 0, f"exit code {code}"
        bus.start()
        await until("it is up again", lambda: is_seen(statistics, f"bus{at + 1}", "UP"))
    running.clear()
    done, pending = await asyncio.wait(clients, timeout=PATIENCE)
    assert not pending, f"{len(pending)} clients hang"
    for task in done:
        task.result()
    assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
    assert tally.not_delivered, "nobody had to go to another daemon"
    return f"{tally.answered} answered, {tally.not_delivered} asked again, {tally.crossed} whose request crossed the end"


def nginx(folder, changes):
    """Starts nginx with config/nginx-websocket.conf after some changes."""
    with open(os.path.join(folder, "websocket.conf"), "w") as file:
        file.write(changed("nginx-websocket.conf", changes))
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    main = f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.log;\nevents {{}}\n"
    main += f"http {{\naccess_log off;\n{paths}include {folder}/websocket.conf;\n}}\n"
    if os.geteuid() == 0:
        # Its workers find their files in a directory that is root's.
        main = "user root;\n" + main
    path = os.path.join(folder, "nginx.conf")
    with open(path, "w") as file:
        file.write(main)
    command = ["nginx", "-e", os.path.join(folder, "nginx.log"), "-c", path]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0 and "[warn]" not in checked.stderr, checked.stderr
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


async def drained(front, buses):
    """A connection stays until its daemon has answered; then its cookie leads to the other daemon."""
    websocket = await front.connect()
    cookie = cookie_of(websocket)
    at = (await ask(websocket))["result"]["at"]
    bus = next(bus for bus in buses if bus.port == at)
    bus.process.send_signal(signal.SIGTERM)
    answered = 0
    while "result" in (answer := await ask(websocket, answered)):
        answered += 1
    assert answer["error"]["data"]["delivered"] is False, answer
    await websocket.close()
    async with front.connect(cookie) as websocket:
        assert (await ask(websocket))["result"]["at"] != at
    assert await bus.ends() == 0


class McpBus(Bus):
    """The same behind an MCP listener."""

    POOL = {"assignment": "round_robin"}

    def __init__(self, folder, port, admin, **listener):
        super().__init__(folder, port, admin, [sys.executable, "-c", WORKER, str(port)], trusted_proxies=["127.0.0.1"],
                         **listener)

    def listens(self, port):
        return {"http": f"127.0.0.1:{port}"}

    is_healthy = WebSocketBus.is_healthy


async def opens(front, own, cookie):
    """A WebSocket from this address: the status, the daemon that answers, and what has to be kept."""
    try:
        websocket = await front.connect(cookie, local_addr=(own, 0))
    except InvalidStatus as refused:
        return refused.response.status_code, None, None
    return 101, (await ask(websocket))["result"]["at"], websocket


async def begins(front, own, cookie):
    """The same for a session of MCP."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize",
                       "params": {"protocolVersion": "2025-06-18", "capabilities": {}}})
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    port = int(front.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=front.trust, server_hostname="localhost",
                                                   local_addr=(own, 0))
    writer.write((head + body).encode())
    text = (await asyncio.wait_for(reader.read(), PATIENCE)).decode()
    writer.close()
    found = re.search(r'"at": *([0-9]+)', text)
    return int(text.split()[1]), found and int(found[1]), None


async def refused_alone(front, buses, come, welcome):
    """One source has as much as it may have at both daemons and asks on. nginx tries no other daemon for it, and goes on
    sending others to both."""
    kept, cookies = [], {}
    for number in range(1, 200):
        cookie = f"stdio_bus=place{number}"
        status, at, one = await come(front, f"127.0.1.{number}", cookie)
        kept.append(one)
        assert status == welcome, status
        cookies.setdefault(at, cookie)
        if len(cookies) == len(buses):
            break
    assert set(cookies) == {bus.port for bus in buses}, cookies
    for cookie in 2 * list(cookies.values()):
        status, _, one = await come(front, "127.0.0.20", cookie)
        kept.append(one)
        assert status == welcome, status
    for number in range(1, 21):
        for at, cookie in cookies.items():
            status, _, _ = await come(front, "127.0.0.20", cookie)
            assert status == 429, status
            status, served, one = await come(front, f"127.0.2.{number}", cookie)
            kept.append(one)
            assert (status, served) == (welcome, at), f"{status} of {served} with the cookie of {at}"
    return kept, cookies


async def full(front, bus, cookie):
    """A daemon that has no room for anybody says 503, and nginx asks the other one."""
    for number in range(1, 1200):
        status, at, one = await opens(front, f"127.0.3.{number % 250 + 1}", cookie)
        yield one
        assert status == 101, f"{status} of {at}"
        if at != bus.port:
            try:
                async with connect(f"ws://127.0.0.1:{bus.port}/acp", additional_headers={"X-Forwarded-For": "192.0.2.1"}):
                    raise AssertionError(f"there is room at {bus.port}, but nginx went to {at}")
            except InvalidStatus as refused:
                assert refused.response.status_code == 503, refused
            return
    raise AssertionError("the daemon is never full")


async def stopped(front, bus, cookie):
    """A daemon that ends is found by its refusal, or by there being no listener: there is no 502, and soon the other one
    answers."""
    bus.process.send_signal(signal.SIGTERM)
    for number in range(PATIENCE * 20):
        status, at, _ = await begins(front, f"127.0.{3 + number // 250}.{number % 250 + 1}", cookie)
        assert status in (200, 503), status
        if status == 200 and at != bus.port:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no other daemon is asked")


async def refusals(folder, started, all_buses):
    """What one client is refused for is its own matter, and what a daemon refuses everybody is the daemon's."""
    shares = {"per_source": 2, "total": 60}
    for kind, make, come, welcome in [("ws", WebSocketBus, opens, 101), ("mcp", McpBus, begins, 200)]:
        place = os.path.join(folder, kind)
        os.mkdir(place)
        secure, *ports = free_ports(5)
        buses = [make(folder, *ports[2 * at : 2 * at + 2], max_connections=shares) for at in range(2)]
        all_buses += buses
        for bus in buses:
            bus.start()
        for bus in buses:
            await until("it is ready", bus.is_healthy)
        changes = [(f"^( *server )127.0.0.1:900{at} ", rf"\g<1>127.0.0.1:{bus.port} ") for at, bus in enumerate(buses, 1)]
        changes += [("listen 9443 ", f"listen 127.0.0.1:{secure} "), ("/etc/nginx/agents", os.path.join(folder, "localhost"))]
        if kind == "mcp":
            changes += [("= /acp ", "= /mcp "), ('"upgrade"', '""'), (r"Upgrade \$http_upgrade", 'Upgrade ""')]
        started.append(nginx(place, changes))
        front = Front(folder, secure)
        await until("nginx runs", lambda: listens(secure))
        kept, cookies = await refused_alone(front, buses, come, welcome)
        bus = buses[0]
        if kind == "ws":
            kept += [one async for one in full(front, bus, cookies[bus.port])]
        else:
            await stopped(front, bus, cookies[bus.port])
        for websocket in filter(None, kept):
            await websocket.close()
        yield f"a_client_that_{kind}_refuses_for_a_reason_of_its_own_takes_no_daemon_from_others_behind_nginx"


async def main():
    folder = tempfile.TemporaryDirectory()
    secure, nginx_secure, *ports = free_ports(6)
    buses = [WebSocketBus(folder.name, *ports[2 * at : 2 * at + 2]) for at in range(2)]
    certificates(folder.name)
    started = []
    passed = []
    try:
        for bus in buses:
            bus.start()
        for bus in buses:
            await until("it is ready", bus.is_healthy)
        daemons = [(f"127.0.0.1:900{at}", f"127.0.0.1:{bus.port}") for at, bus in enumerate(buses, 1)]
        changes = [(f"^( *server .*){old} ", rf"\g<1>{new} ") for old, new in daemons]
        changes += [(f"port 910{at}$", f"port {bus.admin}") for at, bus in enumerate(buses, 1)]
        changes += [("bind :9443 ", f"bind 127.0.0.1:{secure} "),
                    ("/etc/haproxy/agents.pem", os.path.join(folder.name, "localhost.pem"))]
        balancer, statistics = haproxy(folder.name, changes, "balancer", "haproxy-websocket.cfg")
        started.append(balancer)
        await until("HAProxy runs", lambda: exists(statistics))
        await until("both are up", lambda: are_seen(statistics, {"bus1": "UP", "bus2": "UP"}))
        front = Front(folder.name, secure)
        await sticks(front, [bus.port for bus in buses])
        passed.append("a_cookie_of_haproxy_leads_back_to_the_same_daemon")
        await official_client_sticks(front, folder.name)
        passed.append("an_official_client_that_comes_again_gets_the_same_daemon")
        await who_is_there(front, buses, "127.0.0.9")
        passed.append("a_client_behind_haproxy_is_known_by_its_own_address")
        passed.append(f"a_rolling_restart_behind_haproxy_fails_no_request: {await rolling(buses, front, statistics)}")

        changes = [(f"^( *server ){old} ", rf"\g<1>{new} ") for old, new in daemons]
        changes += [("listen 9443 ", f"listen 127.0.0.1:{nginx_secure} "),
                    ("/etc/nginx/agents", os.path.join(folder.name, "localhost"))]
        started.append(nginx(folder.name, changes))
        front = Front(folder.name, nginx_secure)
        await until("nginx runs", lambda: listens(nginx_secure))
        await sticks(front, [bus.port for bus in buses])
        await who_is_there(front, buses, "127.0.0.10")
        passed.append("nginx_brings_clients_and_their_addresses_and_its_cookie_sticks")
        await drained(front, buses)
        passed.append("a_client_of_a_daemon_that_drains_finds_the_other_one_through_nginx")
        passed += [name async for name in refusals(folder.name, started, buses)]
    finally:
        end(folder, started, buses, passed, TESTS)


async def listens(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    except OSError:
        return False


if __name__ == "__main__":
    asyncio.run(main())
