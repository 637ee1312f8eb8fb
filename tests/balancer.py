"""HAProxy with config/haproxy.cfg in front of three daemons under load: each is restarted in turn, and no request fails;
then one is killed, and its clients succeed on another. Clients without a certificate are refused, and the daemon knows
the client behind HAProxy. With checks that only connect, a daemon whose pool was given up fails hardly any request.

STDIO_BUS is the daemon's program; STDIO_BUS_BALANCER_CLIENTS is the number of clients.
"""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile

TESTS = 4
CLIENTS = int(os.environ.get("STDIO_BUS_BALANCER_CLIENTS", "200"))
PATIENCE = 120
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Answers each request after a delay, in any order.
WORKER = r"""
import json, random, sys, threading
lock = threading.Lock()
def answer(id):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}) + "\n")
        sys.stdout.flush()
for line in sys.stdin:
    threading.Timer(random.uniform(0.02, 0.3), answer, [json.loads(line)["id"]]).start()
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Tally:
    def __init__(self):
        self.answered = 0
        self.not_delivered = 0
        # Requests that were under way when a daemon closed a client for its silence; and whether any daemon drains.
        self.crossed = 0
        self.drains = False
        self.cut = 0
        self.failed = []


async def client(number, port, tally, running, may_be_cut):
    """Sends one request at a time. Repeats a request that was not delivered on another connection."""
    writer = None
    id = 0
    again = False
    while running.is_set() or again:
        if writer is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError as error:
                tally.failed.append(f"client {number} cannot connect: {error}")
                return
        if not again:
            id += 1
        again = False
        writer.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": "x"}).encode() + b"\n")
        try:
            line = await asyncio.wait_for(reader.readline(), PATIENCE)
        except (ConnectionError, asyncio.TimeoutError) as error:
            line = b"" if isinstance(error, ConnectionError) else repr(error).encode()
        if not line:
            writer.close()
            writer = None
            # On a busy machine a request may take longer to a daemon that drains than a client may be silent there. It
            # reached no worker (docs/restart.md, "Drain").
            if may_be_cut.is_set() or tally.drains:
                tally.cut += may_be_cut.is_set()
                tally.crossed += not may_be_cut.is_set()
                again = True
                continue
            tally.failed.append(f"client {number} lost request {id}")
            continue
        try:
            answer = json.loads(line)
        except ValueError:
            tally.failed.append(f"client {number} got {line!r} for request {id}")
            return
        if answer.get("id") != id:
            tally.failed.append(f"client {number} got {answer} for request {id}")
        elif "result" in answer:
            tally.answered += 1
        elif answer["error"]["data"].get("delivered") is False:
            tally.not_delivered += 1
            writer.close()
            writer = None
            again = True
        elif may_be_cut.is_set():
            tally.cut += 1
        else:
            tally.failed.append(f"client {number}: {answer}")
    if writer:
        writer.close()


class Bus:
    # More keys of its pool.
    POOL = {}

    def __init__(self, folder, port, admin, command=None, **listener):
        command = command or [sys.executable, "-c", WORKER]
        pool = {"id": "slow", "command": command[0], "args": command[1:], "instances": 2, **self.POOL}
        listener = {**self.listens(port), **listener}
        # A pool that was given up stays so until the test is over.
        limits = {"lame_duck_sec": 3, "quiesce_sec": 30, "max_restarts": 2, "restart_window_sec": 3600}
        config = os.path.join(folder, f"{port}.json")
        with open(config, "w") as file:
            json.dump({"pools": [pool], "listeners": [listener], "limits": limits}, file)
        self.arguments = [os.environ["STDIO_BUS"], "--config", config, "--admin", f"127.0.0.1:{admin}"]
        self.port, self.admin = port, admin
        self.path = os.path.join(folder, f"{port}.log")
        self.log = open(self.path, "ab")
        self.process = None

    def listens(self, port):
        return {"tcp": f"127.0.0.1:{port}", "proxy": {"from": ["127.0.0.1"]}}

    def has_logged(self, *parts):
        with open(self.path, errors="replace") as file:
            return any(all(part in line for part in parts) for line in file)

    def clients_opened(self):
        with open(self.path, errors="replace") as file:
            return file.read().count("client_opened")

    def start(self):
        self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stderr=self.log)

    async def answers(self, path):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            status = await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.close()
            return status.split()[1].decode()
        except (OSError, IndexError):
            return None

    async def ends(self):
        for _ in range(PATIENCE * 20):
            if self.process.poll() is not None:
                return self.process.returncode
            await asyncio.sleep(0.05)
        raise AssertionError("the daemon does not end")


async def until(what, condition):
    for _ in range(PATIENCE * 20):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"it never came to that: {what}")


async def command(statistics, line):
    """What HAProxy answers to a command on its socket."""
    reader, writer = await asyncio.open_unix_connection(statistics)
    writer.write(f"{line}\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def entries(statistics, table):
    """How many entries a stick table of HAProxy has."""
    head = (await command(statistics, f"show table {table}")).partition("\n")[0]
    return int(head.rpartition("used:")[2])


async def proxied(statistics, name):
    """HAProxy's state of a server: UP, NOLB, DOWN."""
    text = await command(statistics, "show stat")
    rows = [line.split(",") for line in text.splitlines() if line]
    column = rows[0].index("status")
    return next(row[column] for row in rows if row[:2] == ["daemons", name])


def certificates(folder):
    """An authority, and the certificates that it has signed: HAProxy's, and that of a client named alice."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in ["localhost", "alice"]:
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        # Some clients take the name from there alone.
        with open(os.path.join(folder, f"{name}.ext"), "w") as extensions:
            extensions.write(f"subjectAltName=DNS:{name}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        with open(os.path.join(folder, f"{name}.pem"), "w") as both:
            for part in ["crt", "key"]:
                with open(os.path.join(folder, f"{name}.{part}")) as file:
                    both.write(file.read())


def changed(file, changes):
    """The text of a file of config after some changes, each of which must match."""
    with open(os.path.join(ROOT, "config", file)) as source:
        text = source.read()
    for old, new in changes:
        text, count = re.subn(old, new, text, flags=re.M)
        assert count, f"config/{file} has no {old}"
    return text


def haproxy(folder, changes, name, file="haproxy.cfg", arguments=()):
    """Starts HAProxy with a file of config after some changes."""
    statistics = os.path.join(folder, f"{name}.stats")
    text = changed(file, [(r"^global$", f"global\n    stats socket {statistics}"), *changes])
    path = os.path.join(folder, f"{name}.cfg")
    with open(path, "w") as written:
        written.write(text)
    checked = subprocess.run(["haproxy", *arguments, "-c", "-f", path], capture_output=True, text=True)
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
    return subprocess.Popen(["haproxy", *arguments, "-db", "-f", path], stderr=subprocess.DEVNULL), statistics


def at_ports(folder, buses, front, secure):
    """Changes config/haproxy.cfg to the addresses and files of this test."""
    changes = [
        (f"127.0.0.1:900{at} port 910{at}$", f"127.0.0.1:{bus.port} port {bus.admin}") for at, bus in enumerate(buses, 1)
    ]
    changes.append(("bind 127.0.0.1:9000$", f"bind 127.0.0.1:{front}"))
    changes.append(("bind :9443 ", f"bind 127.0.0.1:{secure} "))
    changes.append(("/etc/haproxy/agents.pem", os.path.join(folder, "localhost.pem")))
    changes.append(("/etc/haproxy/clients-ca.pem", os.path.join(folder, "ca.pem")))
    return changes


async def asks(port, context=None):
    """The bus's answer to one request, or None if it cannot be reached."""
    try:
        name = "localhost" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(b'{"jsonrpc":"2.0","id":1,"method":"x"}\n')
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        writer.close()
        return json.loads(line) if line else None
    except OSError:
        return None


async def who_is_there(folder, buses, front, secure):
    plain = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
    assert await asks(secure, plain) is None, "a client without a certificate was let in"
    named = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
    named.load_cert_chain(os.path.join(folder, "alice.pem"))
    assert "result" in await asks(secure, named)
    told = ["client_opened", "from=127.0.0.1:", "via=127.0.0.1:", "cn=alice", "sni=localhost", "unique_id=127.0.0.1:"]
    await until("alice is named", lambda: has_logged(buses, *told))
    assert "result" in await asks(front)
    # Each daemon writes its log after it has answered: wait for the second client's line, then nobody else may have one.
    await until("the second client is logged", lambda: has_opened(buses, 2))
    count = sum(bus.clients_opened() for bus in buses)
    assert count == 2, f"{count} clients were logged, with the stranger and the checks"


async def load(buses, front, statistics):
    tally, running, may_be_cut = Tally(), asyncio.Event(), asyncio.Event()
    running.set()
    clients = [asyncio.create_task(client(n, front, tally, running, may_be_cut)) for n in range(CLIENTS)]
    for at, bus in enumerate(buses):
        before = tally.answered
        await until("everybody asks", lambda: has_answered(tally, before + CLIENTS))
        tally.drains = True
        bus.process.send_signal(signal.SIGTERM)
        await until("it drains for HAProxy", lambda: is_seen(statistics, f"bus{at + 1}", "NOLB"))
        code = await bus.ends()
        assert code == 0, f"exit code {code}"
        bus.start()
        await until("it is up again", lambda: is_seen(statistics, f"bus{at + 1}", "UP"))
        before = tally.answered
        await until("everybody goes on", lambda: has_answered(tally, before + 2 * CLIENTS))
        tally.drains = False
    assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
    told = f"{tally.not_delivered} asked again, and {tally.crossed} whose request crossed the end"
    yield f"a_rolling_restart_fails_no_request: {tally.answered} answered, {told}"
    may_be_cut.set()
    before = tally.answered
    buses[0].process.kill()
    buses[0].process.wait()
    await until("it is down for HAProxy", lambda: is_seen(statistics, "bus1", "DOWN"))
    await until("everybody goes on", lambda: has_answered(tally, before + 10 * CLIENTS))
    running.clear()
    done, pending = await asyncio.wait(clients, timeout=PATIENCE)
    assert not pending, f"{len(pending)} clients hang"
    assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
    yield f"clients_of_a_killed_daemon_go_on_with_another: {tally.cut} requests were cut"


async def given_up(front, statistics):
    """The third daemon has no worker; HAProxy only connects."""
    await until("the others are up", lambda: are_seen(statistics, {"bus1": "UP", "bus2": "UP", "bus3": "DOWN"}))
    failed = 0
    for _ in range(20):
        answers = await asyncio.gather(*(asks(front) for _ in range(50)))
        failed += sum(answer is None or "result" not in answer for answer in answers)
    assert failed < 10, f"{failed} of 1000 connections failed"
    return f"a_pool_that_was_given_up_costs_less_than_one_connection_in_a_hundred: {failed} of 1000"


def end(folder, started, buses, passed, tests):
    """Stops all processes, shows the logs if a test has failed, and reports the counts."""
    started = [*started, *(bus.process for bus in buses if bus.process)]
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
    for name in sorted(os.listdir(folder.name)):
        if name.endswith(".log") and len(passed) < tests:
            with open(os.path.join(folder.name, name), errors="replace") as log:
                print(f"--- {name}\n" + "".join(log.readlines()[-30:]))
    for line in passed:
        print(f"test {line} ... ok")
    print(f"{len(passed)} passed, {tests - len(passed)} failed")
    folder.cleanup()


async def main():
    folder = tempfile.TemporaryDirectory()
    front, secure, plain_front, plain_secure, *ports = free_ports(12)
    buses = [Bus(folder.name, ports[2 * at], ports[2 * at + 1]) for at in range(3)]
    broken = Bus(folder.name, *ports[6:], ["false"], when_not_ready="close")
    certificates(folder.name)
    started = []
    passed = []
    try:
        for bus in buses:
            bus.start()
        for bus in buses:
            await until("it is ready", lambda: is_status(bus, "200"))
        balancer, statistics = haproxy(folder.name, at_ports(folder.name, buses, front, secure), "balancer")
        started.append(balancer)
        await until("HAProxy runs", lambda: exists(statistics))
        await until("all are up", lambda: are_seen(statistics, {f"bus{at}": "UP" for at in range(1, 4)}))
        await who_is_there(folder.name, buses, front, secure)
        passed.append("mutual_tls_refuses_strangers_and_tells_the_name_of_a_friend")
        async for line in load(buses, front, statistics):
            passed.append(line)
        buses[0].start()
        broken.start()
        await until("its pool is given up", lambda: has_logged([broken], "given up after"))
        changes = at_ports(folder.name, [*buses[:2], broken], plain_front, plain_secure)
        changes += [(r"^ *(option httpchk|http-check .*)$", ""), (r"^( *server .*) port \d+$", r"\1")]
        balancer, statistics = haproxy(folder.name, changes, "plain")
        started.append(balancer)
        await until("HAProxy runs", lambda: exists(statistics))
        passed.append(await given_up(plain_front, statistics))
    finally:
        end(folder, started, [*buses, broken], passed, TESTS)


async def is_status(bus, status):
    return await bus.answers("/readyz") == status


async def exists(path):
    return os.path.exists(path)


async def is_seen(statistics, name, status):
    return (await proxied(statistics, name)).startswith(status)


async def are_seen(statistics, wanted):
    return all([await is_seen(statistics, name, status) for name, status in wanted.items()])


async def has_logged(buses, *parts):
    return any(bus.has_logged(*parts) for bus in buses)


async def has_opened(buses, count):
    return sum(bus.clients_opened() for bus in buses) >= count


async def has_answered(tally, count):
    assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
    return tally.answered >= count


if __name__ == "__main__":
    asyncio.run(main())
