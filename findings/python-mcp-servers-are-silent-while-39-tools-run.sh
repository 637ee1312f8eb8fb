#!/usr/bin/env bash
# One would expect: a server that runs its tools in threads, as MCP's Python SDK and FastMCP do with tools that are functions,
# continues to read and to answer a ping, however many tools run; at most further tools have to wait.
# What happens: stdin is read and stdout is written in threads of the same pool, which is AnyIO's default of 40. The reader
# keeps one of them while it waits for a line. So while 39 functions run, the server writes nothing: neither the answer to a
# ping nor results that are ready. Coroutines need no thread. The limit can be raised in the event loop before the server
# runs (total_tokens).
# Versions: mcp 2.3.0, fastmcp 4.2.3, anyio 4.16.0 (Python 3.11). Seen on 1 December 2026.
# Why it matters: a process that many clients share reaches 39 calls at once. Whoever takes silence, or an unanswered ping, for
# a process that hangs restarts it then, and all its calls are lost.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python_packages mcp==2.3.0 fastmcp==4.2.3 anyio==4.16.0
cat >server.py <<'END'
import os, sys, time
import anyio, anyio.to_thread
framework, kind, *limit = sys.argv[1:]
if framework == 'mcp':
    from mcp.server import MCPServer
    server, run = MCPServer('server'), lambda: server.run_stdio_async()
else:
    from fastmcp import FastMCP
    server, run = FastMCP('server'), lambda: server.run_stdio_async(show_banner=False)
# The tools wait until they may end, for a minute at most.
def begin(number):
    open(f'begun/{number}', 'w').close()
    return time.monotonic() + 60
def function(number: int) -> str:
    end = begin(number)
    while not os.path.exists('may-end') and time.monotonic() < end:
        time.sleep(0.1)
    return 'done'
async def coroutine(number: int) -> str:
    end = begin(number)
    while not os.path.exists('may-end') and time.monotonic() < end:
        await anyio.sleep(0.1)
    return 'done'
server.tool(name='tool')(function if kind == 'functions' else coroutine)
async def main():
    if limit:
        anyio.to_thread.current_default_thread_limiter().total_tokens = int(limit[0])
    await run()
anyio.run(main)
END
cat >calls.py <<'END'
import json, os, queue, shutil, subprocess, sys, threading, time
def run(name, count, *arguments):
    shutil.rmtree('begun', ignore_errors=True)
    os.mkdir('begun')
    if os.path.exists('may-end'):
        os.remove('may-end')
    server = subprocess.Popen([sys.executable, 'server.py', *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True)
    ids = queue.Queue()
    def read():
        for line in server.stdout:
            ids.put(json.loads(line).get('id'))
    threading.Thread(target=read, daemon=True).start()
    def send(method, params=None, **id):
        server.stdin.write(json.dumps({'jsonrpc': '2.0', 'method': method, **id, **({'params': params} if params else {})}) + '\n')
        server.stdin.flush()
    send('initialize', {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'client', 'version': '1'}}, id='i')
    while ids.get(timeout=60) != 'i':
        pass
    send('notifications/initialized')
    for number in range(count):
        send('tools/call', {'name': 'tool', 'arguments': {'number': number}}, id=number)
    end = time.monotonic() + 60
    while len(os.listdir('begun')) < count:
        if time.monotonic() > end:
            sys.exit(f'{name}: only {len(os.listdir("begun"))} tools run')
        time.sleep(0.1)
    send('ping', id='p')
    seen = set()
    try:
        seen.add(ids.get(timeout=5))
        how = 'at once'
    except queue.Empty:
        how = 'not before a tool ends'
    open('may-end', 'w').close()
    while len(seen - {None}) < count + 1:
        seen.add(ids.get(timeout=60))
    server.stdin.close()
    server.wait(60)
    print(f'{name}, {count} {arguments[1]}: a ping is answered {how}', flush=True)
run('mcp', 38, 'mcp', 'functions')
run('mcp', 39, 'mcp', 'functions')
run('mcp', 39, 'mcp', 'coroutines')
run('mcp with total_tokens = 80', 39, 'mcp', 'functions', '80')
run('FastMCP', 38, 'fastmcp', 'functions')
run('FastMCP', 39, 'fastmcp', 'functions')
END
expected='mcp, 38 functions: a ping is answered at once
mcp, 39 functions: a ping is answered not before a tool ends
mcp, 39 coroutines: a ping is answered at once
mcp with total_tokens = 80, 39 functions: a ping is answered at once
FastMCP, 38 functions: a ping is answered at once
FastMCP, 39 functions: a ping is answered not before a tool ends'
compare "$expected" "$(timeout 300 "$python" calls.py)"
