#!/usr/bin/env bash
# One would expect: a listening socket whose SO_REUSEPORT is off shares its port with nobody: every other bind(2) there fails
# with EADDRINUSE, as it does before the option was on.
# What happens: that holds until one other socket has shared the port. From then on, although that one is closed and
# getsockopt(2) of the first says 0, any socket of the same user that sets the option itself may listen there, and gets its
# share of the connections. The option of the one that listens is asked for only as long as nobody has been let in.
# Versions: Linux 6.18 (x86-64); Python 3.11 as a way to make the system calls. Seen on 29 November 2026.
# Why it matters: a server that lets its successor bind beside it, and switches the option off afterwards, does not have its
# port for itself again: a process that is started by mistake takes some of its clients, and nothing fails.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >share.py <<'END'
import socket
def listens(port, shared):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
    try:
        one.bind(('127.0.0.1', port))
        one.listen()
        return one
    except OSError as error:
        return error.strerror
def tries(port):
    other = listens(port, 1)
    if isinstance(other, str):
        return other
    other.close()
    return 'listens, too'
for is_used in False, True:
    first = listens(0, 0)
    port = first.getsockname()[1]
    print('the option was never on:', tries(port))
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if is_used:
        print('it is on:', tries(port))
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    now = first.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    print(f'it is off again ({now}),', 'somebody was there:' if is_used else 'nobody was there:', tries(port))
    first.close()
END
expected='the option was never on: Address already in use
it is off again (0), nobody was there: Address already in use
the option was never on: Address already in use
it is on: listens, too
it is off again (0), somebody was there: listens, too'
compare "$expected" "$(python3 share.py)"
