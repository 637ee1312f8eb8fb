#!/usr/bin/env bash
# One would expect: a TCP reset discards what was received and not read (RFC 9293, 3.10.7.4: "all segment queues should be
# flushed"), and the reader gets ECONNRESET.
# What happens on Linux: all bytes that came before the reset can still be read, and ECONNRESET comes behind them. It is
# reported once, to whoever asks first. If a send, or SO_ERROR, which event loops ask for when a socket is ready, has had it,
# the reads end with 0, as after an orderly close.
# Versions: Linux 6.18; Python 3.11 as a way to make the system calls. Seen on 28 November 2026.
# Why it matters: a server that takes the end of a connection for the end of a message, or of a batch of lines, cannot tell
# a complete one from one that was cut off. A message needs an end of its own: a newline, a length, a closing frame.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >reset.py <<'END'
import select, socket, struct
def pair():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]
def read_all(server):
    count = 0
    while True:
        try:
            data = server.recv(65536)
        except ConnectionResetError:
            return f'{count} bytes, then ECONNRESET'
        if not data:
            return f'{count} bytes, then an orderly end'
        count += len(data)
def fails(server):
    try:
        server.send(b'{}')
    except ConnectionResetError:
        pass
for first, what in (('nothing', lambda _: None), ('SO_ERROR', lambda it: it.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
                    ('a send that fails', fails)):
    client, server = pair()
    client.sendall(b'{"jsonrpc":"2.0","method":"m"}\n' * 3000)
    # Closed in this way, a socket sends a reset.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    client.close()
    poll = select.poll()
    poll.register(server, 0)
    assert poll.poll(10_000), 'the reset has come'
    what(server)
    print(f'after {first}:', read_all(server))
END
expected='after nothing: 93000 bytes, then ECONNRESET
after SO_ERROR: 93000 bytes, then an orderly end
after a send that fails: 93000 bytes, then an orderly end'
compare "$expected" "$(python3 reset.py)"
