"""HAProxy with config/haproxy.cfg in front of three daemons under load: each is restarted in turn, and no request fails;
then one is killed, and its clients succeed on another.

STDIO_BUS names the daemon's program; STDIO_BUS_BALANCER_CLIENTS says how many clients there are.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

CLIENTS = int(os.environ.get("STDIO_BUS_BALANCER_CLIENTS", "200"))
PATIENCE = 120
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Answers each request a while later, in any order.
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
        self.cut = 0
        self.failed = []


async def client(number, port, tally, running, may_be_cut):
    """Asks one request after the other. Who is told that nobody got a request asks again elsewhere."""
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
            if may_be_cut.is_set():
                tally.cut += 1
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
    def __init__(self, folder, port, admin):
        self.arguments = [os.environ["STDIO_BUS"], "--config", os.path.join(folder, "bus.json")]
        self.arguments += ["--tcp", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        self.admin = admin
        self.log = open(os.path.join(folder, f"{port}.log"), "ab")
        self.process = None

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


async def proxied(statistics, name):
    """What HAProxy thinks of a server: UP, NOLB, DOWN."""
    reader, writer = await asyncio.open_unix_connection(statistics)
    writer.write(b"show stat\n")
    text = (await reader.read()).decode()
    writer.close()
    rows = [line.split(",") for line in text.splitlines() if line]
    column = rows[0].index("status")
    return next(row[column] for row in rows if row[:2] == ["daemons", name])


async def main():
    folder = tempfile.TemporaryDirectory()
    front, *ports = free_ports(7)
    buses = [Bus(folder.name, ports[2 * at], ports[2 * at + 1]) for at in range(3)]
    pool = {"id": "slow", "command": sys.executable, "args": ["-c", WORKER], "instances": 2}
    with open(os.path.join(folder.name, "bus.json"), "w") as file:
        json.dump({"pools": [pool], "limits": {"lame_duck_sec": 3, "quiesce_sec": 30}}, file)
    with open(os.path.join(ROOT, "config", "haproxy.cfg")) as file:
        text = file.read()
    for at in range(3):
        text = text.replace(f"127.0.0.1:900{at + 1} port 910{at + 1}", f"127.0.0.1:{ports[2 * at]} port {ports[2 * at + 1]}")
    text = text.replace("bind 127.0.0.1:9000", f"bind 127.0.0.1:{front}")
    statistics = os.path.join(folder.name, "stats")
    text = re.sub(r"^global$", f"global\n    stats socket {statistics}", text, flags=re.M)
    path = os.path.join(folder.name, "haproxy.cfg")
    with open(path, "w") as file:
        file.write(text)
    checked = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True)
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
    balancer = None
    passed = []
    try:
        for bus in buses:
            bus.start()
        for bus in buses:
            await until("it is ready", lambda: is_status(bus, "200"))
        balancer = subprocess.Popen(["haproxy", "-db", "-f", path], stderr=subprocess.DEVNULL)
        await until("HAProxy runs", lambda: exists(statistics))
        for at in range(3):
            await until("it is up", lambda: is_seen(statistics, f"bus{at + 1}", "UP"))
        tally, running, may_be_cut = Tally(), asyncio.Event(), asyncio.Event()
        running.set()
        clients = [asyncio.create_task(client(n, front, tally, running, may_be_cut)) for n in range(CLIENTS)]
        for at, bus in enumerate(buses):
            before = tally.answered
            await until("everybody asks", lambda: has_answered(tally, before + CLIENTS))
            bus.process.send_signal(signal.SIGTERM)
            await until("it drains for HAProxy", lambda: is_seen(statistics, f"bus{at + 1}", "NOLB"))
            code = await bus.ends()
            assert code == 0, f"exit code {code}"
            bus.start()
            await until("it is up again", lambda: is_seen(statistics, f"bus{at + 1}", "UP"))
        assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
        passed.append(f"a_rolling_restart_fails_no_request: {tally.answered} answered, {tally.not_delivered} asked again")
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
        passed.append(f"clients_of_a_killed_daemon_go_on_with_another: {tally.cut} requests were cut")
    finally:
        for process in [balancer, *(bus.process for bus in buses)]:
            if process and process.poll() is None:
                process.terminate()
        for process in [balancer, *(bus.process for bus in buses)]:
            if process:
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
        for name in sorted(os.listdir(folder.name)):
            if name.endswith(".log") and len(passed) < 2:
                with open(os.path.join(folder.name, name), errors="replace") as log:
                    print(f"--- {name}\n" + "".join(log.readlines()[-30:]))
        for line in passed:
            print(f"test {line} ... ok")
        print(f"{len(passed)} passed, {2 - len(passed)} failed")
        folder.cleanup()


async def is_status(bus, status):
    return await bus.answers("/readyz") == status


async def exists(path):
    return os.path.exists(path)


async def is_seen(statistics, name, status):
    return (await proxied(statistics, name)).startswith(status)


async def has_answered(tally, count):
    assert not tally.failed, f"{len(tally.failed)} failed: {tally.failed[:5]}"
    return tally.answered >= count


asyncio.run(main())
