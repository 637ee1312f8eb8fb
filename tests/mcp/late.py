"""Clients on every kind of listener, ACP over HTTP among them, that all count ids and progress tokens from 0, on shared
workers that speak late: of what is answered they send progress, questions, updates, cancellations and second answers.
Workers are killed and replaced, the configuration is reloaded, and clients break off. Nobody is given what is another's,
and no answer is lost. STDIO_BUS_MCP_CHAOS is the duration in seconds.
"""

import asyncio
import base64
import itertools
import json
import os
import random
import signal
import struct
import sys
import urllib.parse

from chaos import SECONDS, SEED, Tally, kill
from mcp_site import Site
from wire import BOTH, LEGACY, META, MODERN, PATIENCE, Address, Client, Connection, Cut, Refused, Told, until, within

# What a client may get whose worker has died, was replaced or does not exist, whose initialize has ended several workers
# that were killed meanwhile, or whose request it has cancelled itself.
CODES = {-32010, -32011, -32026, -32031, -32800, -32001, -32000}
STATUSES = {404, 429, 503}
# The command has not said yet whether it serves MCP 2026-07-28: where workers get hardly any time they are killed first.
NOT_YET = -32022

# Each message carries `whose`: the client, and its request. What is found to be another's is reported on stderr.
WORKER = r"""
import collections, json, random, sys
over, asked, held, questions, count = collections.deque(), {}, {}, {}, 0
def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
def progress(id, params):
    token = params.get("_meta", {}).get("progressToken", id)
    say(method="notifications/progress", params={"progressToken": token, "progress": 1, "whose": params["whose"]})
def ask(id, params, late):
    global count
    count += 1
    asked[count] = (id, params, late)
    questions[params["whose"]] = count
    say(id=count, method="elicitation/create", params={"requestId": id, "message": "?", "whose": params["whose"]})
def update(id, params):
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    say(method="notifications/resources/updated", params={"uri": "a", "_meta": meta, "whose": params["whose"]})
def cancel(id, params):
    # Its own question about the request, which is answered, too.
    if params["whose"] in questions:
        say(method="notifications/cancelled", params={"requestId": questions[params["whose"]], "whose": params["whose"]})
def answer(id, params, late=False):
    say(id=id, result={"resultType": "complete", "content": [], "whose": params["whose"]})
    if not late:
        over.append([random.randrange(1, 12), id, params])
def speak_late():
    for _ in range(len(over)):
        late = over.popleft()
        late[0] -= 1
        if late[0] > 0:
            over.append(late)
            continue
        _, id, params = late
        for say_it in random.sample([progress, update, cancel, lambda *of: ask(*of, True), lambda *of: answer(*of, True)], 2):
            say_it(id, params)
        questions.pop(params["whose"], None)
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method is None:
        id, params, late = asked.pop(id)
        told = message.get("result", {}).get("whose")
        if told is not None and told != params["whose"]:
            print("FOREIGN:", params["whose"], "is answered by", line, file=sys.stderr, flush=True)
        if not late:
            answer(id, params)
    elif method == "notifications/cancelled":
        cancelled = held.pop(json.dumps(params.get("requestId")), None)
        if cancelled and random.random() < 0.5:
            # An answer after its cancellation.
            answer(*cancelled)
    elif id is None:
        pass
    elif method == "initialize":
        version = params.get("protocolVersion", "2025-11-25")
        say(id=id, result={"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "late", "version": "1"},
                           "whose": params.get("whose")})
    elif method == "server/discover":
        say(id=id, result={"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0,
                           "cacheScope": "private"})
    elif "whose" not in params:
        say(id=id, result={})
    else:
        speak_late()
        plan = params.get("name", method)
        if plan == "progress":
            [progress(id, params) for _ in range(3)]
        if plan == "ask":
            ask(id, params, False)
        elif plan == "hold":
            held[json.dumps(id)] = (id, params)
            progress(id, params)
        elif plan == "subscriptions/listen":
            meta = {"io.modelcontextprotocol/subscriptionId": id}
            said = {"_meta": meta, "notifications": {}, "whose": params["whose"]}
            say(method="notifications/subscriptions/acknowledged", params=said)
            update(id, params)
            update(id, params)
            answer(id, params)
        else:
            answer(id, params)
    sys.stdout.flush()
"""


class Visit:
    """One connection, or session, of a client: what it has asked, and what it is given."""

    def __init__(self, name, tally, dice):
        self.name, self.tally, self.random = name, tally, dice
        self.open, self.cancelled = {}, {}

    def cancel(self, id):
        """A client of MCP that has cancelled a request waits for nothing. An answer may be under way."""
        if id in self.open:
            self.cancelled[id] = self.open.pop(id)

    def begin(self, id, plan=""):
        self.open[id] = f"{self.name}, request {id} {plan}"
        return {"whose": self.open[id]}

    def has(self, message):
        """Takes a message of the daemon. Returns what it asks, if it is a question."""
        self.tally["messages"] += 1
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            return self.answered(message)
        if method == "notifications/progress":
            names = params["progressToken"]
        elif method == "elicitation/create":
            names = params["requestId"]
        elif method == "notifications/cancelled":
            # It names a question that this visit has answered: it may not come.
            names = None
        else:
            names = params["_meta"][META + "subscriptionId"]
        if params["whose"] not in (self.open.get(names), self.cancelled.get(names)):
            is_own = params["whose"].startswith(f"{self.name},")
            what = f"{self.name} has open {self.open}, and is given {message}"
            # The only client that a worker has ever had gets what it says late.
            self.tally.update(late=1) if is_own else self.tally.fail("foreign", what)
        if method == "elicitation/create":
            return {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "whose": params["whose"]}}

    def answered(self, message):
        tag = self.open.pop(message.get("id"), None) or self.cancelled.pop(message.get("id"), None)
        if tag is None:
            return self.tally.fail("foreign", f"{self.name} has open {self.open}, and is given {message}")
        if "error" in message:
            code = message["error"]["code"]
            self.tally[f"told {code}"] += 1
            if code not in CODES:
                self.tally.fail("unexpected", f"{tag}: {message}")
        elif message["result"].get("whose") != tag:
            self.tally.fail("foreign", f"{tag} is answered by {message}")
        else:
            self.tally["answered"] += 1


class Wire:
    """A line of JSON each way, on a socket or in the text messages of a WebSocket."""

    def __init__(self, reader, writer, is_web):
        self.reader, self.writer, self.is_web = reader, writer, is_web

    @classmethod
    async def open(cls, url):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "unix":
            return cls(*await asyncio.open_unix_connection(parts.path, limit=1 << 22), False)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 22)
        if parts.scheme == "ws":
            key = base64.b64encode(bytes(16)).decode()
            writer.write((f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
                          f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 101"):
                raise ConnectionError(head.decode())
        return cls(reader, writer, parts.scheme == "ws")

    def write(self, opcode, payload):
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
        # A mask of zeros changes nothing.
        self.writer.write(bytes([0x80 | opcode]) + length + bytes(4) + payload)

    async def send(self, message):
        data = json.dumps(message).encode()
        self.write(1, data) if self.is_web else self.writer.write(data + b"\n")
        await self.writer.drain()

    async def receive(self):
        """The next message; none at the end."""
        try:
            while self.is_web:
                first, length = await self.reader.readexactly(2)
                if length >= 126:
                    length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8))
                payload = await self.reader.readexactly(length)
                if first & 15 == 9:
                    self.write(10, payload)
                elif first & 15 == 8:
                    return None
                else:
                    return json.loads(payload)
            line = await self.reader.readline()
            return json.loads(line) if line else None
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def leave(self, abruptly):
        self.writer.transport.abort() if abruptly else self.writer.close()


class Acp:
    """The same over ACP's Streamable HTTP: messages are posted, and come on a stream that is broken and opened again."""

    def __init__(self, url):
        self.address, self.id, self.posts, self.stream, self.reading = Address(url), None, None, None, None
        self.came, self.turn = asyncio.Queue(), asyncio.Lock()

    def head(self, method, **fields):
        its = {"Acp-Connection-Id": self.id} if self.id else {}
        return self.address.head(method, {"Accept": BOTH} | its | fields)

    async def send(self, message):
        body = json.dumps(message).encode()
        async with self.turn:
            self.posts = self.posts or await Connection.open(self.address)
            head = self.head("POST", **{"Content-Type": "application/json", "Content-Length": len(body)})
            await self.posts.send(head + body)
            status, fields = await self.posts.head(f"whether it is taken: {message}")
            said = await self.posts.body(fields)
            if status not in (200, 202):
                raise Refused(status, fields, said)
            if status == 200:
                if "acp-connection-id" not in fields:
                    raise Told(json.loads(said)["error"])
                self.id = fields["acp-connection-id"]
                await self.listen()
                self.came.put_nowait(json.loads(said))

    async def listen(self):
        async with within("a stream that has no other reader"):
            while True:
                self.stream = await Connection.open(self.address)
                await self.stream.send(self.head("GET"))
                status, fields = await self.stream.head("the head of a stream")
                if status == 200:
                    break
                self.stream.abort()
                if status != 409:
                    raise Refused(status, fields, b"")
        self.reading = asyncio.create_task(self.read(self.stream, fields))

    async def read(self, stream, fields):
        try:
            async for event in stream.events(fields):
                if event.get("data"):
                    self.came.put_nowait(json.loads(event["data"]))
        except Cut:
            pass
        if stream is self.stream:
            self.came.put_nowait(None)

    async def breaks(self):
        """Breaks its stream, and opens it again. What was under way is lost."""
        broken, self.stream = self.stream, None
        broken.abort()
        await self.listen()

    async def receive(self):
        return await self.came.get()

    def leave(self, abruptly):
        if self.posts and self.id and not abruptly:
            self.posts.writer.write(self.head("DELETE"))
            self.posts.close()
        elif self.posts:
            self.posts.abort()
        if self.stream:
            self.stream.abort()
        self.came.put_nowait(None)


class Guest:
    """A client that connects, asks and breaks off, again and again."""

    def __init__(self, number, kind, url, tally):
        self.number, self.kind, self.url, self.tally = number, kind, url, tally
        self.random = random.Random(f"{SEED} {number}")
        self.visits = 0

    async def run(self, running):
        visit = self.visit_http if self.kind in (LEGACY, MODERN) else self.visit_lines
        while running.is_set():
            self.visits += 1
            its = Visit(f"guest {self.number} ({self.kind}), visit {self.visits}", self.tally, self.random)
            self.tally["clients"] += 1
            try:
                await visit(running, its)
            except AssertionError as error:
                self.tally.fail("hung" if "hung" in str(error) else "failed", f"{its.name}: {error}")
            except Told as told:
                self.tally[f"not begun {told.error['code']}"] += 1
                await asyncio.sleep(0.05)
            except Refused as refused:
                if refused.status in STATUSES or refused.error().get("code") == NOT_YET:
                    self.tally[f"refused {refused.status}"] += 1
                    await asyncio.sleep(0.05)
                else:
                    self.tally.fail("refused", f"{its.name}: {refused}")
            except (Cut, ConnectionError) as error:
                self.tally.fail("lost", f"{its.name}: {error!r}")

    async def visit_lines(self, running, visit):
        wire = Acp(self.url) if self.kind == "acp" else await Wire.open(self.url)
        is_left = False

        async def listen():
            while (message := await wire.receive()) is not None:
                if answer := visit.has(message):
                    await wire.send(answer)
            if visit.open and not is_left:
                raise Cut(f"the connection ended, and these wait: {visit.open}")
        listener = asyncio.create_task(listen())
        ids = itertools.count(0)

        async def ask(method, **params):
            id = next(ids)
            # Its token is its id, as those of the SDKs.
            params |= visit.begin(id, params.get("name", method)) | {"_meta": {"progressToken": id}}
            await wire.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            return id

        async def room(most):
            async with within(f"answers to {visit.open} of {visit.name}"):
                while len(visit.open) > most and not listener.done():
                    await asyncio.sleep(0.001)
            if listener.done():
                listener.result()
                raise Cut("the connection ended")
        try:
            await ask("initialize", protocolVersion=LEGACY, capabilities={})
            await room(0)
            for _ in range(self.random.randrange(1, 60)):
                if not running.is_set():
                    break
                plan = self.random.choice(["plain", "progress", "ask", "subscriptions/listen", "hold"])
                if plan == "subscriptions/listen":
                    await ask(plan, notifications={})
                else:
                    id = await ask("tools/call", name=plan)
                    if plan == "hold":
                        await asyncio.sleep(self.random.choice([0, 0.01]))
                        await wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
                        visit.cancel(id)
                await room(self.random.choice([0, 1, 4]))
                if self.kind == "acp" and not visit.open and self.random.random() < 0.1:
                    await wire.breaks()
                    self.tally["broken"] += 1
            if self.random.random() < 0.5:
                await room(0)
        finally:
            is_left = True
            wire.leave(self.random.random() < 0.5)
            await asyncio.wait([listener])
            if not listener.cancelled() and isinstance(listener.exception(), AssertionError):
                self.tally.fail("failed", f"{visit.name}: {listener.exception()}")

    async def visit_http(self, running, visit):
        caller = Client(self.url, self.kind, name=visit.name, keeps=self.random.random() < 0.8,
                        answers={"elicitation/create": lambda request: visit.has(request)["result"]})
        caller.ids = itertools.count(0)
        stream = None
        try:
            await caller.begin()
            if self.kind == LEGACY and self.random.random() < 0.5:
                stream = asyncio.create_task(self.listen(caller, visit))
            for _ in range(self.random.randrange(1, 30)):
                if not running.is_set():
                    break
                await asyncio.gather(*(self.call(caller, visit) for _ in range(self.random.choice([1, 1, 3]))))
            if self.kind == LEGACY and self.random.random() < 0.5:
                await caller.end()
        finally:
            if stream:
                stream.cancel()
            caller.leave(abruptly=self.random.random() < 0.5)

    async def listen(self, caller, visit):
        """What comes on the session's stream."""
        status, fields, connection = await caller.get()
        if status == 200:
            async for event in connection.events(fields):
                if event.get("data") and (answer := visit.has(json.loads(event["data"]))):
                    await caller.notify_raw(answer)

    async def call(self, caller, visit):
        plans = ["plain", "progress", "hold", "subscriptions/listen" if self.kind == MODERN else "ask"]
        plan, id = self.random.choice(plans), next(caller.ids)
        params, meta = visit.begin(id, plan), {"progressToken": id}
        if plan == "hold":
            return await self.cancel(caller, visit, id, {**params, "name": plan})
        told = []
        if plan == "subscriptions/listen":
            asking = caller.call(plan, {**params, "notifications": {}}, told, None, id)
        else:
            asking = caller.call("tools/call", {**params, "name": plan}, told, meta, id)
        answer = await asking
        [visit.has(message) for message in told]
        visit.has(answer)

    async def cancel(self, caller, visit, id, params):
        held = caller.message("tools/call", params, {"progressToken": id}, id)
        if self.kind == MODERN:
            # It cancels by closing its connection.
            connection = await caller.open()
            await connection.send(caller.bytes(held))
            await asyncio.sleep(self.random.choice([0, 0.02]))
            connection.abort()
            visit.open.pop(id)
            return

        async def read():
            # What belongs to other requests may come on its stream.
            async for message in caller.stream(held):
                has_begun.set()
                if answer := visit.has(message):
                    await caller.notify_raw(answer)
        has_begun, reading = asyncio.Event(), asyncio.create_task(read())
        begins = asyncio.create_task(has_begun.wait())
        # Only then is it certain to be known: the cancellation comes on another connection.
        async with within(f"progress of {id} of {visit.name}"):
            await asyncio.wait([reading, begins], return_when=asyncio.FIRST_COMPLETED)
        begins.cancel()
        await caller.notify("notifications/cancelled", {"requestId": id})
        async with within(f"the end of {id}, which {visit.name} has cancelled"):
            await reading
        visit.cancel(id)


async def reload(site, running, tally):
    """Reloads another configuration, which replaces the workers."""
    path = os.path.join(site.daemon.directory.name, "bus.json")
    dice = random.Random(f"{SEED} reloader")
    for round in itertools.count():
        await asyncio.sleep(dice.uniform(1, 3))
        if not running.is_set():
            return
        with open(path) as file:
            config = json.load(file)
        config["pools"][round % 2]["env"] = {"ROUND": str(round)}
        with open(path + ".new", "w") as file:
            json.dump(config, file)
        os.replace(path + ".new", path)
        site.daemon.process.send_signal(signal.SIGHUP)
        tally["reloads"] += 1


async def late_words_reach_nobody_whatever_happens_to_clients_and_workers():
    def pool(id, assignment):
        return {"id": id, "command": sys.executable, "args": ["-c", WORKER], "instances": 2, "assignment": assignment}
    pools = [pool("shared", "client"), pool("turns", "round_robin")]
    limits = {"drain_timeout_sec": 5, "session_idle_sec": 5, "max_restarts": 10_000, "restart_window_sec": 1}
    with Site(pools, limits=limits) as site:
        folder = site.daemon.directory.name
        config = os.path.join(folder, "bus.json")
        with open(config) as file:
            given = json.load(file)
        for name in ("shared", "turns"):
            given["listeners"] += [{"tcp": "127.0.0.1:0", "pool": name}, {"unix": f"{folder}/{name}", "pool": name},
                                   {"ws": "127.0.0.1:0", "pool": name}, {"acp": "127.0.0.1:0", "pool": name}]
        with open(config, "w") as file:
            json.dump(given, file)
        site.daemon.process.send_signal(signal.SIGHUP)
        urls = {name: {} for name in ("shared", "turns")}
        for name, kind in itertools.product(urls, ("tcp", "unix", "ws", "acp")):
            scheme = "http" if kind == "acp" else kind
            urls[name][kind] = site.daemon.logs(f"listening on {scheme}:").split("listening on ")[1].split()[0]
        await site.ready()
        tally, running = Tally(), asyncio.Event()
        running.set()
        guests = []
        for name, kinds in urls.items():
            eras = {LEGACY: site.url(name), MODERN: site.url(name)} if name == "shared" else {MODERN: site.url(name)}
            for kind, url in (kinds | eras).items():
                guests += [Guest(len(guests) + at, kind, url, tally) for at in range(4)]
        tasks = [asyncio.create_task(guest.run(running)) for guest in guests]
        others = [asyncio.create_task(kill(site, running, tally)), asyncio.create_task(reload(site, running, tally))]
        await asyncio.sleep(SECONDS)
        running.clear()
        async with within(f"the end of all guests, with seed {SEED}", 3 * PATIENCE):
            await asyncio.gather(*tasks, *others)
        tally["foreign"] += sum("FOREIGN" in line for line in site.daemon.log)
        told = dict(sorted(tally.items()))
        assert not tally.failed and not tally["foreign"], f"seed {SEED}: {told}\n" + "\n".join(tally.failed)
        assert tally["answered"] > 20 * SECONDS, f"next to nobody was answered: {told}"

        async def nothing_waits():
            return await site.gauge("stdio_bus_requests_pending") == 0
        await until("no request is pending", nothing_waits)
        return f"seed {SEED}: {told}"


def cases():
    yield late_words_reach_nobody_whatever_happens_to_clients_and_workers.__name__, \
        late_words_reach_nobody_whatever_happens_to_clients_and_workers
