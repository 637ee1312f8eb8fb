"""The targets of the MCP tests: a daemon with servers behind its HTTP listener, and the reference, which is the same
server over the SDK's own HTTP.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "clients")]

from daemon import Daemon  # noqa: E402
from wire import PATIENCE, until  # noqa: E402

PACKAGES = os.path.join(HERE, "node_modules", "@modelcontextprotocol")
NODE = os.environ.get("STDIO_BUS_MCP_NODE", "node")


def everything(id, assignment, instances=1, **more):
    return {"id": id, "command": NODE, "args": [os.path.join(HERE, "everything.mjs")], "instances": instances,
            "assignment": assignment, **more}


# A server that answers at once and keeps nothing: time and memory are spent by the daemon. It supports both eras, since
# it does not distinguish clients.
QUICK = r"""
import json, sys, time
def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == "initialize":
        say({"id": id, "result": {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "quick", "version": "1"},
                                  "capabilities": {"tools": {"listChanged": True}}}})
    elif method == "server/discover" and "legacy" not in sys.argv:
        say({"id": id, "result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0,
                                  "cacheScope": "private", "capabilities": {"tools": {}}}})
    elif method == "tools/list":
        say({"id": id, "result": {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"}})
    elif method == "tools/call":
        arguments = params["arguments"]
        for number in range(arguments.get("flood", 0)):
            say({"method": "notifications/progress", "params": {"progressToken": params["_meta"]["progressToken"],
                 "progress": number, "message": "x" * arguments.get("bytes", 0)}})
        say({"id": id, "result": {"resultType": "complete", "content": [{"type": "text", "text": arguments.get("text", "")}]}})
    elif method == "ping":
        say({"id": id, "result": {}})
    else:
        say({"id": id, "error": {"code": -32601, "message": "Method not found"}})
"""


def quick(id, assignment, instances=1, *arguments, **more):
    return {"id": id, "command": sys.executable, "args": ["-c", QUICK, *arguments], "instances": instances,
            "assignment": assignment, **more}


class Site:
    """A daemon whose MCP listener offers these pools, each at a path of its own."""

    # Whether clients share a process.
    shares = True

    def __init__(self, pools, listener=None, **settings):
        self.folder = tempfile.TemporaryDirectory()
        self.admin = settings.setdefault("admin", {"listen": f"unix:{self.folder.name}/admin"})["listen"]
        listeners = [{"http": "127.0.0.1:0", **(listener or {})}]
        self.daemon = Daemon(pools, listeners, **settings)
        self.pid = self.daemon.process.pid

    def url(self, pool=None):
        return self.daemon.urls[0] + (f"/{pool}" if pool else "")

    def __enter__(self):
        self.daemon.__enter__()
        return self

    def __exit__(self, *error):
        self.daemon.__exit__(*error)
        self.folder.cleanup()

    async def ask(self, path):
        """The body of the admin listener's response."""
        kind, _, place = self.admin.partition(":")
        opened = asyncio.open_unix_connection(place) if kind == "unix" else asyncio.open_connection(kind, place)
        reader, writer = await asyncio.wait_for(opened, PATIENCE)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    async def gauge(self, name, **labels):
        """The sum of a metric in /metrics over samples with these labels."""
        _, text = await self.ask("/metrics")
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            family, _, rest = series.partition("{")
            if family == name and all(f'{label}="{wanted}"' in rest for label, wanted in labels.items()):
                total += float(value)
        return total

    async def ready(self):
        async def is_ready():
            try:
                return (await self.ask("/readyz"))[0] == 200
            except OSError:
                return False
        await until("the daemon is ready", is_ready)

    def children(self):
        """Its processes, without zombies."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == self.pid and state != "Z":
                found.append(int(pid))
        return found

    def memory(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self):
        """CPU time of its own process in seconds."""
        with open(f"/proc/{self.pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9

    async def figures(self):
        """What has to be as before: descriptors, processes, sessions."""
        children = len(self.children())
        sessions = int(await self.gauge("stdio_bus_clients"))
        # The connection of the last query may still be open.
        connections = int(await self.gauge("stdio_bus_admin_connections"))
        return {"descriptors": len(os.listdir(f"/proc/{self.pid}/fd")) - connections + 1, "processes": children,
                "sessions": sessions, "pending": int(await self.gauge("stdio_bus_requests_pending"))}

    async def settled(self, wanted=None):
        """Waits until its figures are these, or have been stable for a while, and returns them."""
        seen = [None] * 4

        async def are_they():
            seen.append(await self.figures())
            if wanted is not None:
                return seen[-1] == wanted
            await asyncio.sleep(0.1)
            return seen[-1] == seen[-2] == seen[-3] == seen[-4]
        try:
            await until("the figures are as before", are_they)
        except AssertionError:
            raise AssertionError(f"the figures stay {seen[-1]} instead of {wanted}") from None
        return seen[-1]


class Reference:
    """The everything-server without a daemon. Its pools are all the same."""

    shares = False

    def __init__(self):
        self.process = subprocess.Popen([NODE, os.path.join(HERE, "reference.mjs")], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()

    def url(self, _pool=None):
        return self.address

    async def ready(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.terminate()
        self.process.wait(PATIENCE)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
