"""ACP clients on the Python SDK: client.py COUNT INITIALIZES SCENARIO ADDRESS..., equivalent to client.js."""

import asyncio
import os
import signal
import sys

import acp
from acp.http import create_http_stream
from acp.schema import AllowedOutcome, ReadTextFileResponse, RequestPermissionResponse
from acp.ws import create_websocket_stream


class TestClient(acp.Client):
    def __init__(self, name):
        self.name = name
        self.heard = []
        self.something = asyncio.Event()

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        assert tool_call.title.startswith(f"{self.name} "), f"{self.name} was asked about {tool_call.title}"
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))

    async def read_text_file(self, session_id, path, **kwargs):
        assert path.startswith(f"/{self.name} "), f"{self.name} was asked for {path}"
        return ReadTextFileResponse(content=f"content of {path}")

    async def session_update(self, session_id, update, **kwargs):
        self.heard.append(update.content.text)
        self.something.set()


async def turns(client, prompt, cancel):
    for turn in range(5):
        client.heard.clear()
        text = f"{client.name} turn {turn}"
        assert (await prompt(f"turn {turn}")).stop_reason == "end_turn"
        # The SDK may deliver the answer before an earlier update.
        while len(client.heard) < 3:
            client.something.clear()
            await client.something.wait()
        assert client.heard == [f"heard {text}", f"may allow {text}", f"read content of /{text}"], client.heard
    client.something.clear()
    waiting = asyncio.create_task(prompt("wait"))
    await client.something.wait()
    await cancel()
    assert (await waiting).stop_reason == "cancelled"


async def vanish(client, prompt, cancel):
    asyncio.create_task(prompt("wait"))
    await client.something.wait()
    print("in the middle of a prompt", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def crash(client, prompt, cancel):
    try:
        await prompt("crash")
    except acp.RequestError as error:
        assert error.data["reason"] == "worker_exited", error.data
    else:
        raise AssertionError("the prompt was answered by a dead worker")


async def one(number, initializes, scenario, address):
    client = TestClient(f"python-{os.getpid()}-{number}")
    kind, _, rest = address.partition(":")
    if kind in ("http", "https"):
        stream = create_http_stream(address)
        agent, leave = acp.connect_to_agent(client, stream), stream.close
    elif kind == "ws":
        stream = await create_websocket_stream(address)
        agent, leave = acp.connect_to_agent(client, stream), stream.close
    else:
        if kind == "unix":
            reader, writer = await asyncio.open_unix_connection(rest)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(rest))
        agent = acp.connect_to_agent(client, writer, reader)

        async def leave():
            writer.close()

    for _ in range(initializes):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
    session = await agent.new_session(cwd="/", mcp_servers=[])

    def prompt(text):
        return agent.prompt(session_id=session.session_id, prompt=[acp.text_block(f"{client.name} {text}")])

    await scenario(client, prompt, lambda: agent.cancel(session_id=session.session_id))
    await leave()


async def main():
    count, initializes, scenario, *addresses = sys.argv[1:]
    run = {"turns": turns, "vanish": vanish, "crash": crash}[scenario]
    await asyncio.gather(
        *(one(number, int(initializes), run, addresses[number % len(addresses)]) for number in range(int(count)))
    )


asyncio.run(main())
