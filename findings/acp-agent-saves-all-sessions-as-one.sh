#!/usr/bin/env bash
# One would expect: an ACP agent that says loadSession keeps each of its sessions, since one connection may have several: an
# editor opens one for each thread, and loads each of them again later.
# What happens: fast-agent saves what is said in any session of its process under the newest one. The list names that one
# only, with the other one's prompt as its title, and an older session, answered a moment ago, cannot be loaded.
# Versions: fast-agent-mcp 0.10.48 with agent-client-protocol 0.12.1 (Python 3.13). Seen on 28 November 2026.
# Why it matters: an editor with two threads loses one at the next start, and where clients share an agent's process, each
# sees the other's prompt in its list. Such an agent needs a process for each session.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
"${PYTHON313:-python3.13}" -m venv venv || { echo "needs Python 3.13, or its path in PYTHON313"; exit 1; }
venv/bin/pip install --quiet --disable-pip-version-check fast-agent-mcp==0.10.48 agent-client-protocol==0.12.1 >pip.log 2>&1 || { cat pip.log; exit 1; }

cat >requests.py <<'EOF'
import http.server, json, os, subprocess, threading
class Model(http.server.BaseHTTPRequestHandler):
    """A model that says "heard"."""
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.send_header('content-type', 'text/event-stream')
        self.end_headers()
        begin = {'id': 'c', 'object': 'chat.completion.chunk', 'created': 1, 'model': 'm'}
        for delta, end in ({'role': 'assistant', 'content': 'heard'}, None), ({}, 'stop'):
            chunk = dict(begin, choices=[{'index': 0, 'delta': delta, 'finish_reason': end}])
            self.wfile.write(b'data: ' + json.dumps(chunk).encode() + b'\n\n')
        self.wfile.write(b'data: [DONE]\n\n')
    def log_message(self, *arguments): pass
model = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Model)
threading.Thread(target=model.serve_forever, daemon=True).start()
here = os.getcwd()
environment = {'PATH': os.environ['PATH'], 'HOME': here, 'GENERIC_API_KEY': 'none',
               'GENERIC_BASE_URL': f'http://127.0.0.1:{model.server_port}/v1'}
class Agent:
    def __init__(self):
        self.process = subprocess.Popen([f'{here}/venv/bin/fast-agent-acp', '--model', 'generic.m'], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.id = 0
        says = self.ask('initialize', {'protocolVersion': 1, 'clientCapabilities': {}})['result']['agentCapabilities']
        assert says['loadSession'] is True
    def ask(self, method, params):
        self.id += 1
        self.process.stdin.write(json.dumps({'jsonrpc': '2.0', 'id': self.id, 'method': method, 'params': params}) + '\n')
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get('id') == self.id and 'method' not in answer:
                return answer
    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
place = {'cwd': here, 'mcpServers': []}
agent = Agent()
first, second = (agent.ask('session/new', place)['result']['sessionId'] for _ in range(2))
names = {first: 'the first session', second: 'the second session'}
for session, text in (second, 'two'), (first, 'one'):
    answer = agent.ask('session/prompt', {'sessionId': session, 'prompt': [{'type': 'text', 'text': f'prompt {text}'}]})
    print(names[session], 'is asked prompt', text, '->', answer['result']['stopReason'])
for listed in agent.ask('session/list', {})['result']['sessions']:
    print('listed:', names[listed['sessionId']], 'with the title', listed['title'])
agent.end()
agent = Agent()
for session in first, second:
    answer = agent.ask('session/load', {'sessionId': session, **place})
    print('loaded by the next process:', names[session], '->', answer['error']['message'].split(':')[0] if 'error' in answer else 'a result')
agent.end()
EOF

expected='the second session is asked prompt two -> end_turn
the first session is asked prompt one -> end_turn
listed: the second session with the title prompt two
loaded by the next process: the first session -> Session not found
loaded by the next process: the second session -> a result'
compare "$expected" "$(timeout 120 venv/bin/python requests.py)"
