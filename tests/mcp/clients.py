"""The official clients against an MCP listener: TypeScript's and Python's of both lines, and Rust's. Their scenarios
are in client.mjs, client.py and client/src/main.rs; here they are started and their output is read. And official
servers behind the listener, and the inspector's command line.
"""

import asyncio
import collections
import json
import os
import re
import subprocess
import tempfile

from cases import Skipped
from mcp_site import HERE, NODE, PACKAGES, Site, everything
from wire import Address, within

VENVS = os.environ.get("STDIO_BUS_MCP_VENVS", "")
RUST = os.environ.get("STDIO_BUS_MCP_RMCP", "")
PATIENCE = 180

CLIENTS = {
    "typescript_1": ["legacy"],
    "typescript_2": ["legacy", "modern"],
    "python_1": ["legacy"],
    "python_2": ["legacy", "modern"],
    "rmcp": ["legacy", "modern"],
}


def command(client):
    language, _, line = client.partition("_")
    if language == "typescript":
        return [NODE, os.path.join(HERE, "client.mjs")], line
    if language == "python":
        python = os.path.join(VENVS, line, "bin", "python")
        if not os.path.exists(python):
            raise Skipped(f"PyPI's mcp {line} is not installed")
        return [python, "-W", "ignore", os.path.join(HERE, "client.py")], line
    if not os.path.exists(RUST):
        raise Skipped("the client of rmcp is not built")
    return [RUST], "3"


class Cutter:
    """A proxy that cuts all connections of a session once, abruptly, after the second step of a slow call has passed;
    of clients without sessions it cuts only that connection."""

    MARK = re.compile(rb'"progress": ?2\b')
    SESSION = re.compile(rb"^mcp-session-id: *(\S+)\r$", re.I | re.M)

    def __init__(self, url):
        self.target = Address(url)
        self.cut = set()
        self.open = collections.defaultdict(set)
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}{self.target.path}"
        return self

    async def __aexit__(self, *_error):
        self.server.close()
        for task in self.tasks:
            task.cancel()

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            there, back = await asyncio.open_connection(self.target.host, self.target.port)
        except OSError:
            writer.close()
            return
        both = {writer, back}
        session = [None]
        try:
            await asyncio.gather(self.up(reader, back, session, both), self.down(there, writer, session, both))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.open[session[0]] -= both
            for one in both:
                one.close()
            self.tasks.discard(asyncio.current_task())

    async def up(self, reader, back, session, both):
        while data := await reader.read(65536):
            if found := self.SESSION.search(data):
                session[0] = found[1]
                self.open[session[0]] |= both
            back.write(data)
            await back.drain()
        back.write_eof()

    async def down(self, there, writer, session, both):
        while data := await there.read(65536):
            writer.write(data)
            await writer.drain()
            name = session[0] or id(both)
            if self.MARK.search(data) and name not in self.cut:
                self.cut.add(name)
                for one in self.open[session[0]] | both if session[0] else both:
                    one.transport.abort()
                return
        writer.write_eof()


async def drive(arguments, what):
    """Runs a client's program, and reads the results of its scenarios."""
    process = await asyncio.create_subprocess_exec(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE)
    doing, wrong, passed, left = "its start", [], [], []
    errors = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(PATIENCE):
            while line := (await process.stdout.readline()).decode(errors="replace").strip():
                verdict, _, rest = line.partition(" ")
                if verdict == "begin":
                    doing = rest
                elif verdict == "ok":
                    passed.append(rest)
                elif verdict == "skip":
                    left.append(rest)
                elif line.startswith("not ok "):
                    wrong.append(line.removeprefix("not ok "))
            await process.wait()
    except TimeoutError:
        wrong.append(f"{what} hung for {PATIENCE} s in {doing}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = (await errors).decode(errors="replace")
    if process.returncode != 0 and not wrong:
        wrong.append(f"{what} exited with {process.returncode} in {doing}")
    assert not wrong, "\n".join(wrong) + (f"\nit said: {said[-3000:]}" if said else "")
    assert passed, f"{what} did nothing: {said[-3000:]}"
    return f"{len(passed)} scenarios" + (f", without {' '.join(left)}" if left else "")


async def client(site, name, era, pool):
    program, line = command(name)
    async with Cutter(site.url(pool)) as cutter:
        asked = {"line": line, "era": era, "pool": pool, "url": site.url(pool), "cut": cutter.url}
        return await drive([*program, json.dumps(asked)], f"{name}, {era}, {pool}")


def cases():
    for name, eras in CLIENTS.items():
        for era in eras:
            for pool in ("own", "shared"):
                async def case(site, name=name, era=era, pool=pool):
                    return await client(site, name, era, pool)
                yield f"an_official_{name}_client_{era}_in_a_{pool}_pool", case


def server(id, *arguments, assignment="dedicated", **more):
    return {"id": id, "command": NODE, "args": [os.path.join(PACKAGES, f"server-{id}", "dist", "index.js"), *arguments],
            "instances": 1, "assignment": assignment, "max_instances": 8, **more}


def of_servers(folder):
    files = os.path.join(folder, "files")
    os.makedirs(files, exist_ok=True)
    memory = {"MEMORY_FILE_PATH": os.path.join(folder, "memory.json")}
    pools = [server("everything", "stdio"), server("filesystem", files), server("memory", env=memory)]
    pools += [{**pool, "id": pool["id"] + "-shared", "assignment": "client"} for pool in pools]
    for pool in pools[3:]:
        del pool["max_instances"]
    return Site(pools, limits={"drain_timeout_sec": 5}), files


async def official_servers_are_served_in_pools_of_each_kind():
    with tempfile.TemporaryDirectory() as folder:
        site, files = of_servers(folder)
        with site:
            await site.ready()
            urls = {pool: site.url(pool) for pool in
                    ("everything", "filesystem", "memory", "everything-shared", "filesystem-shared", "memory-shared")}
            return await drive([NODE, os.path.join(HERE, "servers.mjs"), json.dumps({"urls": urls, "files": files})],
                               "servers.mjs")


async def inspect(*arguments):
    """The output of the inspector's command line."""
    program = os.path.join(HERE, "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
    process = await asyncio.create_subprocess_exec(
        NODE, program, "--cli", *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        async with within(f"the inspector with {arguments}", 60):
            told, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"the inspector with {arguments} exited with {process.returncode}: {errors.decode()[-2000:]}"
    return json.loads(told)


async def the_inspectors_command_line_lists_calls_and_reads():
    with Site([everything("own", "dedicated", 1, max_instances=8), everything("shared", "client")]) as site:
        await site.ready()
        for pool in ("own", "shared"):
            at = [site.url(pool), "--transport", "http"]
            tools = await inspect(*at, "--method", "tools/list")
            assert "echo" in [tool["name"] for tool in tools["tools"]], tools
            called = await inspect(*at, "--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=inspected")
            assert called["content"][0]["text"] == "inspected", called
            read = await inspect(*at, "--method", "resources/read", "--uri", "test://static-text")
            assert read["contents"][0]["uri"] == "test://static-text", read
            prompts = await inspect(*at, "--method", "prompts/list")
            assert len(prompts["prompts"]) > 3, prompts


def servers():
    for case in (official_servers_are_served_in_pools_of_each_kind, the_inspectors_command_line_lists_calls_and_reads):
        yield case.__name__, case
