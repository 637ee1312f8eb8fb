"""The official Python client of ACP's Streamable HTTP, unmodified, where what it meets is special: acp_http.py URL COUNT.
COUNT of them at once, each with two sessions on one connection; the agent is agent_http.py."""

import asyncio
import sys

import acp
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


async def main():
    url, count = sys.argv[1:]
    await asyncio.gather(*(one(url, number) for number in range(int(count))))


asyncio.run(main())
