"""Bytes that no library sends, and hostile clients. Each attack has one outcome, after which the daemon is healthy and
has as many descriptors, processes and sessions as before.
"""

import asyncio
import functools
import hashlib
import json
import os
import secrets
import socket
import struct
import tempfile

from mcp_site import Site, quick
from wire import LEGACY, MODERN, Address, Client, Connection, Refused, within

ALICE, BOB = "the-secret-of-alice", "the-secret-of-bob"
# The time limit of http1 for a head and a body, and some more for a busy machine.
SLOW = 90
PIPELINED = 5000
STALLED = 24
MEGABYTE = 1 << 20


def site():
    folder = tempfile.TemporaryDirectory()
    tokens = os.path.join(folder.name, "tokens")
    with open(tokens, "w") as file:
        file.write(f"alice:{ALICE}\nbob:sha256:{hashlib.sha256(BOB.encode()).hexdigest()}\n")
    os.chmod(tokens, 0o600)
    pools = [quick("shared", "client"), quick("own", "dedicated", 1, max_instances=8)]
    made = Site(pools, {"tokens_file": tokens}, limits={"drain_timeout_sec": 5})
    # It lives as long as the daemon.
    made.tokens = folder
    return made


def client(site, **more):
    return Client(site.url("shared"), **{"token": ALICE, **more})


async def is_healthy(site):
    """Another client is served at once, in both eras."""
    for era in (LEGACY, MODERN):
        other = await client(site, era=era).begin()
        word = secrets.token_hex(8)
        async with within("an answer to somebody else", 20):
            assert await other.tool("echo", {"text": word}) == word
        if era == LEGACY:
            await other.end()
        other.leave()


def leaves_nothing(attack):
    """What holds after every attack."""
    @functools.wraps(attack)
    async def case(site):
        await is_healthy(site)
        before = await site.settled()
        told = await attack(site)
        await is_healthy(site)
        await site.settled(before)
        return told
    return case


FOLLOWER = b"GET /mcp/shared HTTP/1.1\r\nHost: localhost\r\nSmuggled: yes\r\n\r\n"


async def is_refused(site, sent, statuses, rest=b"", what=None):
    """One response with one of these statuses, then the end: later bytes are ignored."""
    connection = await Connection.open(Address(site.url()))
    what = what or repr(sent[:200])
    await connection.send(sent + rest)
    status, fields = await connection.head(f"the answer to {what}")
    assert status in statuses, f"{what} is answered with {status} instead of {statuses}"
    await connection.body(fields)
    more = await connection.ended(f"the end after {what}")
    assert not more, f"{what}: after the answer comes {more[:200]!r}"
    connection.close()


def request(site, *fields, body=b"", drop=(), line=None):
    """A POST that would be served, except for these fields instead of its length."""
    caller = client(site, era=MODERN)
    given = {**caller.fields(caller.message("tools/list")), "Host": Address(site.url()).name}
    lines = [line or "POST /mcp/shared HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if name not in drop),
             *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def listing(site):
    return json.dumps(client(site, era=MODERN).message("tools/list", id=1)).encode()


@leaves_nothing
async def requests_with_two_lengths_are_refused(site):
    body = listing(site)
    length = f"Content-Length: {len(body)}"
    for fields in (
        [length, length],
        [length, "Content-Length: 0"],
        ["Content-Length: 0", length],
        [f"Content-Length: {len(body)}, {len(body)}"],
        [f"Content-Length: +{len(body)}"],
        [f"Content-Length: 0{len(body)}"],
        [f"Content-Length: {len(body):#x}"],
        [f"Content-Length: -{len(body)}"],
        ["Content-Length:"],
        [length, "content-length : 3"],
        [length, "Content_Length: 3", "Content-Length\t: 3"],
    ):
        await is_refused(site, request(site, *fields, body=body), [400], FOLLOWER)


@leaves_nothing
async def a_length_beside_chunked_coding_is_refused(site):
    body = listing(site)
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    for fields in (
        [f"Content-Length: {len(chunked)}", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        ["Transfer-Encoding: chunked", "Content-Length: 0"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    ):
        await is_refused(site, request(site, *fields, body=chunked), [400], FOLLOWER)
    for coding in ("gzip, chunked", "xchunked", "chunked, identity", "identity", "chunked;a=b", "\x0bchunked", "chu nked",
                   "\"chunked\""):
        await is_refused(site, request(site, f"Transfer-Encoding: {coding}", body=chunked), [400, 501], FOLLOWER)
    old = request(site, "Transfer-Encoding: chunked", line="POST /mcp/shared HTTP/1.0", body=chunked)
    await is_refused(site, old, [400], FOLLOWER)


@leaves_nothing
async def invalid_chunks_are_refused(site):
    body = listing(site)
    size, whole = f"{len(body):x}".encode(), body
    for chunks in (
        b"xyz\r\n" + whole + b"\r\n0\r\n\r\n",
        b"-1\r\n" + whole + b"\r\n0\r\n\r\n",
        b"0x" + size + b"\r\n" + whole + b"\r\n0\r\n\r\n",
        b"\r\n" + whole + b"\r\n0\r\n\r\n",
        size + b"\n" + whole + b"\r\n0\r\n\r\n",
        size + b"\r\n" + whole + b"0\r\n\r\n",
        size + b"\r\n" + whole + b"\n0\r\n\r\n",
        size + b"\r\n" + whole + b"XX0\r\n\r\n",
        size + b" ;\x00\r\n" + whole + b"\r\n0\r\n\r\n",
        size + b";" + b"x" * 10_000 + b"\r\n" + whole + b"\r\n0\r\n\r\n",
        b"0" * 100 + size + b"\r\n" + whole + b"\r\n0\r\n\r\n",
        size + b"\r\n" + whole + b"\r\n0\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    ):
        await is_refused(site, request(site, "Transfer-Encoding: chunked", body=chunks), [400, 413, 431], FOLLOWER)
    for size in (b"fffffff", b"7fffffffffffffff", b"ffffffffffffffff", b"fffffffffffffffff"):
        chunks = size + b"\r\n" + whole
        await is_refused(site, request(site, "Transfer-Encoding: chunked", body=chunks), [400, 413], FOLLOWER)


@leaves_nothing
async def ambiguous_lines_are_refused(site):
    body = listing(site)
    length = f"Content-Length: {len(body)}"
    whole = request(site, length, body=b"")
    for head in (
        whole.replace(b"\r\n", b"\n"),
        whole.replace(b"\r\n", b"\n", 1),
        whole[:-4] + b"\n\n",
        whole[:-2] + b"\n",
        whole.replace(b"\r\n", b"\r", 3),
        request(site, length, "A: b\r\n c: d"),
        request(site, length, "A: b\r\n\tc: d"),
        request(site, " folded", length),
        request(site, length, "A : b"),
        request(site, length, "A: b\x00c"),
        request(site, length, "A: b\rContent-Length: 3"),
        request(site, length, ": nameless"),
        request(site, length, "no field at all"),
        request(site, length, drop=["Host"]),
        request(site, length, "Host: localhost"),
        request(site, length, line="POST  /mcp/shared HTTP/1.1"),
        request(site, length, line="POST /mcp/shared\tHTTP/1.1"),
        request(site, length, line="POST /mcp/sha red HTTP/1.1"),
        request(site, length, line="POST mcp/shared HTTP/1.1"),
        request(site, length, line="POST http://other.example/mcp/shared HTTP/1.1"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    ):
        await is_refused(site, head + body, [400, 403, 404, 421, 505], FOLLOWER)


@leaves_nothing
async def heads_that_are_too_long_are_refused(site):
    length = "Content-Length: 0"
    await is_refused(site, request(site, length, "A: " + "a" * 40_000), [431])
    await is_refused(site, request(site, length, *(f"A{n}: {'a' * 80}" for n in range(420))), [431])
    await is_refused(site, request(site, length, *["A: b"] * 1000), [431])
    await is_refused(site, request(site, length, line="POST /" + "a" * 40_000 + " HTTP/1.1"), [414, 431])
    # An endless one is not waited for.
    connection = await Connection.open(Address(site.url()))
    memory = site.memory()
    try:
        async with within("the end of an endless head"):
            for _ in range(64):
                connection.writer.write(b"A: " + b"a" * MEGABYTE)
                await connection.writer.drain()
    except ConnectionError:
        pass
    await connection.ended("the end of an endless head")
    assert site.memory() < memory + 16 * MEGABYTE


@leaves_nothing
async def hosts_and_origins_that_are_not_ours_are_refused(site):
    body = listing(site)
    length = f"Content-Length: {len(body)}"
    for fields in (["Host: evil.example.com"], ["Host: evil.example.com:80"], ["Host: localhost.evil.example.com"],
                   ["Host: 127.0.0.1.evil.example.com"]):
        connection = await Connection.open(Address(site.url()))
        await connection.send(request(site, length, *fields, drop=["Host"], body=body))
        status, answer = await connection.head(f"the answer to {fields}")
        assert status == 403, f"{fields} is answered with {status}"
        connection.close()
    connection = await Connection.open(Address(site.url()))
    await connection.send(request(site, length, "Origin: https://evil.example.com", body=body))
    status, _ = await connection.head("the answer to an origin")
    assert status == 403, f"a foreign origin is answered with {status}"
    connection.close()


async def drips(site, data, pause, still=False):
    """Sends byte after byte, or stops if `still`; returns the response, and how long it took."""
    connection = await Connection.open(Address(site.url()))
    begun = asyncio.get_running_loop().time()
    head, _, body = data.rpartition(b"\r\n\r\n")
    if body or still:
        connection.writer.write(head + b"\r\n\r\n")
        data = body

    async def feed():
        try:
            for at in range(len(data)):
                connection.writer.write(data[at : at + 1])
                await connection.writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            pass
    feeding = asyncio.create_task(feed())
    try:
        if pause and body and not still:
            status, fields = await connection.head("the answer to a body that comes byte by byte", SLOW)
            return str(status).encode(), 0
        said = await connection.ended(f"the end of a client that sends {data[:20]!r}, a byte in {pause} s", SLOW)
    finally:
        feeding.cancel()
        connection.close()
    assert not said or said.split()[1] in (b"408", b"400"), f"{data[:20]!r} is answered with {said[:100]!r}"
    return said, asyncio.get_running_loop().time() - begun


@leaves_nothing
async def slow_or_stalled_requests_time_out(site):
    body = listing(site)
    whole = request(site, f"Content-Length: {len(body)}")
    chunked = request(site, "Transfer-Encoding: chunked")
    ending = [(whole, 1, False), (b"", 0, True), (whole[:20], 0, True), (whole + body[:20], 0, True),
              (chunked + b"1", 0, True), (chunked + b"5\r\n{", 0, True), (whole, 0, True)]
    async with within("the end of all clients that drip", SLOW + 30):
        slow, *took = await asyncio.gather(drips(site, whole + body, 0.03), *(drips(site, *kind) for kind in ending * 10))
    # A slow client that finishes is served.
    assert slow[0] == b"200", slow
    return f"the slowest was there for {max(after for _, after in took):.0f} s"


@leaves_nothing
async def thousands_of_requests_in_one_write_are_answered_in_turn(site):
    caller = client(site, era=MODERN)
    connection = await Connection.open(caller.address)
    sent = b"".join(caller.bytes(caller.message("tools/call", {"name": "echo", "arguments": {"text": f"number {id}"}}, id=id))
                    for id in range(PIPELINED))
    sending = asyncio.create_task(connection.send(sent, "room for thousands of requests"))
    for id in range(PIPELINED):
        status, fields = await connection.head(f"answer {id} of {PIPELINED}")
        assert status == 200, f"answer {id}: {status}"
        async with within(f"the body of answer {id}"):
            if fields["content-type"].startswith("text/event-stream"):
                messages = [json.loads(event["data"]) async for event in connection.events(fields) if event.get("data")]
                answer = messages[-1]
            else:
                answer = json.loads(await connection.body(fields))
        assert answer["id"] == id and answer["result"]["content"][0]["text"] == f"number {id}", answer
    await sending
    connection.close()


@leaves_nothing
async def a_client_with_thousands_of_requests_that_never_reads_harms_no_other(site):
    memory = site.memory()
    caller = client(site, era=MODERN)
    big = caller.bytes(caller.message("tools/call", {"name": "echo", "arguments": {"text": "x" * 50_000}}, id=1))
    connections = [await Connection.open(caller.address) for _ in range(8)]

    async def pour(connection):
        try:
            for _ in range(400):
                connection.writer.write(big)
                await connection.writer.drain()
        except ConnectionError:
            pass
    pouring = [asyncio.create_task(pour(connection)) for connection in connections]
    await asyncio.sleep(2)
    await is_healthy(site)
    grown = site.memory() - memory
    for task in pouring:
        task.cancel()
    for connection in connections:
        connection.abort()
    assert grown < 64 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB for eight who never read"
    return f"{grown / MEGABYTE:.1f} MB"


@leaves_nothing
async def a_half_close_keeps_answers_in_a_session_and_cancels_without_one(site):
    caller = await client(site).begin()
    connection = await Connection.open(caller.address)
    messages = [caller.message("tools/call", {"name": "echo", "arguments": {"text": f"number {id}"}}, id=id) for id in range(3)]
    await connection.send(b"".join(map(caller.bytes, messages)))
    connection.writer.write_eof()
    for id in range(3):
        status, fields = await connection.head(f"answer {id} after a half-close")
        assert status == 200, status
        body = await connection.body(fields, f"the body of answer {id} after a half-close")
        assert f"number {id}".encode() in body, body
    assert not await connection.ended("the end after a half-close")
    connection.close()
    await caller.end()
    caller.leave()
    # In the newer era the end of a connection is a cancellation, and a half-close is not distinguished from it.
    caller = client(site, era=MODERN)
    connection = await Connection.open(caller.address)
    await connection.send(caller.bytes(caller.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1)))
    connection.writer.write_eof()
    await connection.ended("the end after a half-close without a session")
    connection.close()
    # A client that half-closes in the middle of a request is not served.
    connection = await Connection.open(Address(site.url()))
    await connection.send(request(site, "Content-Length: 100", body=b'{"jsonrpc"'))
    connection.writer.write_eof()
    said = await connection.ended("the end of half a request")
    assert not said or said.split()[1] == b"400", said[:200]
    connection.close()


@leaves_nothing
async def unread_streams_harm_no_other_client(site):
    memory = site.memory()
    callers = [await client(site, name=f"stalled {at}").begin() for at in range(STALLED)]

    def narrow(caller):
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taken.setblocking(False)
        return taken
    sockets = []
    try:
        for at, caller in enumerate(callers):
            # Raw, so that only the kernel reads.
            taken = narrow(caller)
            sockets.append(taken)
            loop = asyncio.get_running_loop()
            async with within("a connection"):
                await loop.sock_connect(taken, (caller.address.host, caller.address.port))
            arguments = {"text": "late", "flood": 200, "bytes": 20_000}
            meta = {"progressToken": f"flood {at}"}
            message = caller.message("tools/call", {"name": "echo", "arguments": arguments}, meta, id=1)
            async with within("room for a request"):
                await loop.sock_sendall(taken, caller.bytes(message))
        begun = asyncio.get_running_loop().time()
        await is_healthy(site)
        took = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(2)
        await is_healthy(site)
        grown = site.memory() - memory
        assert grown < 128 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB for {STALLED} who do not read"
    finally:
        for taken in sockets:
            # A reset, like a client that has lost its network.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.close()
    for caller in callers:
        assert await caller.end() in (200, 204, 404)
    return f"{grown / MEGABYTE:.1f} MB; somebody else is served after {took:.2f} s"


async def status_of(caller, method="tools/list"):
    try:
        await caller.call(method)
        return 200
    except Refused as refused:
        return refused.status


@leaves_nothing
async def guessed_session_ids_are_unknown(site):
    real = await client(site).begin()
    guesses = [secrets.token_hex(16), real.session[:-1] + chr(ord(real.session[-1]) ^ 1), real.session.swapcase() + "x",
               real.session + real.session, "0", "x" * 64, "x" * 5000, "../../etc/passwd", "%00"]
    for guess in guesses:
        if guess == real.session:
            continue
        other = client(site)
        other.session = guess
        assert await status_of(other) == 404, guess
        status, _, connection = await other.get()
        assert status == 404, f"GET with {guess!r}: {status}"
        connection.close()
        assert await other.end() == 404, guess
    for strange in ("a\tb", "\xe9", ""):
        other = client(site)
        other.session = strange
        status = await status_of(other)
        assert status in (400, 404), f"{strange!r}: {status}"
        other.leave()
    missing = client(site)
    assert await status_of(missing) == 400, "a request without a session"
    missing.leave()
    assert await real.tool("echo", {"text": "still there"}) == "still there"
    assert await real.end() in (200, 204)


@leaves_nothing
async def a_session_that_has_ended_is_unknown(site):
    for pool in ("shared", "own"):
        caller = await Client(site.url(pool), token=ALICE).begin()
        session = caller.session
        # A stream ends with its session.
        status, fields, stream = await caller.get()
        assert status == 200, status
        assert await caller.end() in (200, 204)
        await stream.ended("the end of a stream of a session that has ended")
        caller = Client(site.url(pool), token=ALICE)
        caller.session = session
        assert await status_of(caller) == 404
        assert await caller.end() == 404
        status, _, connection = await caller.get()
        assert status == 404, status
        connection.close()
        caller.leave()


@leaves_nothing
async def another_tokens_session_is_unknown(site):
    alice = await client(site).begin()
    bob = client(site, token=BOB)
    bob.session = alice.session
    unknown = client(site, token=BOB)
    unknown.session = secrets.token_hex(16)
    wrong, strange = [], None
    for caller in (bob, unknown):
        try:
            await caller.call("tools/list")
            raise AssertionError("bob is served in alice's session")
        except Refused as refused:
            assert refused.status == 404, refused
            wrong.append({**refused.error()})
        status, _, connection = await caller.get()
        assert status == 404, status
        connection.close()
        assert await caller.end() == 404
    assert wrong[0] == wrong[1], f"bob can tell that a session is there: {wrong}"
    for token in (None, "wrong", ALICE + "x"):
        strange = client(site, token=token)
        strange.session = alice.session
        status = await status_of(strange)
        assert status == 401, f"the token {token!r} is answered with {status}"
        strange.leave()
    bob.leave()
    unknown.leave()
    assert await alice.tool("echo", {"text": "mine"}) == "mine"
    await alice.end()


@leaves_nothing
async def unsolicited_responses_are_dropped(site):
    alice, bob = await client(site).begin(), await client(site, token=BOB).begin()
    for id in (0, 1, "1", None):
        for caller in (alice, bob):
            message = {"jsonrpc": "2.0", "id": id, "result": {"forged": True}}
            status, fields, connection = await caller.post(message)
            await connection.body(fields)
            connection.close()
            assert status in (202, 400), f"{message}: {status}"
    modern = client(site, era=MODERN)
    status, fields, connection = await modern.post({"jsonrpc": "2.0", "id": 1, "result": {}})
    await connection.body(fields)
    assert status == 400, f"a response of the newer era is answered with {status}"
    connection.close()
    for caller in (alice, bob):
        assert await caller.tool("echo", {"text": "mine"}) == "mine"
        await caller.end()


@leaves_nothing
async def invalid_bodies_are_refused(site):
    caller, wrong = await client(site).begin(), []
    for body, statuses in (
        (b"", [400]), (b"hello", [400]), (b"{", [400]), (b"[]", [400]), (b"null", [400]), (b"1", [400]),
        (b"\xff\xfe", [400]), (b"{}", [400]), (b'{"jsonrpc":"2.0"}', [400]), (b'{"jsonrpc":"2.0","id":1}', [400]),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', [400]), (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', [400]),
        (b"[" * 100_000, [400, 413]), (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","id":2,"method":"ping"}', [400]),
    ):
        connection = await Connection.open(caller.address)
        fields = {**caller.fields(), "Content-Length": len(body)}
        await connection.send(caller.address.head("POST", fields) + body)
        status, answer = await connection.head(f"the answer to {body[:60]!r}")
        if status not in statuses:
            wrong.append(f"{body[:60]!r} is answered with {status}")
        connection.close()
    assert not wrong, "\n".join(wrong)
    # A message with line breaks is one message.
    pretty = json.dumps(caller.message("ping", id=7), indent=2).replace("\n", "\r\n").encode()
    connection = await Connection.open(caller.address)
    await connection.send(caller.address.head("POST", {**caller.fields(), "Content-Length": len(pretty)}) + pretty)
    status, answer = await connection.head("the answer to a message in lines")
    assert status == 200 and b'"id":7' in (await connection.body(answer)).replace(b" ", b"")
    connection.close()
    assert await caller.tool("echo", {"text": "still there"}) == "still there"
    await caller.end()


@leaves_nothing
async def unsupported_methods_and_types_are_refused(site):
    caller = client(site, era=MODERN)
    body = listing(site)
    fields = {**caller.fields(caller.message("tools/list")), "Content-Length": len(body)}
    wants = [
        ("POST", {"Content-Type": "text/plain"}, None, 415), ("POST", {"Accept": "application/json"}, None, 200),
        ("POST", {"Accept": "text/html"}, None, 406), ("POST", {}, "/mcp/nobody", 404), ("POST", {}, "/elsewhere", 404),
        ("POST", {}, "/mcp/shared/more", 404), ("PUT", {}, None, 405), ("OPTIONS", {}, None, 405), ("GET", {}, None, 405),
        ("DELETE", {}, None, 405), ("POST", {"MCP-Protocol-Version": "1900-01-01"}, None, 400),
        ("POST", {"Mcp-Method": "tools/call"}, None, 400), ("POST", {"Mcp-Method": None}, None, 400),
    ]
    wrong = []
    for method, changes, path, wanted in wants:
        has_body = method in ("POST", "PUT")
        changes = changes if has_body else {"Content-Length": None, **changes}
        given = {name: value for name, value in {**fields, **changes}.items() if value is not None}
        connection = await Connection.open(caller.address)
        await connection.send(caller.address.head(method, given, path) + (body if has_body else b""))
        status, _ = await connection.head(f"the answer to {method} {path} {changes}")
        if status != wanted:
            wrong.append(f"{method} {path} {changes} is answered with {status} instead of {wanted}")
        connection.close()
    assert not wrong, "\n".join(wrong)
    caller.leave()


async def is_healthy_in_time(site):
    """The same, after refusals, which say when to ask again."""
    async with within("room for another client"):
        while True:
            try:
                return await is_healthy(site)
            except Refused as refused:
                assert refused.status == 429, refused
                await asyncio.sleep(float(refused.fields["retry-after"]))


async def crowd(site, said, is_healthy=is_healthy):
    """More connections than there are places, which send only this: another client is served all the same."""
    address = Address(site.url())
    crowd = []
    try:
        async with within("thousands of connections"):
            for _ in range(2500):
                try:
                    crowd.append(await Connection.open(address))
                except OSError:
                    break
                crowd[-1].writer.write(said)
        await asyncio.sleep(0.5)
        await is_healthy(site)
    finally:
        for connection in crowd:
            connection.abort()


@leaves_nothing
async def silent_connections_are_evicted(site):
    await crowd(site, b"")


@leaves_nothing
async def connections_with_half_a_head_are_evicted(site):
    await crowd(site, request(site, "Content-Length: 100")[:50])


@leaves_nothing
async def connections_with_half_a_body_are_evicted(site):
    """Also for a client with the same token, since a request that does not arrive holds its place only for a second."""
    await crowd(site, request(site, "Content-Length: 100", body=b"{"), is_healthy_in_time)


@leaves_nothing
async def connections_that_only_listen_are_evicted(site):
    caller = client(site, era=MODERN)
    await crowd(site, caller.bytes(caller.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1)))


def cases():
    for case in (
        requests_with_two_lengths_are_refused, a_length_beside_chunked_coding_is_refused, invalid_chunks_are_refused,
        ambiguous_lines_are_refused, heads_that_are_too_long_are_refused,
        hosts_and_origins_that_are_not_ours_are_refused, invalid_bodies_are_refused,
        unsupported_methods_and_types_are_refused, thousands_of_requests_in_one_write_are_answered_in_turn,
        a_client_with_thousands_of_requests_that_never_reads_harms_no_other, 
        a_half_close_keeps_answers_in_a_session_and_cancels_without_one,
        unread_streams_harm_no_other_client, guessed_session_ids_are_unknown, a_session_that_has_ended_is_unknown,
        another_tokens_session_is_unknown, unsolicited_responses_are_dropped, silent_connections_are_evicted,
        connections_with_half_a_head_are_evicted, connections_with_half_a_body_are_evicted,
        connections_that_only_listen_are_evicted, slow_or_stalled_requests_time_out,
    ):
        yield case.__name__, case
