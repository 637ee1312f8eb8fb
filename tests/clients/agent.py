"""An ACP agent on the Python SDK, equivalent to agent.js; its sessions are numbered from 0, too."""

import asyncio
import os

import acp
from acp.schema import AllowedOutcome, PermissionOption, ToolCallUpdate


class TestAgent(acp.Agent):
    def __init__(self):
        self.sessions = {}

    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, **kwargs):
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION)

    async def new_session(self, cwd, **kwargs):
        session_id = str(len(self.sessions))
        self.sessions[session_id] = asyncio.Event()
        return acp.NewSessionResponse(session_id=session_id)

    async def prompt(self, session_id, prompt, **kwargs):
        cancelled = self.sessions[session_id]
        text = prompt[0].text

        async def say(words):
            await self.client.session_update(session_id, acp.update_agent_message_text(words))

        if "crash" in text:
            os._exit(1)
        await say(f"heard {text}")
        if "wait" in text:
            await cancelled.wait()
            return acp.PromptResponse(stop_reason="cancelled")
        answer = await self.client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(tool_call_id="call", title=text),
            options=[PermissionOption(option_id=f"allow {text}", name="Allow", kind="allow_once")],
        )
        assert isinstance(answer.outcome, AllowedOutcome)
        await say(f"may {answer.outcome.option_id}")
        file = await self.client.read_text_file(session_id=session_id, path=f"/{text}")
        await say(f"read {file.content}")
        return acp.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id, **kwargs):
        self.sessions[session_id].set()


asyncio.run(acp.run_agent(TestAgent()))
