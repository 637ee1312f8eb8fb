"""Bytes in = bytes out: 100,000 mixed lines over 50 plain connections and 4 echo workers.

An echo worker's answer carries the params of its request as they were written: white space, escapes, order of keys
and numbers included. Each connection hashes the params it sends, in the order of its requests, and the params it
gets back; the two hashes have to be equal. On half of the connections all requests are in one session, so their
answers have to come in order; on the others they come from any worker and are put in order by their ids first.
"""

import hashlib
import os
import random
import socket
import sys
import threading
import time

from daemon import Daemon

LINES = int(os.environ.get("STDIO_BUS_HASH_LINES", "100000"))
CONNECTIONS = 50
BATCH = 50

STRINGS = [b'""', b'"plain"', rb'"\u0061\/\\\"\n"', '"é€😀"'.encode(), rb'"\ud83d\ude00 \ud83d"', b'"{\\"id\\":1}"', b'"\x7f"']
NUMBERS = [b"0", b"-0", b"1.0", b"1e3", b"1E-7", b"123456789012345678901234567890", b"-12.50"]


def value(random, depth):
    kind = random.randrange(6 if depth else 4)
    space = random.choice([b"", b"", b" ", b"\t", b"  "])
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice([b"true", b"false", b"null"])
    if kind < 4:
        return random.choice(STRINGS)
    items = [value(random, depth - 1) for _ in range(random.randrange(5))]
    if kind == 4:
        return b"[" + space + (b"," + space).join(items) + b"]"
    return b"{" + (space + b",").join(random.choice(STRINGS) + b":" + space + item for item in items) + space + b"}"


def params(random):
    size = random.random()
    if size < 0.002:
        fill = b'"' + b"x" * random.randrange(60_000, 400_000) + b'"'
    elif size < 0.1:
        fill = b'"' + b"y" * random.randrange(2_000, 20_000) + b'"'
    else:
        fill = value(random, 3)
    return b'{"fill":%s,"last":%s}' % (fill, random.choice(NUMBERS))


def connection(number, port, lines, problems):
    try:
        dice = random.Random(number)
        session = b'"sessionId":"s%d",' % number if number % 2 else b""
        ordered = bool(session)
        sent, received = hashlib.sha256(), hashlib.sha256()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            reader = client.makefile("rb", 1 << 16)
            for first in range(0, lines, BATCH):
                ids = range(first, min(first + BATCH, lines))
                batch = []
                for id in ids:
                    token = params(dice)
                    sent.update(b"%d:%s\n" % (id, token))
                    batch.append(b'{"jsonrpc":"2.0","id":%d,%s"method":"m","params":%s}\n' % (id, session, token))
                # The answers are read while the batch is being written, so that neither side waits for the other.
                writer = threading.Thread(target=client.sendall, args=(b"".join(batch),))
                writer.start()
                answers = []
                for _ in ids:
                    line = reader.readline()
                    head, _, rest = line.partition(b'"echo":')
                    token, method, _ = rest.rpartition(b',"method":"m"')
                    if not method:
                        raise AssertionError(f"no answer: {line[:200]!r}")
                    answers.append((int(head.split(b'"id":')[1].split(b",")[0]), token))
                writer.join()
                if not ordered:
                    answers.sort()
                for id, token in answers:
                    received.update(b"%d:%s\n" % (id, token))
        if sent.digest() != received.digest():
            problems.append(f"connection {number}: {sent.hexdigest()} was sent and {received.hexdigest()} came back")
    except Exception as error:
        problems.append(f"connection {number}: {error!r}")


def main():
    begun = time.monotonic()
    echo = {"id": "echo", "command": os.environ["STDIO_BUS"], "args": ["worker", "echo"], "instances": 4}
    problems = []
    with Daemon([echo]) as daemon:
        port = daemon.ports["echo"]
        lines = LINES // CONNECTIONS
        threads = [threading.Thread(target=connection, args=(number, port, lines, problems)) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("\n".join(problems))
    verdict = "FAILED" if problems else "ok"
    took = time.monotonic() - begun
    print(f"test {lines * CONNECTIONS}_lines_come_back_byte_for_byte ... {verdict} ({took:.1f} s)")
    print(f"{int(not problems)} passed, {int(bool(problems))} failed")
    sys.exit(1 if problems else 0)


main()
