"""The official Python client of either line against an MCP listener: `client.py JSON`, equivalent to client.mjs. It
prints each scenario and its result.
"""

import contextlib
import json
import os
import ssl
import sys
import tempfile
import time
import traceback

import anyio
import mcp
import mcp.types as types

ASKED = json.loads(sys.argv[1])
LINE, ERA, POOL, URL, CUT = (ASKED[name] for name in ("line", "era", "pool", "url", "cut"))
# The certificate that it trusts: if given, it uses TLS and HTTP/2.
TRUST = ASKED.get("trust")
# A folder: only asks for a restart of the daemon there, between two calls.
RESTART = ASKED.get("restart")
IS_MODERN = ERA == "modern"
# Without a session, each request has a process of its own in a dedicated pool: other processes do not report its
# changes.
MEETS = not IS_MODERN or POOL == "shared"
HEARS_ALL = IS_MODERN or POOL == "own"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class Guest:
    """A client, with what it has received."""

    def __init__(self, name):
        self.name = name
        self.asked, self.logged, self.changed, self.updated = [], [], [], []

    async def sample(self, _context, params):
        self.asked.append("sampling")
        content = params.messages[0].content
        content = content[0] if isinstance(content, list) else content
        answer = types.TextContent(type="text", text=f"{self.name} sampled {content.text}")
        return types.CreateMessageResult(role="assistant", content=answer, model="none")

    async def elicit(self, _context, _params):
        self.asked.append("elicitation")
        return types.ElicitResult(action="accept", content={"username": self.name, "email": f"{self.name}@example.com",
                                                            "ok": True})

    async def roots(self, _context):
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///home/{self.name}", name=self.name)])

    async def log(self, params):
        self.logged.append(params.data)

    async def hear(self, message):
        message = getattr(message, "root", message)
        if isinstance(message, types.ToolListChangedNotification):
            self.changed.append(True)
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updated.append(str(message.params.uri))

    @contextlib.asynccontextmanager
    async def connected(self, url=URL):
        callbacks = {"sampling_callback": self.sample, "elicitation_callback": self.elicit,
                     "list_roots_callback": self.roots, "logging_callback": self.log, "message_handler": self.hear}
        async with transport(url) as way:
            async with self.over(way, callbacks):
                yield self

    @contextlib.asynccontextmanager
    async def over(self, way, callbacks):
        if LINE == "2":
            async with mcp.Client(way, mode="auto" if IS_MODERN else "legacy", **callbacks) as self.client:
                yield self
        else:
            async with way as (reads, writes, _):
                async with mcp.ClientSession(reads, writes, **callbacks) as self.client:
                    await self.client.initialize()
                    yield self

    async def call(self, tool, arguments=None, told=None, meta=None):
        async def tell(progress, _total, _message):
            told.append(int(progress))
        with within(f"the answer to {tool} of {self.name}"):
            result = await self.client.call_tool(tool, arguments or {}, progress_callback=None if told is None else tell,
                                                 meta=meta)
        return result.content[0].text

    async def slow(self, name, time, steps):
        told = []
        answer = await self.call("slow", {"name": name, "time": time, "steps": steps}, told)
        assert answer == f"{name} is done", answer
        # The last one may be reported a moment after the answer.
        await until(f"all progress of {name}: {told}", lambda: told == list(range(1, steps + 1)))


@contextlib.asynccontextmanager
async def transport(url):
    from mcp.client.streamable_http import streamable_http_client
    if TRUST is None:
        yield url if LINE == "2" else streamable_http_client(url)
        return
    library = __import__("httpx2" if LINE == "2" else "httpx")

    async def is_http_2(response):
        assert response.http_version == "HTTP/2", response.http_version
    trust = ssl.create_default_context(cafile=TRUST)
    timeout = library.Timeout(30, read=300)
    async with library.AsyncClient(http2=True, verify=trust, timeout=timeout, event_hooks={"response": [is_http_2]}) as http:
        yield streamable_http_client(url, http_client=http)


@contextlib.contextmanager
def within(what, seconds=45):
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"hung for {seconds} s: {what}") from None


async def until(what, condition):
    with within(what, 30):
        while not condition():
            await anyio.sleep(0.05)


def said(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


async def tools(guest):
    if LINE == "2":
        version = guest.client.protocol_version
        assert version == ("2026-07-28" if IS_MODERN else "2025-11-25"), version
    listed = await guest.client.list_tools()
    assert "echo" in [tool.name for tool in listed.tools]
    assert await guest.call("echo", {"text": "zwölf ☃ 𝄞"}) == "zwölf ☃ 𝄞"
    long = "x" * 500_000
    assert await guest.call("echo", {"text": long}) == long
    assert len((await guest.client.list_prompts()).prompts) > 3
    assert len((await guest.client.list_resources()).resources) > 2


async def progress(guest):
    await guest.slow("a slow call", 200, 4)


async def cancel(guest):
    if TRUST and IS_MODERN:
        # Over HTTP/2 the library does not report that a stream was closed.
        return "left out"
    with tempfile.TemporaryDirectory() as folder:
        fate, told = os.path.join(folder, "fate"), []
        arguments = {"name": "cancelled", "time": 30_000, "steps": 300, "fate": fate}
        async with anyio.create_task_group() as group:
            async def call():
                with contextlib.suppress(mcp.McpError if LINE == "1" else mcp.MCPError):
                    await guest.call("slow", arguments, told)
            next_id = getattr(guest.client, "_request_id", None)
            group.start_soon(call)
            await until("progress", lambda: len(told) >= 2)
            if LINE == "1":
                # Its callers have to notify the server themselves.
                params = types.CancelledNotificationParams(requestId=next_id)
                await guest.client.send_notification(
                    types.ClientNotification(types.CancelledNotification(method="notifications/cancelled", params=params)))
                await until("the server is notified of the cancellation", lambda: said(fate) == "cancelled\n")
            group.cancel_scope.cancel()
        await until("the server is notified of the cancellation", lambda: said(fate) == "cancelled\n")
    assert await guest.call("echo", {"text": "after it"}) == "after it"


async def list_changed(guest):
    for turn in range(2):
        if IS_MODERN:
            # Again after a cancellation.
            async with guest.client.listen(tools_list_changed=True) as listening:
                if not MEETS:
                    continue
                await guest.call("test_trigger_tool_change")
                with within("the notification of a changed list"):
                    await listening.__anext__()
        else:
            await guest.call("test_trigger_tool_change")
            await until("the notification of a changed list", lambda: len(guest.changed) > turn)


async def resource_updates(guest):
    if not HEARS_ALL or not MEETS:
        return "left out"
    uri, other = "test://watched-resource", "test://static-text"
    if IS_MODERN:
        async with guest.client.listen(resource_subscriptions=[uri]) as listening:
            await guest.call("touch", {"uri": other})
            await guest.call("touch", {"uri": uri})
            with within("the notification of an updated resource"):
                event = await listening.__anext__()
            assert str(event.uri) == uri, event
    else:
        await guest.client.subscribe_resource(uri)
        await guest.call("touch", {"uri": uri})
        await until("the notification of an updated resource", lambda: guest.updated == [uri])
        await guest.client.unsubscribe_resource(uri)


async def sampling(guest):
    if not HEARS_ALL:
        return "left out"
    told = await guest.call("test_sampling", {"prompt": "a question"})
    assert f"{guest.name} sampled a question" in told, told


async def elicitation(guest):
    if not HEARS_ALL:
        return "left out"
    told = await guest.call("test_elicitation", {"message": "who?"})
    assert f"{guest.name}@example.com" in told, told


async def roots(guest):
    if not HEARS_ALL:
        return "left out"
    told = await guest.call("test_input_required_result_list_roots")
    assert told == f"roots: file:///home/{guest.name}", told


async def state(guest):
    if not IS_MODERN:
        return "left out"
    for _ in range(5):
        told = await guest.call("test_input_required_result_request_state")
        assert told.startswith("state-ok"), told


async def logging(guest):
    if POOL == "shared":
        return "left out"
    if not IS_MODERN:
        await guest.client.set_logging_level("info")
    await guest.call("test_tool_with_logging", meta={LOG_LEVEL: "info"} if IS_MODERN else None)
    await until("three messages of the log", lambda: len(guest.logged) == 3)


async def reconnect(_guest):
    if CUT is None:
        return "left out"
    cut_off = Guest("cut-off")
    async with cut_off.connected(CUT):
        if IS_MODERN:
            with tempfile.TemporaryDirectory() as folder:
                fate = os.path.join(folder, "fate")
                try:
                    await cut_off.call("slow", {"name": "cut", "time": 20_000, "steps": 100, "fate": fate}, [])
                    raise AssertionError("a call whose connection was cut has an answer")
                except mcp.MCPError:
                    pass
                await until("the server is notified that its client is gone", lambda: said(fate) == "cancelled\n")
        else:
            await cut_off.slow("cut", 1500, 5)
        assert await cut_off.call("echo", {"text": "after it"}) == "after it"


async def many(count):
    async def one(at):
        guest = Guest(f"guest {at} of {count}")
        async with guest.connected():
            for turn in range(3):
                text = f"guest {at}, turn {turn}"
                async with anyio.create_task_group() as group:
                    async def echo():
                        told = await guest.call("echo", {"text": text})
                        assert told == text, told
                    group.start_soon(echo)
                    group.start_soon(guest.slow, text, 100, 2 + at % 5)
            if HEARS_ALL:
                told = await guest.call("test_sampling", {"prompt": "x"})
                assert told == f"LLM response: {guest.name} sampled x", told
    async with anyio.create_task_group() as group:
        for at in range(count):
            group.start_soon(one, at)


async def restart(guest):
    assert await guest.call("echo", {"text": "before it"}) == "before it"
    with open(os.path.join(RESTART, "asks"), "w"):
        pass
    await until("the daemon runs again", lambda: os.path.exists(os.path.join(RESTART, "done")))
    assert await guest.call("echo", {"text": "after it"}) == "after it"


async def two_at_once(_guest):
    await many(2)


async def sixteen_at_once(_guest):
    await many(16)


SCENARIOS = [tools, progress, cancel, list_changed, resource_updates, sampling, elicitation, roots, state, logging,
             reconnect, two_at_once, sixteen_at_once]


async def main():
    failed = 0
    guest = Guest("guest")
    async with guest.connected():
        for scenario in [restart] if RESTART else SCENARIOS:
            name = scenario.__name__
            print(f"begin {name}", flush=True)
            begun = time.monotonic()
            try:
                left_out = await scenario(guest)
                print(f"skip {name}" if left_out else f"ok {name} {1000 * (time.monotonic() - begun):.0f}", flush=True)
            except Exception as error:  # Any failure is reported, and the next scenario runs.
                failed += 1
                told = " | ".join(line.strip() for line in "".join(traceback.format_exception(error)).splitlines()[-12:])
                print(f"not ok {name}: {told}", flush=True)
    return failed

sys.exit(anyio.run(main) != 0)
