"""ACP over Streamable HTTP with the official clients, unmodified: that of TypeScript, of Python and of Rust, first at a
daemon, then at two behind HAProxy with config/haproxy-acp.cfg, which speaks HTTP/2 with those that can.

acp_http.py [PART]: only the cases with PART in their name. STDIO_BUS is the daemon's program, STDIO_BUS_ACP_RUST the
client of Rust (tests/clients/acp_http); without it those cases are left out, which is said.
"""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))

from daemon import Daemon  # noqa: E402
from run import HERE as CLIENTS, finish, pool, start  # noqa: E402

from balancer import certificates, free_ports, haproxy, proxied  # noqa: E402

RUST = os.environ.get("STDIO_BUS_ACP_RUST")
SCENARIOS = ["sessions", "long", "broken", "leaves"]
LIMITS = {"max_input_buffer": 16 << 20}


def plain(assignment):
    return {"id": "plain", "command": sys.executable, "args": ["agent_http.py"], "cwd": CLIENTS, "instances": 1,
            "assignment": assignment}


def run(*command, **more):
    name = " ".join(map(str, command[:4]))
    done = subprocess.run([str(part) for part in command], cwd=CLIENTS, capture_output=True, text=True, timeout=240, **more)
    assert done.returncode == 0, f"{name} exited with {done.returncode}:\n{done.stdout}{done.stderr}"


def site(assignment):
    return Daemon([plain(assignment)], [{"acp": "127.0.0.1:0"}], limits=LIMITS)


def typescript_alone(assignment):
    """Two sessions, 5 MiB, a broken stream, DELETE and an unknown id."""
    with site(assignment) as daemon:
        for scenario in SCENARIOS:
            run("node", "acp_http.js", daemon.urls[0], scenario)


def python_broken(assignment):
    """The stream of a session breaks and is opened again: what was said meanwhile comes on the new one."""
    with site(assignment) as daemon:
        run(sys.executable, "acp_http.py", daemon.urls[0], "broken")


def turns(assignment, instances, count):
    """Prompts, permissions, files and cancellations of this many clients of each SDK at once."""
    with Daemon([pool("ts2", instances, assignment)], [{"acp": "127.0.0.1:0", "pool": "ts2"}]) as daemon:
        both = [(name, start(name, count, 1, "turns", daemon.urls)) for name in ("ts2", "python")]
        for name, process in both:
            finish(name, process)


def a_worker_crashes():
    """A client's own worker dies in the middle of a prompt, which is reported to the client; others go on."""
    with Daemon([pool("ts2", 1, "dedicated")], [{"acp": "127.0.0.1:0"}]) as daemon:
        for name in ("ts2", "python"):
            finish(name, start(name, 1, 1, "crash", daemon.urls))
        finish("those who come later", start("ts2", 2, 1, "turns", daemon.urls))


def a_client_vanishes():
    """A client is killed in the middle of a prompt, without a DELETE. Its connection ends, and its worker with it."""
    limits = {"session_detached_sec": 1, "drain_timeout_sec": 3}
    with Daemon([pool("ts2", 1, "dedicated")], [{"acp": "127.0.0.1:0"}], limits=limits) as daemon:
        start("ts2", 1, 1, "vanish", daemon.urls).communicate(timeout=60)
        daemon.logs("reason=session_idle")
        finish("those who come later", start("ts2", 2, 1, "turns", daemon.urls))


def rust_alone(assignment, count):
    """This many clients at once, each with two sessions, a permission and a cancellation, one with 5 MiB."""
    with site(assignment) as daemon:
        run(RUST, daemon.urls[0], count)


class Front:
    """Two daemons behind HAProxy. `only_two` refuses what does not speak HTTP/2."""

    def __init__(self, only_two):
        self.folder = tempfile.TemporaryDirectory()
        certificates(self.folder.name)
        front, *ports = free_ports(5)
        self.daemons = []
        for at in range(2):
            port, admin = ports[2 * at : 2 * at + 2]
            listener = {"acp": f"127.0.0.1:{port}", "trusted_proxies": ["127.0.0.1"], "hosts": ["localhost"]}
            self.daemons.append(Daemon([plain("dedicated") | {"max_instances": 40}], [listener], node=f"bus{at + 1}",
                                       admin={"listen": f"127.0.0.1:{admin}"}, limits=LIMITS))
        changes = [(f"127.0.0.1:900{at} port 910{at}$", f"127.0.0.1:{ports[2 * at - 2]} port {ports[2 * at - 1]}")
                   for at in (1, 2)]
        changes.append(("bind :9443 ", f"bind 127.0.0.1:{front} "))
        changes.append(("/etc/haproxy/agents.pem", os.path.join(self.folder.name, "localhost.pem")))
        if only_two:
            changes.append((r"http-request del-header Forwarded",
                            "http-request del-header Forwarded\n    http-request deny unless { req.ver 2.0 }"))
        self.process, self.statistics = haproxy(self.folder.name, changes, "acp", "haproxy-acp.cfg")
        self.url = f"https://localhost:{front}/acp"
        authority = os.path.join(self.folder.name, "ca.pem")
        self.trust = {**os.environ, "NODE_EXTRA_CA_CERTS": authority, "SSL_CERT_FILE": authority}
        self.context = ssl.create_default_context(cafile=authority)

    def sees_both(self):
        return os.path.exists(self.statistics) and all(
            asyncio.run(proxied(self.statistics, f"bus{at}")).startswith("UP") for at in (1, 2))

    def __enter__(self):
        try:
            deadline = time.monotonic() + 60
            while not self.sees_both():
                assert time.monotonic() < deadline, "HAProxy does not see both daemons"
                time.sleep(0.1)
            return self
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(60)
        for daemon in self.daemons:
            daemon.__exit__(*error)
        self.folder.cleanup()


def status(front, message, **fields):
    request = urllib.request.Request(front.url, json.dumps(message).encode(), {"Content-Type": "application/json", **fields})
    try:
        with urllib.request.urlopen(request, context=front.context, timeout=60) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def behind_haproxy():
    """Clients of HTTP/1.1: all requests of a connection reach its daemon, and one of a daemon that has gone gets 404."""
    with Front(False) as front:
        for scenario in SCENARIOS:
            run("node", "acp_http.js", front.url, scenario, env=front.trust)
        run(sys.executable, "acp_http.py", front.url, "broken", env=front.trust)
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
        began = [status(front, message) for _ in range(8)]
        assert all(code == 200 for code, _ in began), began
        ids = [{name.lower(): value for name, value in head.items()}["acp-connection-id"] for _, head in began]
        assert {id.split(".")[0] for id in ids} == {"bus1", "bus2"}, ids
        for id in ids:
            listed = {"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}}
            assert status(front, listed, **{"Acp-Connection-Id": id})[0] == 202, id
        assert status(front, listed, **{"Acp-Connection-Id": "bus3.AAAAAAAAAAAAAAAAAAAAAA"})[0] == 404


def rust_behind_haproxy():
    """It speaks HTTP/1.1 over TLS. Its parser of events reads a message anew with each piece that comes, which over TLS are
    short, so one of 5 MiB would take minutes."""
    with Front(False) as front:
        run(RUST, front.url, 8, 256, env=front.trust)


def behind_haproxy_with_http_2():
    """Python's client, and curl, speak HTTP/2 with HAProxy: one TCP connection has the streams and the posts."""
    with Front(True) as front:
        python = [sys.executable, "acp_http.py", front.url, "8"]
        run(*python, env=front.trust)
        code, _ = status(front, {})
        assert code == 403, f"{code}: this client does not speak HTTP/2"


def cases():
    for assignment in ("client", "dedicated"):
        yield f"typescript_{assignment}", lambda a=assignment: typescript_alone(a)
        if RUST:
            yield f"rust_{assignment}", lambda a=assignment: rust_alone(a, 16)
        yield f"python_broken_{assignment}", lambda a=assignment: python_broken(a)
    yield "turns_of_16_clients_on_one_worker", lambda: turns("client", 1, 16)
    yield "turns_of_4_clients_on_their_own_workers", lambda: turns("dedicated", 4, 4)
    yield "a_worker_crashes", a_worker_crashes
    yield "a_client_vanishes", a_client_vanishes
    yield "behind_haproxy", behind_haproxy
    if RUST:
        yield "rust_behind_haproxy", rust_behind_haproxy
    yield "behind_haproxy_with_http_2", behind_haproxy_with_http_2


def main():
    passed = failed = 0
    for name, case in cases():
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            continue
        try:
            case()
            passed += 1
            print(f"test {name} ... ok", flush=True)
        except Exception:
            failed += 1
            print(f"test {name} ... FAILED\n{traceback.format_exc()}", flush=True)
    if not RUST:
        print("the client of Rust was not built: its cases are left out")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
