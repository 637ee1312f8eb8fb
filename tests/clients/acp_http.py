"""The official Python client of ACP's Streamable HTTP, unmodified, where what it meets is special: acp_http.py URL COUNT.
COUNT of them at once, each with two sessions on one connection; with `broken` for COUNT one whose streams break. The agent
is agent_http.py."""

import asyncio
import sys

import acp
import httpx
from acp.http import create_http_stream
from acp.schema import AllowedOutcome, RequestPermissionResponse


class TestClient(acp.Client):
    def __init__(self):
        self.heard = []
        self.something = asyncio.Event()

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))

    async def session_update(self, session_id, update, **kwargs):
        self.heard.append((session_id, update.content.text))
        self.something.set()

    async def hears(self, session, text):
        while (session, text) not in self.heard:
            self.something.clear()
            await asyncio.wait_for(self.something.wait(), 60)


async def one(url, number):
    client = TestClient()
    stream = create_http_stream(url)
    agent = acp.connect_to_agent(client, stream)
    await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
    sessions = [(await agent.new_session(cwd="/", mcp_servers=[])).session_id for _ in range(2)]

    def prompt(session, text):
        return agent.prompt(session_id=session, prompt=[acp.text_block(text)])

    for turn in range(5):
        for session in sessions:
            text = f"{number} {session} {turn}"
            assert (await prompt(session, text)).stop_reason == "end_turn"
            await client.hears(session, f"heard {text}")
    assert (await prompt(sessions[1], "ask")).stop_reason == "end_turn", "it was allowed"
    waiting = asyncio.create_task(prompt(sessions[0], "wait"))
    await client.hears(sessions[0], "heard wait")
    await agent.cancel(session_id=sessions[0])
    assert (await waiting).stop_reason == "cancelled"
    if number == 0:
        long = "x" * (5 << 20)
        assert (await prompt(sessions[0], long)).stop_reason == "end_turn"
        await client.hears(sessions[0], f"heard {long}")
    await stream.close()


class Wires(httpx.AsyncHTTPTransport):
    """HTTP/1.1 whose responses to GET break when they are asked to, as those of a network do. (With HTTP/2 the library tells
    nobody that it has given a stream up.)"""

    def __init__(self):
        super().__init__()
        self.open = {}

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        if request.method == "GET" and response.status_code == 200:
            body = Body(response.stream)
            response = httpx.Response(200, headers=response.headers, stream=body, extensions=response.extensions)
            self.open.setdefault(request.headers.get("Acp-Session-Id"), []).append(body)
        return response


class Body(httpx.AsyncByteStream):
    def __init__(self, stream):
        self.stream, self.breaks = stream, asyncio.Event()

    async def __aiter__(self):
        pieces = aiter(self.stream)
        ends = asyncio.ensure_future(self.breaks.wait())
        while True:
            piece = asyncio.ensure_future(anext(pieces, None))
            await asyncio.wait([ends, piece], return_when=asyncio.FIRST_COMPLETED)
            if self.breaks.is_set():
                piece.cancel()
                await asyncio.wait([piece])
                raise httpx.ReadError("the network broke")
            if piece.result() is None:
                return
            yield piece.result()

    async def aclose(self):
        await self.stream.aclose()


async def broken(url):
    """The stream of a session breaks, and what is said meanwhile comes on the next one, which this client opens as soon as
    a message on the connection's stream names the session."""
    wires, client = Wires(), TestClient()
    async with httpx.AsyncClient(transport=wires, timeout=None) as network:
        stream = create_http_stream(url, client=network)
        agent = acp.connect_to_agent(client, stream)
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = (await agent.new_session(cwd="/", mcp_servers=[])).session_id
        for turn in range(1, 6):
            prompt = [acp.text_block(f"before {turn}")]
            assert (await agent.prompt(session_id=session, prompt=prompt)).stop_reason == "end_turn"
            await client.hears(session, f"heard before {turn}")
            wires.open[session][-1].breaks.set()
            prompt = [acp.text_block(f"meanwhile {turn}")]
            waiting = asyncio.create_task(agent.prompt(session_id=session, prompt=prompt))
            async with asyncio.timeout(60):
                while len(wires.open[session]) == turn:
                    # Until the daemon knows that the reader of the old one has gone, the new one is refused.
                    assert (await agent.ext_method("names", {"session": session}))["sessionId"] == session
                    await asyncio.sleep(0.01)
                assert (await waiting).stop_reason == "end_turn"
                await client.hears(session, f"heard meanwhile {turn}")
        assert len(wires.open[session]) == 6 and len(wires.open[None]) == 1, wires.open
        assert len(client.heard) == 10, f"nothing is heard twice: {client.heard}"
        await stream.close()


async def main():
    url, count = sys.argv[1:]
    if count == "broken":
        return await broken(url)
    await asyncio.gather(*(one(url, number) for number in range(int(count))))


asyncio.run(main())
