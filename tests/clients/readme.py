"""The documents are correct: the README's workers answer, and every configuration shown is valid.

STDIO_BUS names the daemon's program.
"""

import glob
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile

from daemon import Daemon

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A worker that answers whatever is asked.
ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "2025-06-18"}}), flush=True)
"""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path, language):
    with open(path) as file:
        return [text for found, text in BLOCK.findall(file.read()) if found == language]


def worker_answers(language, command, name):
    """A worker from the README answers, run from its own code block. scripts/test workers asks it more."""
    with open(os.path.join(ROOT, "examples", "workers", name)) as file:
        program = file.read()
    assert program in blocks(os.path.join(ROOT, "README.md"), language), f"README.md shows another {name}"
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, name), "w") as file:
            file.write(program)
        pool = {"id": "readme", "command": command, "args": [name], "cwd": directory, "instances": 2}
        with Daemon([pool]) as daemon, socket.create_connection(("127.0.0.1", daemon.ports["readme"])) as client:
            client.settimeout(30)
            reader = client.makefile("r")
            for number in range(10):
                request = {"jsonrpc": "2.0", "id": number, "method": "hello", "params": {"a": number}}
                client.sendall(json.dumps(request).encode() + b"\n")
                answer = json.loads(reader.readline())
                assert answer["id"] == number and answer["result"], answer


def first_conversation():
    """The README's commands, verbatim except for the port: a worker without a configuration file answers, and a
    configuration is written, checked and run."""
    readme = os.path.join(ROOT, "README.md")
    (program,) = [text for text in blocks(readme, "python") if "message" in text]
    lines = [line for text in blocks(readme, "sh") for line in text.splitlines() if line.startswith("stdio_bus ")]
    begins = ["stdio_bus --tcp", "stdio_bus call", "stdio_bus init", "stdio_bus check", "stdio_bus --config"]
    daemon, call, init, check, configured = [next(line for line in lines if line.startswith(begin)) for begin in begins]
    with open(readme) as file:
        (promised,) = re.findall(r"^prints `(.*?)`", file.read(), re.MULTILINE)
    with tempfile.TemporaryDirectory() as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        with open(os.path.join(directory, "worker.py"), "w") as file:
            file.write(program)
        os.symlink(os.path.abspath(os.environ["STDIO_BUS"]), os.path.join(directory, "stdio_bus"))
        environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}

        def run(line):
            line = line.replace("127.0.0.1:9000", port)
            ran = subprocess.run(line, shell=True, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)
            assert ran.returncode == 0, f"{line}: {ran.returncode}\n{ran.stderr}"
            return ran.stdout

        def asked(line):
            words = shlex.split(line.replace("127.0.0.1:9000", port))
            with subprocess.Popen(words, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True) as running:
                try:
                    for logged in running.stderr:
                        if "listening on tcp" in logged:
                            break
                    return run(call)
                finally:
                    running.terminate()
                    running.stderr.read()

        assert asked(daemon).strip() == promised
        run(init)
        written = os.path.join(directory, "bus.json")
        with open(written) as file:
            text = file.read().replace("127.0.0.1:9000", port)
        with open(written, "w") as file:
            file.write(text)
        run(check)
        assert asked(configured).strip() == promised


def configuration_passes(text, directory):
    path = os.path.join(directory, "bus.json")
    with open(path, "w") as file:
        file.write(text)
    # Stand-ins for programs and files that the documents only mention.
    tokens = os.path.join(directory, "tokens")
    with open(os.open(tokens, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("alice:0123456789abcdef\n")
    text = re.sub(r'"tokens_file": "/[^"]*"', lambda _: f'"tokens_file": {json.dumps(tokens)}', text)
    for pool in json.loads(text)["pools"]:
        command = pool.get("command", "")
        if "/" in command or not shutil.which(command):
            place = os.path.join(directory, os.path.basename(command))
            with open(place, "w") as file:
                file.write("#!/bin/sh\nexec cat\n")
            os.chmod(place, 0o755)
            text = text.replace(f'"command": {json.dumps(command)}', f'"command": {json.dumps(place)}', 1)
    with open(path, "w") as file:
        file.write(text)
    checked = subprocess.run([os.environ["STDIO_BUS"], "check", "--config", path], capture_output=True, text=True)
    assert checked.returncode == 0, f"{text}\n{checked.stderr}"


# How an editor or an MCP host starts the bridge, without an installation of its own.
STARTERS = (["npx", "--prefer-offline", "stdio-bus"], ["uvx", "stdio-bus"])


def editors_bridge_is_answered(path):
    """Each entry of a file for editors names the packages' commands, and its bridge gets an answer from a daemon."""
    with open(path) as file:
        (entries,) = json.load(file).values()
    pool = {"id": "echo", "command": sys.executable, "args": ["-c", ECHO], "instances": 1, "assignment": "client"}
    listeners = [{"tcp": "127.0.0.1:0"}, {"http": "127.0.0.1:0"}]
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}}}
    started = [[entry["command"], *entry["args"]] for entry in entries.values()]
    assert [command[:-3] for command in started] == list(STARTERS), started
    with Daemon([pool], listeners) as daemon:
        schemes = {url.split(":")[0]: url for url in daemon.urls}
        for *_, connect, flag, address in started:
            scheme, rest = address.split("://")
            port = re.search(r":(\d+)", schemes[scheme].split("://")[1])[1]
            address = f"{scheme}://{rest.replace('9000', port)}"
            bridge = [os.environ["STDIO_BUS"], connect, flag, address]
            done = subprocess.run(bridge, input=json.dumps(request) + "\n", capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and json.loads(done.stdout)["result"], done


def cases():
    yield "the_python_worker_of_the_readme_answers", lambda: worker_answers("python", "python3", "worker.py")
    yield "the_node_worker_of_the_readme_answers", lambda: worker_answers("javascript", "node", "worker.js")
    yield "the_first_conversation_of_the_readme_is_as_it_says", first_conversation
    for path in sorted(glob.glob(os.path.join(ROOT, "config", "editors", "*.json"))):
        name = os.path.basename(path).removesuffix(".json").replace("-", "_")
        yield f"the_bridge_that_{name}_starts_is_answered", lambda path=path: editors_bridge_is_answered(path)
    documents = [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]
    shown = [(path, text) for path in documents for text in blocks(path, "json")]
    for path in sorted(glob.glob(os.path.join(ROOT, "config", "**", "*.json"), recursive=True)):
        with open(path) as file:
            shown.append((path, file.read()))
    for number, (path, text) in enumerate(shown):
        # Fragments and other files, such as an editor's settings, are not configurations.
        if re.match(r'\s*\{\s*("\$schema"[^\n]*\n\s*)?("_comment"[^\n]*\n\s*)?"pools"', text):
            name = f"configuration_{number}_in_{os.path.relpath(path, ROOT)}_can_be_used"

            def check(text=text):
                with tempfile.TemporaryDirectory() as directory:
                    configuration_passes(text, directory)

            yield name, check


def main():
    passed = failed = 0
    for name, case in cases():
        try:
            case()
            passed, verdict = passed + 1, "ok"
        except Exception as error:
            failed, verdict = failed + 1, f"FAILED: {error!r}"
        print(f"test {name} ... {verdict}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
