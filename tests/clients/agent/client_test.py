"""openai-agent with the official Python SDK as the client and aimock as the endpoint, alone and behind the bus."""

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import acp
from acp.schema import ClientCapabilities

HERE = Path(__file__).parent
AGENT = os.environ["OPENAI_AGENT_BIN"]
BUS = os.environ.get("STDIO_BUS_BIN")


class Recorder(acp.Client):
    """Stores the updates, and wakes the waiter for the next one."""

    def __init__(self):
        self.updates = []
        self.more = asyncio.Event()

    async def session_update(self, session_id, update, **kwargs):
        self.updates.append((session_id, update))
        self.more.set()

    def text(self, session_id, kind="agent_message_chunk"):
        mine = (update for owner, update in self.updates if owner == session_id and update.session_update == kind)
        return "".join(update.content.text for update in mine)


@contextlib.contextmanager
def mock():
    """aimock in a process of its own; yields its URL."""
    process = subprocess.Popen(["node", HERE / "mock.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)


def environment(url):
    own = {name: value for name, value in os.environ.items() if not re.match(r"OPENAI_(?!AGENT_BIN)", name)}
    return {**own, "OPENAI_LOG": "error", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "test"}


@contextlib.asynccontextmanager
async def bus(url):
    """Four agents behind the bus; yields the port."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "bus.json"
        pool = {"id": "openai", "command": AGENT, "args": ["acp"], "instances": 4, "assignment": "client"}
        config.write_text(json.dumps({"pools": [pool]}))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            BUS, "--config", str(config), "--tcp", f"127.0.0.1:{port}", env=environment(url), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await listening(port, process)
            yield port
        finally:
            process.terminate()
            code = await process.wait()
        assert code == 0, code


async def listening(port, process):
    """Waits until the port is open."""
    while True:
        assert process.returncode is None, f"the bus ended with {process.returncode}"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            return writer.close()
        except ConnectionRefusedError:
            await asyncio.sleep(0.005)


async def talk(test, agent, recorder, name):
    """The common steps of every client."""
    initialized = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=ClientCapabilities())
    test.assertEqual(initialized.protocol_version, 1)
    test.assertEqual(initialized.agent_info.name, "openai-agent")
    session = await agent.new_session(cwd="/work", mcp_servers=[])
    test.assertEqual(session.config_options[0].current_value, "gpt-4o")
    for turn in range(1, 4):
        answer = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block(f"client {name}")])
        test.assertEqual(answer.stop_reason, "end_turn")
        test.assertEqual(recorder.text(session.session_id), f"I hear client {name}." * turn)
    return session.session_id


class Alone(unittest.IsolatedAsyncioTestCase):
    async def test_the_sdk_talks_to_the_agent(self):
        with mock() as url:
            recorder = Recorder()
            async with acp.spawn_agent_process(recorder, AGENT, "acp", env=environment(url)) as (agent, process):
                session_id = await talk(self, agent, recorder, "7")
                options = await agent.set_config_option("model", session_id, "gpt-5")
                self.assertEqual(options.config_options[0].current_value, "gpt-5")
                listed = await agent.list_sessions()
                self.assertEqual([session.session_id for session in listed.sessions], [session_id])
                answer = await agent.prompt(session_id=session_id, prompt=[acp.text_block("reason")])
                self.assertEqual(recorder.text(session_id, "agent_thought_chunk"), "Two and two.")
                self.assertGreater(answer.usage.total_tokens, 0)

    async def test_a_prompt_is_cancelled(self):
        with mock() as url:
            recorder = Recorder()
            async with acp.spawn_agent_process(recorder, AGENT, "acp", env=environment(url)) as (agent, process):
                await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
                session = await agent.new_session(cwd="/work", mcp_servers=[])
                prompt = agent.prompt(session_id=session.session_id, prompt=[acp.text_block("slowly")])
                running = asyncio.create_task(prompt)
                await recorder.more.wait()
                await agent.cancel(session_id=session.session_id)
                self.assertEqual((await running).stop_reason, "cancelled")

    async def test_unknown_sessions_get_errors(self):
        with mock() as url:
            async with acp.spawn_agent_process(Recorder(), AGENT, "acp", env=environment(url)) as (agent, process):
                await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
                with self.assertRaises(acp.RequestError) as caught:
                    await agent.prompt(session_id="nobody", prompt=[acp.text_block("hello")])
                self.assertEqual(caught.exception.code, -32002)


@unittest.skipUnless(BUS, "STDIO_BUS_BIN does not name the bus")
class BehindTheBus(unittest.IsolatedAsyncioTestCase):
    async def test_eight_clients_talk_to_four_agents(self):
        async def client(port, index):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            recorder = Recorder()
            agent = acp.connect_to_agent(recorder, writer, reader)
            try:
                await talk(self, agent, recorder, str(index))
            finally:
                await agent.close()
                writer.close()

        with mock() as url:
            async with bus(url) as port:
                await asyncio.gather(*(client(port, index) for index in range(8)))


if __name__ == "__main__":
    # unittest runs the loop in debug mode, which reports the start of a process as slow.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    unittest.main(argv=[sys.argv[0], "-v"])
