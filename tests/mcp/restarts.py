"""A daemon with a `state` is restarted between two calls of each official client: the second one is answered in the same
session.
"""

import asyncio
import json
import os
import subprocess
import tempfile

from clients import CLIENTS, command, drive
from mcp_site import HERE, NODE, Site, everything, free_port
from wire import until, within


class Restarted:
    """A site whose daemon is restarted once, at the same address."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.site = self.start()

    def start(self):
        pools = [everything("tools", "dedicated", 1, max_instances=8)]
        return Site(pools, {"http": f"127.0.0.1:{self.port}"}, state=os.path.join(self.folder, "state"))

    def __enter__(self):
        self.site.__enter__()
        return self

    def __exit__(self, *error):
        self.site.__exit__(*error)

    async def restart(self):
        await asyncio.to_thread(self.site.__exit__, None, None, None)
        self.site = await asyncio.to_thread(self.start)
        self.site.__enter__()
        await self.site.ready()

    def has_restored(self):
        assert any("session_restored" in line for line in self.site.daemon.log), "its session has begun anew"


async def goes_on(name):
    with tempfile.TemporaryDirectory() as folder, Restarted(folder) as it:
        await it.site.ready()
        program, line = command(name)
        url = it.site.url("tools")
        asked = {"line": line, "era": "legacy", "pool": "own", "url": url, "cut": url, "restart": folder}
        client = asyncio.create_task(drive([*program, json.dumps(asked)], f"{name}, restarted"))
        asks, done = (os.path.join(folder, name) for name in ("asks", "done"))

        async def has_asked():
            return os.path.exists(asks) or client.done()
        await until("the client asks for the restart", has_asked)
        if not client.done():
            await it.restart()
            open(done, "w").close()
        told = await client
        it.has_restored()
        return told


async def mcp_remote_continues_in_its_session_after_a_restart():
    program = os.path.join(HERE, "node_modules", "mcp-remote", "dist", "proxy.js")
    with tempfile.TemporaryDirectory() as folder, Restarted(folder) as it:
        await it.site.ready()
        process = await asyncio.create_subprocess_exec(
            NODE, program, it.site.url("tools"), "--transport", "http-only", stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "MCP_REMOTE_CONFIG_DIR": folder})

        def say(**message):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

        async def answer(id):
            async with within(f"the answer to request {id}", 60):
                while line := await process.stdout.readline():
                    message = json.loads(line)
                    if message.get("id") == id and "method" not in message:
                        return message["result"]
            raise AssertionError("mcp-remote has ended")

        async def echo(id):
            say(id=id, method="tools/call", params={"name": "echo", "arguments": {"text": f"call {id}"}})
            called = await answer(id)
            assert called["content"][0]["text"] == f"call {id}", called
        try:
            say(id=1, method="initialize", params={"protocolVersion": "2025-11-25", "capabilities": {},
                                                   "clientInfo": {"name": "test", "version": "1"}})
            await answer(1)
            say(method="notifications/initialized")
            await echo(2)
            await it.restart()
            await echo(3)
        finally:
            process.kill()
            await process.wait()
        it.has_restored()


def cases():
    for name in CLIENTS:
        async def case(name=name):
            return await goes_on(name)
        yield f"an_official_{name}_client_continues_in_its_session_after_a_restart", case
    yield mcp_remote_continues_in_its_session_after_a_restart.__name__, mcp_remote_continues_in_its_session_after_a_restart
