"""The Debian package, installed as an administrator would: its programs run, its configuration is the administrator's, and
nothing stays after a purge. It all happens in a mount namespace over copies of /etc, /usr and /var that are thrown away.

    tests/package.py FILE.deb

Needs root, dpkg and a kernel with overlayfs; without them it says so and is skipped.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile

import cases

PATIENCE = 60
CONFIG = "/etc/stdio-bus/bus.json"
SOCKET = "/run/stdio_bus.sock"


def run(*command, **options):
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


def in_a_world_of_its_own(package):
    """Runs this file again where /etc, /usr and /var are copies; returns the result, or why that is impossible."""
    if os.geteuid() != 0:
        return None, "only root can install packages"
    with tempfile.TemporaryDirectory() as folder:
        script = ['set -e', 'mount -t tmpfs tmpfs "$1"', "mount -t tmpfs tmpfs /run"]
        for name in ["etc", "usr", "var"]:
            layers = f'lowerdir=/{name},upperdir=$1/{name}/upper,workdir=$1/{name}/work'
            script += [f'mkdir -p "$1/{name}/upper" "$1/{name}/work"', f'mount -t overlay overlay -o "{layers}" /{name}']
        shell = ["unshare", "--mount", "sh", "-c", "\n".join([*script, 'shift; exec "$@"']), "sh", folder]
        try:
            run(*shell, "dpkg", "--version")
        except (AssertionError, FileNotFoundError) as error:
            return None, f"there is no dpkg, or no namespace for it: {error}"
        again = [sys.executable, os.path.abspath(__file__), "--inside", package]
        return subprocess.run([*shell, *again], timeout=10 * PATIENCE).returncode, None


def files():
    return run("dpkg", "-L", "stdio-bus").splitlines()


def it_installs_programs_units_pages_and_a_user(package):
    run("dpkg", "--install", package)
    for path in [
        "/usr/bin/stdio_bus", "/usr/bin/openai-agent", "/usr/lib/systemd/system/stdio_bus.service",
        "/usr/lib/systemd/system/stdio_bus.socket", "/usr/lib/systemd/system/stdio_bus@.service",
        "/usr/lib/systemd/system/stdio_bus@.socket", "/usr/share/man/man1/stdio_bus.1.gz",
        "/usr/share/man/man1/openai-agent.1.gz", "/usr/share/bash-completion/completions/stdio_bus",
        "/usr/share/doc/stdio-bus/copyright", "/usr/share/doc/stdio-bus/examples/openai.json",
    ]:
        assert os.path.isfile(path), path
    assert run("getent", "passwd", "stdio-bus").split(":")[5] == "/var/lib/stdio_bus"
    assert os.stat("/etc/stdio-bus/env").st_mode & 0o777 == 0o600
    for program in ["stdio_bus", "openai-agent"]:
        run(f"/usr/bin/{program}", "--version", env={"PATH": "/usr/bin"})
    told = [line for line in run("dpkg", "--verify", "stdio-bus").splitlines() if line]
    assert not told, told


def its_unit_starts_what_is_installed(_):
    with open("/usr/lib/systemd/system/stdio_bus.service") as file:
        unit = file.read()
    for line in [f"ExecStart=/usr/bin/stdio_bus --config {CONFIG} ", "User=stdio-bus\n", "EnvironmentFile=-/etc/stdio-bus/env\n"]:
        assert line in unit, line
    with open("/usr/lib/systemd/system/stdio_bus@.service") as file:
        template = file.read()
    for line in ["ExecStart=/usr/bin/stdio_bus --config /etc/stdio-bus/%i.json ", "User=stdio-bus\n"]:
        assert line in template, line
    for text in [unit, template]:
        assert "/usr/local" not in text and "DynamicUser" not in text and "/etc/stdio_bus" not in text, text
    assert template.count("User=") == 1, template


def its_daemon_answers(_):
    run("/usr/bin/stdio_bus", "check", "--config", CONFIG)
    daemon = subprocess.Popen(["/usr/bin/stdio_bus", "--config", CONFIG], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in daemon.stderr:
            if "listening on" in line:
                break
        else:
            raise AssertionError("it does not listen")
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "hello"}) + "\n"
        answer = run("/usr/bin/stdio_bus", "acp", "--connect", f"unix:{SOCKET}", input=request)
        assert json.loads(answer)["result"]["method"] == "hello", answer
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=PATIENCE)
    assert daemon.returncode == 0, daemon.returncode


def a_removed_package_leaves_the_configuration_and_a_purged_one_nothing(_):
    paths = [path for path in files() if path.startswith(("/usr/bin/", "/usr/lib/systemd/", "/usr/share/doc/stdio-bus"))]
    with open(CONFIG, "a") as file:
        file.write("\n")
    run("dpkg", "--remove", "stdio-bus")
    left = [path for path in paths if os.path.exists(path) and "/stdio" in path]
    assert not left and os.path.exists(CONFIG), left
    run("dpkg", "--purge", "stdio-bus")
    assert not os.path.exists("/etc/stdio-bus"), os.listdir("/etc/stdio-bus")
    assert subprocess.run(["getent", "passwd", "stdio-bus"], capture_output=True).returncode == 2


TESTS = [
    it_installs_programs_units_pages_and_a_user,
    its_unit_starts_what_is_installed,
    its_daemon_answers,
    a_removed_package_leaves_the_configuration_and_a_purged_one_nothing,
]


if sys.argv[1] == "--inside":
    cases.run(TESTS, sys.argv[2])
code, why = in_a_world_of_its_own(os.path.abspath(sys.argv[1]))
if why:
    cases.skip(why)
sys.exit(code or 0)
