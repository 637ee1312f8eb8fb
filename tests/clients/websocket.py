"""Other WebSocket libraries against the daemon: PyPI `websockets`, npm `ws`, and bytes that no library sends.

websocket.py [PART]: only the cases with PART in their name. STDIO_BUS names the daemon's program.
"""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from websockets import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from daemon import Daemon
from frames import BINARY, CLOSE, CONTINUATION, PATIENCE, PING, PONG, TEXT, Raw, closing, frame, head, request

HERE = os.path.dirname(os.path.abspath(__file__))
MEGABYTE = 1_000_000
LONGEST = 1 << 20
ORIGIN = "https://app.example"

# Answers a request once it has read a byte from the named FIFO, and first reports that it has received the request.
HOLDER = r"""
import json, sys, threading
def say(**message):
    # In one write: two threads may write at once.
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()
def hold(id, fifo):
    open(fifo, "rb", buffering=0).read(1)
    say(id=id, result="late")
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        say(method="heard", sessionId=message["sessionId"])
        threading.Thread(target=hold, args=(message["id"], message["params"]["fifo"]), daemon=True).start()
"""


def echo(**more):
    return {"id": "echo", "command": os.environ["STDIO_BUS"], "args": ["worker", "echo"], "instances": 1, **more}

# Makes sessions and loads any.
KEEPER = r"""
import json, sys
for at, line in enumerate(sys.stdin):
    message = json.loads(line)
    result = {"sessionId": f"s{at}"} if message["method"] == "session/new" else {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def holder(**more):
    return {"id": "holder", "command": sys.executable, "args": ["-c", HOLDER], "instances": 1, **more}


def hold(fifo):
    return {"jsonrpc": "2.0", "id": 1, "method": "hold", "sessionId": "raw", "params": {"fifo": fifo}}


class Site:
    """A daemon with an open listener, one that requires tokens and allows one origin, and a Unix socket."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.tokens = os.path.join(self.directory.name, "tokens")
        with open(self.tokens, "w") as file:
            file.write(f"alice:the-secret-of-alice\nbob:sha256:{hashlib.sha256(b'the-secret-of-bob').hexdigest()}\n")
        os.chmod(self.tokens, 0o600)
        guarded = {"ws": "127.0.0.1:0", "path": "/guarded", "tokens_file": self.tokens, "origins": [ORIGIN]}
        pools = [echo(), {"id": "keeper", "command": sys.executable, "args": ["-c", KEEPER], "instances": 1}]
        unix = {"ws": "unix:" + os.path.join(self.directory.name, "sock")}
        self.daemon = Daemon(pools, [{**one, "pool": "echo"} for one in ({"ws": "127.0.0.1:0"}, guarded, unix)]
                             + [{**guarded, "path": "/keeper", "pool": "keeper"}])

    def __enter__(self):
        self.open, self.guarded, self.unix, self.keeper = self.daemon.urls
        return self

    def __exit__(self, *error):
        self.daemon.__exit__(*error)
        self.directory.cleanup()


def connect(url, **more):
    # Compression is offered, the default of this library.
    return open_websocket(url, max_size=None, close_timeout=PATIENCE, open_timeout=PATIENCE, ping_interval=None, **more)


async def hears(websocket):
    return json.loads(await asyncio.wait_for(websocket.recv(), PATIENCE))


async def closes(websocket):
    """The code and reason of the server's close; earlier messages are skipped."""
    try:
        while True:
            await asyncio.wait_for(websocket.recv(), PATIENCE)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None, "the connection was cut without a close frame"
        return closed.rcvd.code, closed.rcvd.reason


def is_echo(answer, id, params):
    assert answer.get("id") == id and answer["result"]["echo"] == params, str(answer)[:200]


def fragments(text, count):
    size = -(-len(text) // count)
    return [text[at : at + size] for at in range(0, len(text), size)]


def node(*arguments):
    command = ["node", "websocket.js", *arguments]
    return subprocess.Popen(command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


# PyPI websockets.


async def fragments_with_pings_between_them_are_one_message(site):
    async with connect(site.open) as websocket:
        async def pieces():
            for piece in fragments(request(1, text="ü" * 100), 30):
                yield piece
                await asyncio.wait_for(await websocket.ping(), PATIENCE)

        await websocket.send(pieces())
        is_echo(await hears(websocket), 1, {"text": "ü" * 100})


async def a_megabyte_comes_back_from_one_frame_and_from_a_thousand(site):
    async with connect(site.open) as websocket:
        text = "x" * MEGABYTE
        await websocket.send(request(1, text=text))
        is_echo(await hears(websocket), 1, {"text": text})
        await websocket.send(fragments(request(2, text=text), 1000))
        is_echo(await hears(websocket), 2, {"text": text})


async def newlines_in_a_message_do_not_make_two(site):
    async with connect(site.open) as websocket:
        for id in range(2):
            message = json.dumps(json.loads(request(id, text="a\nb")), indent=2)
            await websocket.send("\r\n" + message.replace("\n", "\r\n") + "\n\n")
        for id in range(2):
            is_echo(await hears(websocket), id, {"text": "a\nb"})


async def binary_messages_are_ignored(site):
    async with connect(site.open) as websocket:
        await websocket.send(request(1).encode(), text=False)
        await websocket.send([b"\xff" * 1000, b"\n" * 1000, b""])
        await websocket.send(request(2))
        is_echo(await hears(websocket), 2, {})


async def a_clients_close_code_is_echoed(site):
    for code, reason in [(1000, ""), (1001, "the page was left"), (3000, ""), (4999, "ü" * 61)]:
        async with connect(site.open) as websocket:
            await websocket.send(request(1))
            is_echo(await hears(websocket), 1, {})
            await websocket.close(code, reason)
            assert websocket.close_code == code, f"{code} was answered with {websocket.close_code}"


async def a_message_over_the_limit_is_closed_with_1009(site):
    for at_once in (True, False):
        async with connect(site.open) as websocket:
            await websocket.send(request(1))
            is_echo(await hears(websocket), 1, {})
            text = request(2, text="x" * LONGEST)
            try:
                await websocket.send(text if at_once else fragments(text, 100))
            except ConnectionClosed:
                # The server need not accept the rest.
                pass
            assert (await closes(websocket))[0] == 1009
    async with connect(site.open) as websocket:
        text = "x" * (LONGEST - len(request(3, text="")))
        await websocket.send(request(3, text=text))
        is_echo(await hears(websocket), 3, {"text": text})


async def invalid_json_is_closed_with_1007(site):
    for text in ["hello", '{"jsonrpc":"2.0",}', "", "{}{}"]:
        async with connect(site.open) as websocket:
            await websocket.send(text)
            await websocket.send(request(2))
            if text:
                assert (await closes(websocket))[0] == 1007, text
            else:
                # An empty message is an empty line.
                is_echo(await hears(websocket), 2, {})


async def a_token_is_taken_from_the_field_and_from_the_subprotocol(site):
    for token in ["the-secret-of-alice", "the-secret-of-bob"]:
        async with connect(site.guarded, additional_headers={"Authorization": f"Bearer {token}"}) as websocket:
            assert websocket.subprotocol is None
            await websocket.send(request(1))
            is_echo(await hears(websocket), 1, {})
        async with connect(site.guarded, subprotocols=["acp", f"bearer.{token}"], origin=ORIGIN) as websocket:
            assert websocket.subprotocol == "acp", websocket.subprotocol
            await websocket.send(request(1))
            is_echo(await hears(websocket), 1, {})


async def a_wrong_token_is_refused_with_401(site):
    wrong = [
        (site.guarded, {}),
        (site.guarded, {"additional_headers": {"Authorization": "Bearer the-secret-of-alic"}}),
        (site.guarded, {"additional_headers": {"Authorization": "Basic dGhlLXNlY3JldC1vZi1hbGljZQ=="}}),
        (site.guarded, {"subprotocols": ["acp"]}),
        (site.guarded, {"subprotocols": ["acp", "bearer.the-secret-of-alice2"]}),
        (site.guarded + "?token=the-secret-of-alice", {}),
    ]
    for url, how in wrong:
        try:
            async with connect(url, **how):
                raise AssertionError(f"let in with {how}")
        except InvalidStatus as refused:
            response = refused.response
            assert response.status_code == 401, f"{response.status_code} with {how}"
            assert response.headers["WWW-Authenticate"].startswith("Bearer"), response.headers
            said = json.loads(response.body)
            assert said["status"] == 401 and said["error"] and said["message"], said
    assert not any("secret-of" in line for line in site.daemon.log), "a token is in the log"


async def an_added_token_admits_and_a_removed_one_does_not(site):
    async def is_let_in():
        try:
            async with connect(site.guarded, additional_headers={"Authorization": "Bearer the-secret-of-carol"}):
                return True
        except InvalidStatus as refused:
            assert refused.response.status_code == 401, refused
            return False

    with open(site.tokens) as file:
        before = file.read()
    assert not await is_let_in()
    for text, wanted in [(before + "carol:the-secret-of-carol\n", True), (before, False)]:
        with open(site.tokens + ".new", "w") as file:
            file.write(text)
        os.replace(site.tokens + ".new", site.tokens)
        deadline = time.monotonic() + PATIENCE
        while await is_let_in() != wanted:
            assert time.monotonic() < deadline, f"after {PATIENCE} s the file is not read again"


async def a_session_is_loaded_only_under_its_original_name(site):
    async def asks(name, method, **params):
        async with connect(site.keeper, additional_headers={"Authorization": f"Bearer the-secret-of-{name}"}) as websocket:
            params = {"cwd": "/", "mcpServers": [], **params}
            await websocket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
            return await hears(websocket)

    session = (await asks("alice", "session/new"))["result"]["sessionId"]
    for method in ("session/load", "session/resume"):
        denied = await asks("bob", method, sessionId=session)
        assert denied["error"]["data"]["reason"] == "session_denied", denied
    assert "result" in await asks("alice", "session/load", sessionId=session)


async def connections_have_ids_that_differ(_):
    # A daemon of its own: with many connections the log omits some.
    with Daemon([holder()], [{"ws": "127.0.0.1:0"}]) as daemon:
        ids = []
        for _ in range(3):
            async with connect(daemon.urls[0]) as websocket:
                ids.append(websocket.response.headers["Acp-Connection-Id"])
                assert "Sec-WebSocket-Extensions" not in websocket.response.headers
        assert len(set(ids)) == 3 and all(len(id) >= 16 for id in ids), ids
        for id in ids:
            daemon.logs(id)


async def a_hundred_connections_ask_at_once(site):
    async def one(number):
        async with connect(site.open) as websocket:
            for id in range(20):
                await websocket.send(request(id, from_=number))
            for id in range(20):
                is_echo(await hears(websocket), id, {"from_": number})

    await asyncio.gather(*(one(number) for number in range(100)))


# Bytes.


def a_message_byte_by_byte_is_answered(site):
    with Raw(site.open) as raw:
        raw.send(head(raw.host, raw.path), frame(TEXT, request(1, text="ü")), frame(PING, b"p"), cut=1)
        assert raw.answer()[0] == 101
        found = [raw.frame(), raw.frame()]
        assert (PONG, b"p") in found, found
        is_echo(next(json.loads(payload) for opcode, payload in found if opcode == TEXT), 1, {"text": "ü"})


def frames_behind_the_head_and_many_in_a_write_are_answered_in_order(site):
    with Raw(site.open) as raw:
        raw.send(head(raw.host, raw.path), *(frame(TEXT, request(id)) for id in range(500)))
        assert raw.answer()[0] == 101
        for id in range(500):
            is_echo(raw.message(), id, {})


def pings_inside_fragments_are_answered_at_once(site):
    with Raw(site.open) as raw:
        raw.upgrade()
        text = request(1, text="äöü€😀").encode()
        for at, byte in enumerate(text):
            opcode = CONTINUATION if at else TEXT
            raw.send(frame(opcode, bytes([byte]), final=False), frame(PING, b"%d" % at))
            assert raw.frame() == (PONG, b"%d" % at)
        raw.send(frame(CONTINUATION))
        is_echo(raw.message(), 1, {"text": "äöü€😀"})


def a_client_that_continues_an_overlong_message_learns_why_it_is_closed(site):
    with Raw(site.open) as raw:
        raw.upgrade().send(frame(TEXT, request(1, text="x" * 5 * LONGEST)))
        assert raw.ends()[0] == 1009


#: What breaks the protocol, and the code that it is closed with.
BROKEN = {
    "a missing mask": (frame(TEXT, request(1), mask=None), 1002),
    "a missing mask of nothing": (frame(PING, mask=None), 1002),
    "reserved bit 1": (frame(TEXT, request(1), reserved=4), 1002),
    "reserved bit 2": (frame(TEXT, request(1), reserved=2), 1002),
    "reserved bit 3": (frame(BINARY, b"x", reserved=1), 1002),
    "a reserved bit of a ping": (frame(PING, b"x", reserved=4), 1002),
    **{f"opcode {opcode}": (frame(opcode, b"x"), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "a ping in pieces": (frame(PING, b"x", final=False), 1002),
    "a close in pieces": (frame(CLOSE, final=False), 1002),
    "a ping of 126 bytes": (frame(PING, b"x" * 126), 1002),
    "a length of 16 bits that fits 7": (frame(TEXT, "{}", length=b"\x7e\0\2"), 1002),
    "a length of 64 bits that fits 16": (frame(TEXT, "{}", length=b"\x7f" + bytes(7) + b"\2"), 1002),
    "a length with its highest bit": (frame(TEXT, "{}", length=b"\x7f\x80" + bytes(7)), 1002),
    "a terabyte that is only said": (frame(TEXT, "{}", length=b"\x7f\0\0\1" + bytes(5)), 1009),
    "a continuation of nothing": (frame(CONTINUATION, "x"), 1002),
    "a continuation after the end": (frame(TEXT, request(1)) + frame(CONTINUATION, "x"), 1002),
    "a text inside a text": (frame(TEXT, "{", final=False) + frame(TEXT, "}"), 1002),
    "a binary message inside a text": (frame(TEXT, "{", final=False) + frame(BINARY, b"}"), 1002),
    "a message of empty fragments": (frame(TEXT, final=False) + frame(CONTINUATION, final=False) * 100, 1008),
    "half a close code": (frame(CLOSE, b"\3"), 1002),
    **{f"close code {code}": (closing(code), 1002) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)},
    "a close reason that is not UTF-8": (closing(1000, b"\xff"), 1007),
    "UTF-8 that ends at a border": (frame(TEXT, b'{"a":"\xc3', final=False) + frame(CONTINUATION, b'"}'), 1007),
    "UTF-8 that goes on wrong in the next fragment": (
        frame(TEXT, b'{"a":"\xe2\x82', final=False) + frame(PING) + frame(CONTINUATION, b'\xc3\xbc"}'), 1007),
    "half a surrogate pair in UTF-8": (frame(TEXT, b'{"a":"\xed\xa0', final=False) + frame(CONTINUATION, b'\x80"}'), 1007),
    "UTF-8 that is too long for what it says": (frame(TEXT, b'{"a":"\xc0\x80"}'), 1007),
}


def a_protocol_violation_is_closed_with_its_code(site):
    wrong = []
    for name, (sent, code) in BROKEN.items():
        for cut in (None, 1):
            with Raw(site.open) as raw:
                raw.upgrade().send(frame(TEXT, request("before")), cut=cut)
                is_echo(raw.message(), "before", {})
                try:
                    raw.send(sent, cut=cut)
                except OSError:
                    # Byte by byte, the last ones are sent after the close.
                    assert cut
                try:
                    found = raw.ends()[0]
                except (AssertionError, TimeoutError) as error:
                    found = repr(error)
                if found != code:
                    wrong.append(f"{name}, cut at {cut}: {found} and not {code}")
                    assert len(wrong) < 5, "\n".join(wrong)
    assert not wrong, "\n".join(wrong)


def messages_before_a_fault_in_one_write_count(site):
    with Raw(site.open) as raw:
        raw.upgrade().send(*(frame(TEXT, request(id)) for id in range(50)), frame(TEXT, "x", mask=None))
        heard = []
        while (found := raw.frame())[0] == TEXT:
            heard.append(json.loads(found[1])["id"])
        assert found[0] == CLOSE and found[1][:2] == b"\x03\xea", found
        assert heard == list(range(len(heard))), heard


def nothing_is_read_after_a_close_frame(site):
    for sent in (closing(1000), frame(CLOSE), closing(4000, b"bye")):
        with Raw(site.open) as raw:
            raw.upgrade().send(frame(TEXT, request(1)), sent, frame(TEXT, request(2)), frame(PING, b"late"))
            frames = []
            while not frames or frames[-1][0] != CLOSE:
                frames.append(raw.frame())
            assert (PONG, b"late") not in frames, frames
            assert not any(opcode == TEXT and json.loads(payload)["id"] == 2 for opcode, payload in frames), frames
            while raw.more():
                pass
            assert raw.received == b"", raw.received


def a_connection_cut_within_a_message_harms_no_other(site):
    for sent in (frame(TEXT, request(1), final=False), frame(TEXT, request(1))[:10], b"\x81", frame(PING, b"x")[:4]):
        with Raw(site.open) as raw:
            raw.upgrade().send(sent)
    with Raw(site.open) as raw:
        raw.upgrade().send(frame(TEXT, request(1)))
        is_echo(raw.message(), 1, {})


#: What is refused before the upgrade: the status, the fields that make it so, and the request's first line.
REFUSED = {
    "another path": (404, [], "GET /other HTTP/1.1"),
    "the path with more": (404, [], "GET /acp/ HTTP/1.1"),
    "a page's origin": (403, ["Origin: https://evil.example"], None),
    "no page's origin": (403, ["Origin: null"], None),
    "a foreign host": (403, ["Host: evil.example"], None),
    "POST": (405, [], "POST /acp HTTP/1.1"),
    "no upgrade": (405, ["Upgrade: "], None),
    "an old version": (426, ["Sec-WebSocket-Version: 8"], None),
    "no version": (426, ["Sec-WebSocket-Version: "], None),
    "no key": (400, ["Sec-WebSocket-Key: "], None),
    "a short key": (400, ["Sec-WebSocket-Key: AAAA"], None),
    "no host": (400, ["Host: "], None),
    "two hosts": (400, ["Host: localhost", "host: evil.example"], None),
    "a body": (400, ["Content-Length: 5"], None),
    "a chunked body": (400, ["Transfer-Encoding: chunked"], None),
    "HTTP/1.0": (400, [], "GET /acp HTTP/1.0"),
    "a line that is no request": (400, [], "hello"),
    "a long head": (431, ["Cookie: " + "x" * 40_000], None),
}


def a_request_is_refused_with_its_status_and_says_why(site):
    wrong = []
    for name, (status, fields, line) in REFUSED.items():
        with Raw(site.open) as raw:
            found, answer, body = raw.ask(*fields, line=line)
            if found != status:
                wrong.append(f"{name}: {found} and not {status}: {body}")
                continue
            said = json.loads(body)
            assert body.count(b"\n") == 1 and body.endswith(b"\n"), body
            assert said["status"] == status and said["error"] and said["message"], said
            if status == 405:
                assert answer["allow"] == "GET", answer
            if status == 426:
                assert answer["sec-websocket-version"] == "13" and answer["upgrade"] == "websocket", answer
            while raw.more():
                pass
            assert raw.received == b"", raw.received
    assert not wrong, "\n".join(wrong)


def a_query_an_origin_that_is_listed_and_a_local_host_pass(site):
    port = site.open.rpartition(":")[2].split("/")[0]
    with Raw(site.open) as raw:
        raw.upgrade(f"Host: localhost:{port}")
    with Raw(site.guarded) as raw:
        raw.upgrade("Authorization: Bearer the-secret-of-bob", f"Origin: {ORIGIN}")
        raw.send(frame(TEXT, request(1)))
        is_echo(raw.message(), 1, {})
    for origin in (ORIGIN + ".evil.example", "http://app.example", ORIGIN + ":8443"):
        with Raw(site.guarded) as raw:
            assert raw.ask("Authorization: Bearer the-secret-of-bob", f"Origin: {origin}")[0] == 403, origin


def health_is_served_on_the_same_port(site):
    for url in (site.open, site.guarded):
        with Raw(url) as raw:
            raw.send(f"GET /healthz HTTP/1.1\r\nHost: {raw.host}\r\n\r\n".encode())
            assert raw.answer()[0] == 200


# npm ws, each case by name in websocket.js.


def npm_ws(case):
    def run(site):
        process = node(case, site.open, site.guarded, site.unix)
        output, _ = process.communicate(timeout=2 * PATIENCE)
        assert process.returncode == 0, f"websocket.js {case} exited with {process.returncode}:\n{output}"
    run.__name__ = f"npm_ws_{case}"
    return run


NPM_WS = ["fragments_with_pings", "a_megabyte", "newlines", "binary", "tokens", "refusals", "closing", "too_long", "not_utf8",
          "compression_is_not_agreed_on", "a_unix_socket"]


# Cases with a daemon of their own.


def clients_get_1001_after_their_last_answer_when_it_drains():
    with Daemon([holder()], [{"ws": "127.0.0.1:0"}], limits={"quiesce_sec": 60}) as daemon:
        fifo = os.path.join(daemon.directory.name, "fifo")
        url = daemon.urls[0]
        os.mkfifo(fifo)
        # Opened for reading and writing, it keeps its bytes until there are readers.
        with open(fifo, "r+b", buffering=0) as gate, Raw(url) as idle, Raw(url) as raw:
            idle.upgrade()
            raw.upgrade().send(frame(TEXT, json.dumps(hold(fifo))))
            assert raw.message()["method"] == "heard"
            other = node("drained", url, fifo)
            assert other.stdout.readline() == "heard\n", other.communicate()
            daemon.drain()
            assert idle.ends()[0] == 1001
            gate.write(b"go")
            assert raw.message()["result"] == "late"
            assert raw.ends()[0] == 1001
            output, _ = other.communicate(timeout=PATIENCE)
            assert other.returncode == 0, output


def a_client_that_leaves_is_removed_at_once_whatever_is_pending():
    """A WebSocket has no half-close: a client that has sent its last byte, or a close frame, gets no more answers."""
    ways = {
        "a close frame": lambda raw: raw.send(closing(1000)),
        "half of the connection closed": lambda raw: raw.socket.shutdown(socket.SHUT_WR),
        "all of the connection closed": lambda raw: raw.socket.close(),
    }
    # With NDJSON, the end of input ends the requests, and their answers are awaited.
    with Daemon([holder(assignment="dedicated", max_instances=len(ways) + 1)], [{"ws": "127.0.0.1:0", "ping_sec": 0}],
                limits={"drain_timeout_sec": 3600, "quiesce_sec": 0}) as daemon:
        fifo = os.path.join(daemon.directory.name, "fifo")
        # It is never written to.
        os.mkfifo(fifo)
        for name, go in ways.items():
            with Raw(daemon.urls[0]) as raw:
                raw.upgrade().send(frame(TEXT, json.dumps(hold(fifo))))
                assert raw.message()["method"] == "heard"
                go(raw)
                if raw.socket.fileno() >= 0:
                    while raw.more():
                        pass
                line = daemon.logs("client_closed")
                assert "failed=1" in line, f"{name}: {line}"


def a_client_that_does_not_answer_pings_is_closed_and_one_that_does_stays():
    listener = {"ws": "127.0.0.1:0", "ping_sec": 1}
    with Daemon([echo()], [listener]) as daemon, Raw(daemon.urls[0]) as dead, Raw(daemon.urls[0]) as alive:
        dead.upgrade()
        alive.upgrade()
        answered = 0
        while dead_is_open(dead):
            opcode, payload = alive.frame()
            assert opcode == PING, opcode
            alive.send(frame(PONG, payload))
            answered += 1
        assert answered, "nobody was asked"
        alive.send(frame(TEXT, request(1)))
        is_echo(alive.message(), 1, {})


def dead_is_open(raw):
    raw.socket.setblocking(False)
    try:
        return raw.more()
    except BlockingIOError:
        return True


ON_A_SITE = [
    fragments_with_pings_between_them_are_one_message,
    a_megabyte_comes_back_from_one_frame_and_from_a_thousand,
    newlines_in_a_message_do_not_make_two,
    binary_messages_are_ignored,
    a_clients_close_code_is_echoed,
    a_message_over_the_limit_is_closed_with_1009,
    invalid_json_is_closed_with_1007,
    a_token_is_taken_from_the_field_and_from_the_subprotocol,
    a_wrong_token_is_refused_with_401,
    an_added_token_admits_and_a_removed_one_does_not,
    a_session_is_loaded_only_under_its_original_name,
    connections_have_ids_that_differ,
    a_hundred_connections_ask_at_once,
    a_message_byte_by_byte_is_answered,
    frames_behind_the_head_and_many_in_a_write_are_answered_in_order,
    pings_inside_fragments_are_answered_at_once,
    a_client_that_continues_an_overlong_message_learns_why_it_is_closed,
    a_protocol_violation_is_closed_with_its_code,
    messages_before_a_fault_in_one_write_count,
    nothing_is_read_after_a_close_frame,
    a_connection_cut_within_a_message_harms_no_other,
    a_request_is_refused_with_its_status_and_says_why,
    a_query_an_origin_that_is_listed_and_a_local_host_pass,
    health_is_served_on_the_same_port,
    *map(npm_ws, NPM_WS),
]
ALONE = [
    clients_get_1001_after_their_last_answer_when_it_drains,
    a_client_that_leaves_is_removed_at_once_whatever_is_pending,
    a_client_that_does_not_answer_pings_is_closed_and_one_that_does_stays,
]


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0

    def run(case, *arguments):
        nonlocal passed, failed
        if part not in case.__name__:
            return
        try:
            outcome = case(*arguments)
            if asyncio.iscoroutine(outcome):
                asyncio.run(outcome)
            passed, verdict = passed + 1, "ok"
        except Exception:
            traceback.print_exc()
            failed, verdict = failed + 1, "FAILED"
        print(f"test {case.__name__} ... {verdict}", flush=True)

    with Site() as site:
        for case in ON_A_SITE:
            run(case, site)
    for case in ALONE:
        run(case)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
