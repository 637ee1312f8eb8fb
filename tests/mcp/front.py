"""HAProxy with config/haproxy-mcp.cfg in front of two daemons: official clients come over TLS and HTTP/2, a session stays
with its daemon, and a call whose client is gone is cancelled at its server.
"""

import asyncio
import json
import os
import shutil
import ssl
import tempfile

import balancer
from cases import Skipped
from clients import command, drive
from mcp_site import Site, everything, free_port
from wire import LEGACY, Client, Connection, within


class Daemons:
    """Two daemons, and HAProxy."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        balancer.certificates(folder)
        self.sites, self.proxy = [], None

    async def __aenter__(self):
        try:
            for _ in range(2):
                pools = [everything("own", "dedicated", 2, max_instances=40), everything("shared", "client")]
                self.sites.append(Site(pools, {"trusted_proxies": ["127.0.0.1"]}, limits={"drain_timeout_sec": 5}))
            for site in self.sites:
                await site.ready()
            ports = [site.url().split(":")[2].split("/")[0] for site in self.sites]
            changes = [(f"^( *server .*) 127.0.0.1:900{at}$", rf"\g<1> 127.0.0.1:{port}") for at, port in enumerate(ports, 1)]
            changes += [("bind :9443 ", f"bind 127.0.0.1:{self.port} "),
                        # Who came over HTTP/1.1 would prove less.
                        ("alpn h2,http/1.1", "alpn h2"), ("/etc/haproxy/agents.pem", os.path.join(self.folder, "localhost.pem"))]
            self.proxy, statistics = balancer.haproxy(self.folder, changes, "mcp", "haproxy-mcp.cfg")
            await balancer.until("HAProxy runs", lambda: balancer.exists(statistics))
            await balancer.until("both are up", lambda: balancer.are_seen(statistics, {"bus1": "UP", "bus2": "UP"}))
            return self
        except BaseException:
            self.end(True)
            raise

    async def __aexit__(self, kind, *_error):
        self.end(kind)

    def end(self, failed):
        if self.proxy:
            self.proxy.terminate()
            self.proxy.wait(30)
        for site in self.sites:
            site.__exit__(failed, failed, None)

    def url(self, pool):
        return f"https://localhost:{self.port}/mcp/{pool}"


def skip_without_haproxy():
    for program in ("haproxy", "openssl"):
        if not shutil.which(program):
            raise Skipped(f"{program} is not installed")


async def official_clients_come_over_tls_and_http_2_through_haproxy():
    skip_without_haproxy()
    told = []
    with tempfile.TemporaryDirectory() as folder:
        async with Daemons(folder) as daemons:
            before = [await site.settled() for site in daemons.sites]
            for name, era, pool in (("python_1", "legacy", "own"), ("python_2", "modern", "shared"),
                                    ("typescript_2", "modern", "shared"), ("typescript_2", "legacy", "own")):
                program, line = command(name)
                asked = {"line": line, "era": era, "pool": pool, "url": daemons.url(pool), "cut": None,
                         "trust": os.path.join(folder, "ca.pem")}
                told.append(await drive([*program, json.dumps(asked)], f"{name}, {era}, {pool}, through HAProxy"))
            # HAProxy keeps connections to the daemons for those who come later.
            for site, figures in zip(daemons.sites, before):
                after = await site.settled()
                assert (after["processes"], after["sessions"]) == (figures["processes"], figures["sessions"]), (figures, after)
    return ", ".join(told)


async def sessions_stay_with_their_daemon_behind_haproxy():
    skip_without_haproxy()
    with tempfile.TemporaryDirectory() as folder:
        async with Daemons(folder) as daemons:
            trust = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))

            class Secure(Client):
                async def connection(self):
                    if self.free:
                        return self.free.pop()
                    # From many addresses, so that both daemons have some.
                    made = await Connection.open(self.address, ssl=trust, server_hostname="localhost",
                                                 local_addr=(self.source, 0))
                    self.all.add(made)
                    return made

            async def comes(number):
                caller = Secure(daemons.url("shared"), LEGACY, keeps=False, name=f"guest {number}")
                caller.source = f"127.0.0.{10 + number}"
                caller.address.host = "127.0.0.1"
                await caller.begin()
                for turn in range(5):
                    # Another address: the session is what counts.
                    caller.source = f"127.0.1.{10 + number + turn}"
                    assert await caller.tool("echo", {"text": f"{number} {turn}"}) == f"{number} {turn}"
                caller.leave()
            async with within("all guests"):
                await asyncio.gather(*(comes(number) for number in range(20)))
            sessions = [int(await site.gauge("stdio_bus_clients")) for site in daemons.sites]
            assert sum(sessions) == 20 and all(sessions), f"sessions of the daemons: {sessions}"
            for site in daemons.sites:
                opened = [line for line in site.daemon.log if "client_opened" in line]
                assert opened and all("from=127.0.0." in line for line in opened), opened[:3]
            return f"{sessions[0]} and {sessions[1]} sessions"


def cases():
    for case in (official_clients_come_over_tls_and_http_2_through_haproxy, sessions_stay_with_their_daemon_behind_haproxy):
        yield case.__name__, case
