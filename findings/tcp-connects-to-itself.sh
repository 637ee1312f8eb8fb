#!/usr/bin/env bash
# One would expect: connect(2) to a loopback port on which nobody listens fails with ECONNREFUSED, however often it is tried.
# What happens: if the port is in the range that the kernel takes source ports from (32768 to 60999), one attempt in some
# ten thousand gets that same port as its source, and TCP's simultaneous open joins the socket to itself: connect succeeds,
# and what is written is read back. While it lives, nobody can listen on the port. Only ports of one parity are concerned:
# since connect(2) takes source ports with the parity of the range's start and bind(2) to port 0 takes the others, a test
# with a port that bind(2) has chosen never shows it.
# Versions: Linux 6.18; Python 3.11 as a way to make the system calls. Seen on 28 November 2026.
# Why it matters: a client, proxy or health check that retries until its server is up can keep that server down (EADDRINUSE),
# and a JSON-RPC client reads its own requests as if the server had sent them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >connect.py <<'END'
import socket
low, high = map(int, open('/proc/sys/net/ipv4/ip_local_port_range').read().split())
def free(port):
    with socket.socket() as listener:
        try:
            listener.bind(('127.0.0.1', port))
        except OSError:
            return False
        return True
def attempts(port, most):
    for number in range(most):
        client = socket.socket()
        try:
            client.connect(('127.0.0.1', port))
            return client
        except ConnectionRefusedError:
            client.close()
    return None
middle = (low + high) // 2
same = next(port for port in range(middle + (middle - low) % 2, high, 2) if free(port))
other = next(port for port in range(middle + 1 - (middle - low) % 2, high, 2) if free(port))
print('port of the other parity:', 'refused each time' if attempts(other, 4 * (high - low)) is None else 'connected')
client = attempts(same, 40 * (high - low))
if client is None:
    print('port of the same parity: refused each time')
else:
    print('port of the same parity: connected,', 'to itself' if client.getsockname() == client.getpeername() else 'to somebody')
    client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    print('it reads:', client.recv(100).decode().strip())
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(('127.0.0.1', same))
            server.listen()
            print('a server can listen')
        except OSError as error:
            print('a server cannot listen:', error.strerror)
END
expected='port of the other parity: refused each time
port of the same parity: connected, to itself
it reads: {"jsonrpc":"2.0","id":1,"method":"ping"}
a server cannot listen: Address already in use'
compare "$expected" "$(python3 connect.py)"
