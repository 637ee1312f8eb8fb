"""HTTP on the wire, and MCP clients that expose every byte of it, without any library. Every wait has a limit, and an
error that names what was awaited.
"""

import asyncio
import contextlib
import itertools
import json
import os
import urllib.parse

PATIENCE = float(os.environ.get("STDIO_BUS_PATIENCE", "60"))
LEGACY = "2025-11-25"
MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
META = "io.modelcontextprotocol/"


@contextlib.asynccontextmanager
async def within(what, seconds=None):
    """Fails after a timeout, with what was awaited."""
    seconds = seconds or PATIENCE
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"hung for {seconds} s: {what}") from None


async def until(what, condition, seconds=None):
    """Waits until an asynchronous condition holds, and returns its value."""
    last = None
    try:
        async with asyncio.timeout(seconds or PATIENCE):
            while not (last := await condition()):
                await asyncio.sleep(0.05)
            return last
    except TimeoutError:
        raise AssertionError(f"it never came to that: {what}") from None


class Address:
    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.path = parts.hostname, parts.port, parts.path
        self.name = f"{self.host}:{self.port}"

    def head(self, method="POST", fields=None, path=None, version="1.1"):
        """A request's head; fields may be repeated if given as a list."""
        fields = fields.items() if isinstance(fields, dict) else fields or []
        lines = [f"{method} {path or self.path} HTTP/{version}", f"Host: {self.name}"]
        return ("\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields)]) + "\r\n\r\n").encode()


class Cut(Exception):
    """The connection ended before the expected data."""


class Connection:
    """One connection, accessed by bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address, **how):
        async with within(f"a connection to {address.name}"):
            return cls(*await asyncio.open_connection(address.host, address.port, **how))

    async def send(self, data, what="room for a request"):
        async with within(what):
            self.writer.write(data)
            await self.writer.drain()

    async def line(self):
        try:
            line = await self.reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Cut(repr(error)) from None
        return line[:-2].decode()

    async def head(self, what="the head of an answer", seconds=None):
        """Status and fields of the next response."""
        async with within(what, seconds):
            while True:
                words = (await self.line()).split(" ", 2)
                fields = {}
                while line := await self.line():
                    name, _, value = line.partition(":")
                    fields[name.lower()] = value.strip()
                assert words[0] == "HTTP/1.1", words
                if words[1] != "100":
                    return int(words[1]), fields

    async def pieces(self, fields):
        """The body, in pieces as received."""
        try:
            if fields.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await self.line()).split(";")[0], 16):
                    yield await self.reader.readexactly(size)
                    assert await self.line() == ""
                while await self.line():
                    pass
            elif "content-length" in fields:
                if length := int(fields["content-length"]):
                    yield await self.reader.readexactly(length)
            else:
                while piece := await self.reader.read(65536):
                    yield piece
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Cut(repr(error)) from None

    async def body(self, fields, what="a body", seconds=None):
        async with within(what, seconds):
            return b"".join([piece async for piece in self.pieces(fields)])

    async def events(self, fields):
        """The server-sent events: dictionaries of their fields, with comments under the empty name."""
        event, rest = {}, b""
        async for piece in self.pieces(fields):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                line = line.removesuffix(b"\r").decode()
                if line:
                    name, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    event[name] = f"{event[name]}\n{value}" if name in event else value
                elif event:
                    yield event
                    event = {}

    async def ended(self, what="the end of the connection", seconds=None):
        """Everything until the server closes the connection."""
        async with within(what, seconds):
            rest = b""
            try:
                while piece := await self.reader.read(65536):
                    rest += piece
            except ConnectionError:
                pass
            return rest

    def close(self):
        self.writer.close()

    def abort(self):
        """Aborts it."""
        self.writer.transport.abort()


class Refused(Exception):
    """A response other than 2xx."""

    def __init__(self, status, fields, body):
        super().__init__(f"{status} {body[:300]!r}")
        self.status, self.fields, self.body = status, fields, body

    def error(self):
        try:
            return json.loads(self.body)["error"]
        except (ValueError, KeyError):
            return {}


class Told(Exception):
    """An error instead of a session."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error


class Client:
    """A client of one era. A call is answered by JSON or by events, and messages before the answer are reported."""

    def __init__(self, url, era=LEGACY, token=None, keeps=True, capabilities=None, name="raw", answers=None):
        self.address, self.era, self.token, self.keeps = Address(url), era, token, keeps
        self.capabilities = {} if capabilities is None else capabilities
        self.info = {"name": name, "version": "1"}
        self.session = None
        self.ids = itertools.count(1)
        self.free = []
        # The answers to the server's own requests, by method.
        self.answers = answers or {}
        self.all = set()

    async def connection(self):
        if self.free:
            return self.free.pop()
        connection = await self.open()
        self.all.add(connection)
        return connection

    async def open(self):
        """A new connection."""
        return await Connection.open(self.address)

    def done(self, connection, fields):
        if self.keeps and fields.get("connection", "").lower() != "close":
            self.free.append(connection)
        else:
            self.drop(connection)

    def drop(self, connection):
        self.all.discard(connection)
        connection.close()

    def fields(self, message=None):
        fields = {"Accept": BOTH, "Content-Type": "application/json"}
        if self.token:
            fields["Authorization"] = f"Bearer {self.token}"
        if self.era == MODERN:
            fields["MCP-Protocol-Version"] = MODERN
            if message:
                fields["Mcp-Method"] = message["method"]
                params = message.get("params", {})
                if message["method"] in ("tools/call", "prompts/get", "resources/read"):
                    fields["Mcp-Name"] = params.get("name") or params.get("uri")
        elif self.session:
            fields |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": LEGACY}
        return fields

    def message(self, method, params=None, meta=None, id=None):
        params = dict(params or {})
        meta = dict(meta or {})
        if self.era == MODERN:
            meta |= {META + "protocolVersion": MODERN, META + "clientCapabilities": self.capabilities,
                     META + "clientInfo": self.info}
        if meta:
            params["_meta"] = meta
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        return message if id is None else {**message, "id": id}

    def bytes(self, message, **more):
        body = json.dumps(message).encode()
        fields = {**self.fields(message if "method" in message else None), "Content-Length": len(body), **more}
        return self.address.head("POST", fields) + body

    async def post(self, message, connection=None, **more):
        """Status and fields of the response to a message, and the connection for its body. A kept connection that the
        server has closed in the meantime is replaced once."""
        while True:
            is_kept = connection is None and self.free
            taken = connection or await self.connection()
            try:
                await taken.send(self.bytes(message, **more))
                status, fields = await taken.head(f"the answer to {message.get('method')} of {self.info['name']}")
                return status, fields, taken
            except (Cut, ConnectionError):
                self.drop(taken)
                if not is_kept:
                    raise

    async def stream(self, message, connection=None, **more):
        """Everything received for a request: the messages, and finally its answer."""
        status, fields, connection = await self.post(message, connection, **more)
        is_read = False
        try:
            if fields.get("content-type", "").startswith("text/event-stream"):
                async for event in connection.events(fields):
                    if event.get("data"):
                        yield json.loads(event["data"])
            else:
                body = await connection.body(fields, f"the body of the answer to {message.get('method')}")
                if status >= 300:
                    is_read = True
                    raise Refused(status, fields, body)
                if body:
                    yield json.loads(body)
            is_read = True
        finally:
            if is_read:
                self.done(connection, fields)
            else:
                self.drop(connection)

    async def call(self, method, params=None, told=None, meta=None, id=None, **more):
        """The answer to a request: its result or its error, in a message. `told` gets the messages before it."""
        id = next(self.ids) if id is None else id
        answer = None
        async with within(f"the answer to {method} {params} of {self.info['name']}"):
            async for message in self.stream(self.message(method, params, meta, id), **more):
                if "method" in message and "id" in message:
                    await self.answer(message)
                elif "method" in message:
                    if told is not None:
                        told.append(message)
                else:
                    assert answer is None, f"two answers: {answer}, {message}"
                    assert message["id"] == id, f"an answer to {message['id']!r} instead of {id!r}: {message}"
                    answer = message
        if answer is None:
            raise Cut(f"no answer to {method} {params}")
        return answer

    async def answer(self, request):
        """Answers a request of the server."""
        result = self.answers[request["method"]]
        result = result(request) if callable(result) else result
        await self.notify_raw({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def notify_raw(self, message):
        status, fields, connection = await self.post(message)
        body = await connection.body(fields)
        self.done(connection, fields)
        if status != 202:
            raise Refused(status, fields, body)

    async def notify(self, method, params=None):
        await self.notify_raw(self.message(method, params))

    async def begin(self):
        """The handshake of the older era."""
        if self.era == MODERN:
            return self
        params = {"protocolVersion": LEGACY, "capabilities": self.capabilities, "clientInfo": self.info}
        message = self.message("initialize", params, id=next(self.ids))
        status, fields, connection = await self.post(message)
        if fields.get("content-type", "").startswith("text/event-stream"):
            messages = [json.loads(event["data"]) async for event in connection.events(fields) if event.get("data")]
            result = messages[-1]
        else:
            body = await connection.body(fields)
            self.done(connection, fields)
            if status >= 300:
                raise Refused(status, fields, body)
            result = json.loads(body)
        if "error" in result:
            raise Told(result["error"])
        self.session = fields["mcp-session-id"]
        await self.notify("notifications/initialized")
        return self

    async def tool(self, name, arguments=None, told=None, **more):
        """The text of a tool's answer."""
        answer = await self.call("tools/call", {"name": name, "arguments": arguments or {}}, told, **more)
        assert "result" in answer, f"{name}: {answer}"
        return answer["result"]["content"][0]["text"]

    async def get(self, last=None, connection=None):
        """Opens the stream of the session, or resumes another one, and returns its status, fields and connection."""
        connection = connection or await self.open()
        self.all.add(connection)
        fields = {name: value for name, value in self.fields().items() if name != "Content-Type"}
        fields["Accept"] = "text/event-stream"
        if last is not None:
            fields["Last-Event-ID"] = last
        await connection.send(self.address.head("GET", fields))
        status, fields = await connection.head("the answer to GET")
        return status, fields, connection

    async def end(self):
        """Ends the session; returns the status."""
        connection = await self.open()
        await connection.send(self.address.head("DELETE", {**self.fields(), "Content-Length": 0}))
        status, _ = await connection.head("the answer to DELETE")
        connection.close()
        self.leave()
        return status

    def leave(self, abruptly=False):
        """Closes its connections without ending the session."""
        for connection in self.all:
            connection.abort() if abruptly else connection.close()
        self.all.clear()
        self.free.clear()
