"""Clients of both eras that connect, call, stall and disconnect, and workers that are killed: no answer is lost or
misrouted, and nothing hangs. STDIO_BUS_MCP_CHAOS is the duration in seconds.
"""

import asyncio
import collections
import json
import os
import random
import signal

from mcp_site import Site, everything
from wire import LEGACY, MODERN, Client, Cut, Refused, Told, until, within

SECONDS = float(os.environ.get("STDIO_BUS_MCP_CHAOS", "15"))
SEED = int(os.environ.get("STDIO_BUS_MCP_SEED", random.randrange(1 << 32)))
# The errors that a client may get when its worker has died, or did not exist: by status, and by error code.
STATUSES = {404, 503}
CODES = {-32010, -32011, -32026, -32001, -32000}


class Foreign(AssertionError):
    pass


class Tally(collections.Counter):
    def __init__(self):
        super().__init__()
        self.failed = []

    def fail(self, kind, what):
        self[kind] += 1
        if self[kind] <= 20:
            self.failed.append(f"{kind}: {what}")


class Guest:
    """A client that connects and disconnects."""

    def __init__(self, site, number, pool, era, tally):
        self.site, self.number, self.pool, self.era, self.tally = site, number, pool, era, tally
        self.random = random.Random(f"{SEED} {number}")
        self.caller = None
        self.count = 0

    def word(self):
        self.count += 1
        return f"guest {self.number}, word {self.count}"

    async def run(self, running):
        while running.is_set():
            try:
                await self.visit(running)
            except AssertionError as error:
                self.tally.fail("failed", f"guest {self.number} ({self.pool}, {self.era}): {error}")
            except Told as told:
                if told.error["code"] in CODES:
                    self.tally[f"not begun {told.error['code']}"] += 1
                    await asyncio.sleep(0.05)
                else:
                    self.tally.fail("failed", f"guest {self.number} ({self.pool}, {self.era}) has no session: {told}")
            except Refused as refused:
                # Its session has ended with its worker, or there is no worker: it starts again.
                if refused.status in STATUSES:
                    self.tally[f"refused {refused.status}"] += 1
                    await asyncio.sleep(0.05)
                else:
                    self.tally.fail("failed", f"guest {self.number} ({self.pool}, {self.era}) is refused: {refused}")
            except (Cut, ConnectionError) as error:
                self.tally.fail("failed", f"guest {self.number} ({self.pool}, {self.era}) lost an answer: {error!r}")
            finally:
                if self.caller:
                    self.caller.leave(abruptly=self.random.random() < 0.5)

    async def visit(self, running):
        self.caller = Client(self.site.url(self.pool), self.era, name=f"guest {self.number}", keeps=self.random.random() < 0.8)
        await self.caller.begin()
        for _ in range(self.random.randrange(1, 30)):
            if not running.is_set():
                break
            action = self.random.choices([self.echo, self.slow, self.cut, self.stall, self.many], [50, 15, 10, 5, 5])[0]
            await action()
        if self.era == LEGACY and self.random.random() < 0.3:
            await self.caller.end()
            self.tally["ended"] += 1

    def check(self, answer, word):
        """An answer is its own, or reports that its worker is gone."""
        if "error" in answer:
            code = answer["error"]["code"]
            if code not in CODES:
                raise AssertionError(f"an error that nobody expects: {answer}")
            self.tally[f"told {code}"] += 1
            return
        text = answer["result"]["content"][0]["text"]
        if text != word:
            raise Foreign(f"{text!r} instead of {word!r}")
        self.tally["answered"] += 1

    async def echo(self):
        word = self.word()
        self.check(await self.caller.call("tools/call", {"name": "echo", "arguments": {"text": word}}), word)

    def slowly(self, word, time, steps):
        params = {"name": "slow", "arguments": {"name": word, "time": time, "steps": steps}}
        # Like the official clients: the tokens of all clients are the same.
        id = next(self.caller.ids)
        return params, id, {"progressToken": id}

    def own(self, message, id, steps):
        if message["method"] == "notifications/progress":
            params = message["params"]
            if params["progressToken"] != id or params["total"] != steps:
                raise Foreign(f"progress {params} while {id} is asked, in {steps} steps")
        elif not message["method"].endswith("list_changed"):
            raise Foreign(f"a message that nobody asked for: {message}")

    async def slow(self):
        # The number of steps identifies the request of a progress message.
        word, steps = self.word(), self.random.randrange(2, 9)
        params, id, meta = self.slowly(word, self.random.choice([20, 100, 300]), steps)
        told = []
        answer = await self.caller.call("tools/call", params, told, meta, id)
        for message in told:
            self.own(message, id, steps)
        self.check(answer, f"{word} is done")
        if "result" in answer and len(told) != steps:
            raise AssertionError(f"{len(told)} of {steps} steps were told: {told}")

    async def cut(self):
        """Cuts the connection in the middle of a response. The older era then fetches it, for the newer one it is
        over."""
        word, steps = self.word(), 4
        params, id, meta = self.slowly(word, 200, steps)
        message = self.caller.message("tools/call", params, meta, id)
        async with within(f"a stream that guest {self.number} means to cut"):
            status, fields, connection = await self.caller.post(message)
            if status >= 300:
                body = await connection.body(fields)
                self.caller.drop(connection)
                raise Refused(status, fields, body)
            if not fields["content-type"].startswith("text/event-stream"):
                # It has ended before its first step.
                self.check(json.loads(await connection.body(fields)), f"{word} is done")
                self.caller.drop(connection)
                return
            last, answer = None, None
            async for event in connection.events(fields):
                last = event.get("id", last)
                if event.get("data"):
                    message = json.loads(event["data"])
                    if "method" not in message:
                        answer = message
                    else:
                        self.own(message, id, steps)
                        if self.random.random() < 0.5:
                            break
        self.caller.all.discard(connection)
        connection.abort()
        self.tally["cut"] += 1
        if self.era == MODERN:
            return
        if answer is None:
            answer = await self.fetch(last, id, steps)
        self.check(answer, f"{word} is done")

    async def fetch(self, last, id, steps):
        """Resumes a stream after its last event."""
        assert last is not None, "a stream of events without ids"
        async with within(f"the answer that guest {self.number} fetches after {last}"):
            while True:
                status, fields, connection = await self.caller.get(last)
                if status >= 300:
                    raise Refused(status, fields, await connection.body(fields))
                try:
                    async for event in connection.events(fields):
                        last = event.get("id", last)
                        if not event.get("data"):
                            continue
                        message = json.loads(event["data"])
                        if "method" in message:
                            self.own(message, id, steps)
                        else:
                            assert message["id"] == id, f"{message} instead of the answer to {id}"
                            self.tally["fetched"] += 1
                            return message
                finally:
                    self.caller.drop(connection)

    async def stall(self):
        """Sends a request, and reads the response slowly."""
        word = self.word()
        arguments = {"text": word}
        message = self.caller.message("tools/call", {"name": "echo", "arguments": arguments}, id=next(self.caller.ids))
        taken = await self.caller.connection()
        await taken.send(self.caller.bytes(message))
        await asyncio.sleep(self.random.choice([0.05, 0.5, 1.5]))
        try:
            status, fields = await taken.head(f"the answer to {word}, which was not read at once")
        except (Cut, ConnectionError):
            # A kept connection may have been closed before the request arrived.
            self.caller.drop(taken)
            self.tally["closed before"] += 1
            return
        async with within(f"the body of the answer to {word}"):
            if status < 300 and fields["content-type"].startswith("text/event-stream"):
                messages = [json.loads(event["data"]) async for event in taken.events(fields) if event.get("data")]
                answer = messages[-1]
            else:
                body = await taken.body(fields)
                if status >= 300:
                    raise Refused(status, fields, body)
                answer = json.loads(body)
        self.caller.done(taken, fields)
        self.check(answer, word)

    async def many(self):
        await asyncio.gather(*(self.echo() for _ in range(8)))


async def kill(site, running, tally):
    """Kills a worker now and then."""
    dice = random.Random(f"{SEED} killer")
    while running.is_set():
        await asyncio.sleep(dice.uniform(0.5, 2.5))
        # Those that are being started die as well.
        if children := site.children():
            try:
                os.kill(dice.choice(children), signal.SIGKILL)
                tally["killed"] += 1
            except ProcessLookupError:
                pass


def serves(site, pool, era):
    """Whether a pool serves a client of this era."""
    async def is_served():
        client = Client(site.url(pool), era)
        try:
            await client.begin()
            await client.tool("echo", {"text": "after it"})
            if era == LEGACY:
                await client.end()
            return True
        except (Told, Refused):
            # All its workers are being started.
            return False
        finally:
            client.leave()
    return is_served


async def stalling_clients_cut_connections_and_dying_workers_lose_nothing():
    pools = [everything("own", "dedicated", 3, max_instances=24), everything("shared", "client", 2),
             everything("turns", "round_robin", 2)]
    # Clients that vanish would keep their processes.
    limits = {"drain_timeout_sec": 5, "session_idle_sec": 5, "max_restarts": 10_000, "restart_window_sec": 1}
    with Site(pools, limits=limits) as site:
        await site.ready()
        # A command counts as one of the older revisions until it answers, which on a busy machine takes a while.
        for pool in ("own", "shared", "turns"):
            await until(f"the pool {pool} serves clients of {MODERN}", serves(site, pool, MODERN))
        tally, running = Tally(), asyncio.Event()
        running.set()
        kinds = [("shared", LEGACY)] * 10 + [("shared", MODERN)] * 8 + [("own", LEGACY)] * 6 + [("own", MODERN)] * 4 \
            + [("turns", MODERN)] * 6
        guests = [Guest(site, number, *kind, tally) for number, kind in enumerate(kinds)]
        tasks = [asyncio.create_task(guest.run(running)) for guest in guests]
        killer = asyncio.create_task(kill(site, running, tally))
        await asyncio.sleep(SECONDS)
        running.clear()
        async with within(f"the end of all guests, with seed {SEED}", 150):
            await asyncio.gather(*tasks, killer)
        assert not tally.failed, f"seed {SEED}: {tally['failed']} failed:\n" + "\n".join(tally.failed)
        told = dict(sorted(tally.items()))
        assert tally["answered"] > 20 * SECONDS, f"next to nobody was answered: {told}"
        # Clients that vanished are detected by the end of their connection or by a timeout; other losses are caused by
        # the chaos.
        for guest in guests:
            await until(f"the pool {guest.pool} serves again", serves(site, guest.pool, guest.era))
        figures = await site.settled()
        assert figures["pending"] == 0, f"requests hang: {figures}"
        return f"seed {SEED}: {told}"


def cases():
    yield stalling_clients_cut_connections_and_dying_workers_lose_nothing.__name__, \
        stalling_clients_cut_connections_and_dying_workers_lose_nothing
