"""Many sessions: ten thousand abandoned ones, and a thousand on one worker."""

import asyncio
import os

from mcp_site import Site, quick
from wire import LEGACY, MODERN, Client, until, within

ABANDONED = int(os.environ.get("STDIO_BUS_MCP_ABANDONED", "10000"))
AT_ONCE = 64
MEGABYTE = 1 << 20


async def served(site, pool, era=LEGACY):
    caller = await Client(site.url(pool), era).begin()
    assert await caller.tool("echo", {"text": "here"}) == "here"
    if era == LEGACY:
        await caller.end()
    caller.leave()


async def abandon(site, pool, count):
    """Starts this many sessions, some with a stream, and abandons them."""
    todo = iter(range(count))

    async def some():
        for at in todo:
            caller = await Client(site.url(pool), name=f"abandoned {at}").begin()
            if at % 16 == 0:
                status, _, _ = await caller.get()
                assert status == 200, status
            caller.leave(abruptly=at % 2 == 0)
    async with within(f"{count} sessions", 240):
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def abandoned_sessions_leave_nothing():
    """More sessions than there are places, none of which is ended: new ones find a place, and finally all are gone."""
    pools = [quick("shared", "client"), quick("own", "dedicated", 2, max_instances=16)]
    with Site(pools, limits={"session_idle_sec": 5, "drain_timeout_sec": 5}) as site:
        await site.ready()
        # Each era has its processes once it was used.
        for pool in ("shared", "own"):
            for era in (LEGACY, MODERN):
                await served(site, pool, era)
        before = await site.settled()
        # The tables have grown to their final size.
        await abandon(site, "shared", ABANDONED // 5)
        await site.settled(before)
        memory = site.memory()
        begun = asyncio.get_running_loop().time()
        await abandon(site, "shared", ABANDONED)
        took = asyncio.get_running_loop().time() - begun
        # Each of these gets a process while there are any; others are refused.
        await asyncio.gather(*(abandon(site, "own", 1) for _ in range(12)))
        await served(site, "shared")
        await served(site, "shared", MODERN)
        await site.settled(before)
        grown = site.memory() - memory
        assert grown < 8 * MEGABYTE, f"{grown / MEGABYTE:.1f} MB more than before"
        return f"{ABANDONED} in {took:.0f} s, {grown / MEGABYTE:+.1f} MB"


async def a_thousand_sessions_share_one_process():
    with Site([quick("shared", "client")], limits={"drain_timeout_sec": 5}) as site:
        await site.ready()
        callers = []
        async with within("a thousand sessions", 120):
            for _ in range(10):
                callers += await asyncio.gather(*(Client(site.url(), name=f"one of many {at}").begin() for at in range(100)))

            async def ask(caller, at):
                word = f"word {at}"
                assert await caller.tool("echo", {"text": word}) == word
            await asyncio.gather(*(ask(caller, at) for at, caller in enumerate(callers)))
        figures, memory = await site.figures(), site.memory()
        assert figures["processes"] == 1, figures
        assert memory < 40 * MEGABYTE, f"{memory / MEGABYTE:.1f} MB"
        for caller in callers:
            caller.leave()
        return f"{figures['sessions']} sessions, {memory / MEGABYTE:.1f} MB"


async def only_the_longest_idle_session_is_evicted():
    """All places are taken: sessions with a stream or recent activity stay, the longest idle one is evicted."""
    with Site([quick("shared", "client")], limits={"drain_timeout_sec": 5}) as site:
        await site.ready()
        listening = await Client(site.url(), name="listening").begin()
        status, _, _ = await listening.get()
        assert status == 200, status
        active = await Client(site.url(), name="active").begin()
        first = await Client(site.url(), name="first").begin()
        await asyncio.sleep(0.1)
        for _ in range(11):
            await asyncio.gather(*(Client(site.url(), keeps=False).begin() for _ in range(100)))
            assert await active.tool("echo", {"text": "active"}) == "active"
        status, fields, connection = await first.post(first.message("tools/list", id=9))
        assert status == 404, f"the longest idle session is answered with {status}"
        connection.close()
        assert await active.tool("echo", {"text": "active"}) == "active"
        assert await listening.tool("echo", {"text": "listening"}) == "listening"

        async def is_told():
            return await site.gauge("stdio_bus_clients") <= 1024
        await until("no more sessions than there are places", is_told)
        for caller in (listening, active, first):
            caller.leave()


def cases():
    for case in (a_thousand_sessions_share_one_process, only_the_longest_idle_session_is_evicted,
                 abandoned_sessions_leave_nothing):
        yield case.__name__, case
