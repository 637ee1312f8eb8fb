"""HAProxy with config/haproxy-mcp.cfg in front of three daemons: official clients use TLS and HTTP/2, a call whose
client is gone is cancelled at its server, and with two HAProxy instances sessions stay on their daemon when one HAProxy
is killed, one daemon restarted and one killed.
"""

import asyncio
import collections
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time

import balancer
from cases import Skipped
from clients import command, drive
from mcp_site import Site, everything, quick
from wire import LEGACY, MODERN, PATIENCE, Client, Connection, Refused, Told, within

# Of each era.
CLIENTS = 200


class Fleet:
    """Three daemons behind one or two HAProxy instances. The last daemon's name is not that of a HAProxy server."""

    def __init__(self, folder, pools, names=("lb1",), changes=(), **settings):
        self.folder, self.pools, self.changes, self.settings = folder, pools, changes, settings
        ports = balancer.free_ports(len(names) + 2 + 2 * 3)
        self.peers, self.places = [ports.pop(), ports.pop()], [(ports.pop(), ports.pop()) for _ in range(3)]
        self.fronts = dict(zip(names, ports))
        self.nodes = ["bus1", "bus2", "elsewhere"]
        balancer.certificates(folder)
        self.sites, self.proxies, self.statistics = [None] * 3, {}, {}

    async def __aenter__(self):
        try:
            for at in range(3):
                await self.start(at)
            for name in self.fronts:
                await self.put_in_front(name)
            return self
        except BaseException:
            self.end(True)
            raise

    async def __aexit__(self, kind, *_error):
        self.end(kind)

    def end(self, failed):
        for proxy in self.proxies.values():
            proxy.kill()
            proxy.wait(30)
        hurry(*filter(None, self.sites), failed=failed)

    async def start(self, at):
        port, admin = self.places[at]
        listener = {"http": f"127.0.0.1:{port}", "trusted_proxies": ["127.0.0.1"]}
        self.sites[at] = Site(self.pools, listener, admin={"listen": f"127.0.0.1:{admin}"}, node=self.nodes[at], **self.settings)
        await self.sites[at].ready()

    async def put_in_front(self, name):
        changes = []
        for at, (port, admin) in enumerate(self.places, 1):
            changes.append((f"127.0.0.1:900{at} port 910{at}$", f"127.0.0.1:{port} port {admin}"))
            changes.append((f"127.0.0.1:900{at} track", f"127.0.0.1:{port} track"))
        changes += [(f"127.0.0.1:1000{at}$", f"127.0.0.1:{port}") for at, port in enumerate(self.peers, 1)]
        changes += [("bind :9443 ", f"bind 127.0.0.1:{self.fronts[name]} "),
                    ("/etc/haproxy/agents.pem", os.path.join(self.folder, "localhost.pem")), *self.changes]
        proxy, statistics = balancer.haproxy(self.folder, changes, name, "haproxy-mcp.cfg", ["-L", name])
        self.proxies[name], self.statistics[name] = proxy, statistics
        await balancer.until("HAProxy runs", lambda: balancer.exists(statistics))
        await self.is_seen(name, dict.fromkeys(["bus1", "bus2", "bus3"], "UP"))

    async def is_seen(self, name, wanted):
        await balancer.until(f"{name} sees {wanted}", lambda: balancer.are_seen(self.statistics[name], wanted))

    async def has_learned(self, name, count):
        """Peers learn from each other a moment after the answer that one of them has seen."""
        async def has_all():
            return await balancer.entries(self.statistics[name], "daemons") >= count
        await balancer.until(f"{name} knows {count} sessions", has_all)

    def url(self, pool, name="lb1"):
        return f"https://localhost:{self.fronts[name]}/mcp/{pool}"

    def trust(self):
        return ssl.create_default_context(cafile=os.path.join(self.folder, "ca.pem"))

    async def sessions(self):
        return [int(await site.gauge("stdio_bus_clients")) for site in self.sites]


def hurry(*sites, failed=None):
    """Shuts down unneeded daemons without the delay for load balancers: by a second signal, which must not arrive
    together with the first one."""
    for site in sites:
        site.daemon.drain()
    end = time.monotonic() + PATIENCE
    for site in sites:
        while not has_ended(site.daemon.process) and time.monotonic() < end:
            site.daemon.process.terminate()
    for site in sites:
        site.__exit__(failed, failed, None)


def has_ended(process):
    try:
        return process.wait(0.1) is not None
    except subprocess.TimeoutExpired:
        return False


class Secure(Client):
    """A client over TLS, with a source address of its own."""

    def __init__(self, url, era, trust, source="127.0.0.1", **more):
        super().__init__(url, era, keeps=False, **more)
        self.trust, self.source, self.address.host = trust, source, "127.0.0.1"

    async def open(self):
        return await Connection.open(self.address, ssl=self.trust, server_hostname="localhost", local_addr=(self.source, 0))


def skip_without_haproxy():
    for program in ("haproxy", "openssl"):
        if not shutil.which(program):
            raise Skipped(f"{program} is not installed")


async def official_clients_come_over_tls_and_http_2_through_haproxy():
    skip_without_haproxy()
    told = []
    pools = [everything("own", "dedicated", 2, max_instances=40), everything("shared", "client")]
    # HTTP/1.1 would prove less; and each process of this server only knows its own state.
    changes = [("alpn h2,http/1.1", "alpn h2"), (r"(backend stateless\n *balance) leastconn$", r"\1 source\n    hash-type consistent")]
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(folder, pools, changes=changes, limits={"drain_timeout_sec": 5}) as fleet:
            before = [await site.settled() for site in fleet.sites]
            for name, era, pool in (("python_1", "legacy", "own"), ("python_2", "modern", "shared"),
                                    ("typescript_2", "modern", "shared"), ("typescript_2", "legacy", "own")):
                program, line = command(name)
                asked = {"line": line, "era": era, "pool": pool, "url": fleet.url(pool), "cut": None,
                         "trust": os.path.join(folder, "ca.pem")}
                told.append(await drive([*program, json.dumps(asked)], f"{name}, {era}, {pool}, through HAProxy"))
            # HAProxy keeps connections to the daemons for later clients.
            fleet.proxies["lb1"].terminate()
            for site, figures in zip(fleet.sites, before):
                await site.settled(figures)
    return ", ".join(told)


class Crowd:
    """Clients of both eras behind two HAProxy instances."""

    def __init__(self, fleet):
        self.fleet, trust = fleet, fleet.trust()
        self.trust, names = trust, list(fleet.fronts)
        self.old = [Secure(fleet.url("tools", names[at % 2]), LEGACY, trust, f"127.0.0.{10 + at}", name=f"old {at}")
                    for at in range(CLIENTS)]
        self.new = [Secure(fleet.url("tools", names[at % 2]), MODERN, trust, f"127.0.1.{10 + at}", name=f"new {at}")
                    for at in range(CLIENTS)]
        # One thread does all TLS here.
        self.at_once = asyncio.Semaphore(40)

    async def each(self, clients, what):
        async def one(client):
            async with self.at_once:
                return await what(client)
        async with within("all clients"):
            return await asyncio.gather(*map(one, clients))

    async def ask(self, client):
        text = client.info["name"]
        assert await client.tool("echo", {"text": text}) == text

    def of(self, node):
        return [client for client in self.old if client.session.startswith(f"{node}.")]

    def lives(self):
        return dict(collections.Counter(client.session.split(".")[0] for client in self.old))

    def move(self, name):
        """Clients use this HAProxy from now on."""
        for client in self.old + self.new:
            client.address.port = self.fleet.fronts[name]


async def sessions_stay_when_a_haproxy_is_killed_a_daemon_restarted_and_one_killed():
    skip_without_haproxy()
    limits = {"lame_duck_sec": 120, "quiesce_sec": 5, "drain_timeout_sec": 5}
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(folder, [quick("tools", "client")], ["lb1", "lb2"], limits=limits) as fleet:
            crowd = Crowd(fleet)
            await crowd.each(crowd.old, Client.begin)
            await crowd.each(crowd.old + crowd.new, crowd.ask)
            lives = crowd.lives()
            assert set(lives) == set(fleet.nodes) and sum(lives.values()) == CLIENTS, lives
            for site in fleet.sites:
                opened = [line for line in site.daemon.log if "client_opened" in line]
                assert opened and all("from=127.0." in line for line in opened), opened[:3]

            # The HAProxy instances share what they have learned: nodes that are not servers by name are known only from
            # the table.
            await fleet.has_learned("lb2", CLIENTS)
            fleet.proxies["lb1"].kill()
            crowd.move("lb2")
            await crowd.each(crowd.old + crowd.new, crowd.ask)

            await one_is_restarted(fleet, crowd)
            waited = await one_is_killed(fleet, crowd)
            await crowd.each(crowd.old + crowd.new, crowd.ask)
            return f"{lives}; the clients of the killed one knew within {waited:.2f} s"


async def one_is_restarted(fleet, crowd):
    """Its sessions end, and no new ones start on it."""
    there = crowd.of("bus1")
    fleet.sites[0].daemon.drain()
    await fleet.is_seen("lb2", {"bus1": "NOLB"})
    for _ in range(2):
        await crowd.each(there + crowd.new, crowd.ask)
    assert {await client.end() for client in there} == {204}
    for client in there:
        client.session = None
        await client.begin()
    assert not crowd.of("bus1"), crowd.lives()
    await asyncio.to_thread(hurry, fleet.sites[0])
    fleet.sites[0] = None
    await crowd.each(crowd.old + crowd.new, crowd.ask)
    await fleet.start(0)
    await fleet.is_seen("lb2", {"bus1": "UP"})


async def one_is_killed(fleet, crowd):
    """Clients of that daemon learn at once that their session is gone, and start a new one. Returns how long it took
    until all knew, in seconds."""
    there = crowd.of("bus2")
    assert there
    listening = []
    for client in there[:5]:
        status, fields, connection = await client.get()
        assert status == 200, fields
        listening.append(connection)
    fleet.sites[1].daemon.process.kill()
    killed = time.monotonic()

    async def is_told(client):
        try:
            await crowd.ask(client)
        except Refused as refused:
            return refused.status
        raise AssertionError("a session of a killed daemon answers")
    for connection in listening:
        await connection.ended("the end of a stream of the killed daemon")
    told = await crowd.each(there, is_told)
    waited = time.monotonic() - killed
    assert set(told) == {404}, collections.Counter(told)
    await crowd.each([client for client in crowd.old if client not in there], crowd.ask)
    for client in there:
        client.session = None
    await crowd.each(there, Client.begin)
    fleet.sites[1].daemon.process.wait(30)
    fleet.sites[1].folder.cleanup()
    fleet.sites[1] = None
    return waited


async def sessions_survive_a_full_pool():
    """404 of /readyz keeps newcomers away, and sessions stay where they are."""
    skip_without_haproxy()
    full = dict.fromkeys(["bus1", "bus2", "bus3"], "NOLB")
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(folder, [quick("tools", "dedicated", 1, max_instances=4)], limits={"drain_timeout_sec": 5}) as fleet:
            trust, clients, streams = fleet.trust(), [], []
            async with within("all workers are taken"):
                while len(clients) < 12:
                    client = Secure(fleet.url("tools"), LEGACY, trust, name=f"session {len(clients)}")
                    try:
                        await client.begin()
                    except (Refused, Told):
                        # A check has not shown yet that this daemon is full.
                        await asyncio.sleep(0.1)
                        continue
                    clients.append(client)
                    streams.append((await client.get())[2])
            await fleet.is_seen("lb1", full)
            refused = 0
            for at in range(6):
                try:
                    await Secure(fleet.url("tools"), LEGACY, trust, name=f"late {at}").begin()
                except (Refused, Told):
                    refused += 1
            assert refused == 6, refused
            await asyncio.sleep(4)
            for client in clients:
                text = client.info["name"]
                assert await client.tool("echo", {"text": text}) == text
            await fleet.is_seen("lb1", full)
            return f"{len(streams)} sessions on full daemons, none lost"


def cases():
    for case in (official_clients_come_over_tls_and_http_2_through_haproxy,
                 sessions_stay_when_a_haproxy_is_killed_a_daemon_restarted_and_one_killed,
                 sessions_survive_a_full_pool):
        yield case.__name__, case
