"""The workers of docs/workers.md, in each language, behind the daemon: every one of them gets the same lines.

Each section of the document is built and run by the commands that it shows. STDIO_BUS is the daemon's program,
STDIO_BUS_RUST_WORKER the worker in Rust, which cargo has built; STDIO_BUS_WORKERS_NPM is the folder into which npm has
put Node, Deno and Bun. A language that is not installed is skipped and reported.
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))

from daemon import Daemon  # noqa: E402

PATIENCE = 60
# How long a worker may take to start and to compile itself while sixteen others do the same.
STARTING = 240
LARGE = 2_000_000
EXAMPLES = os.path.join(ROOT, "examples", "workers")
NPM = os.environ.get("STDIO_BUS_WORKERS_NPM", "")

# What prints the version, and fails where the language or the library that its worker needs is missing.
PROBES = {
    "Python": "python3 --version",
    "Node": "node --version",
    "Deno": "deno --version",
    "Bun": "bun --version",
    "Go": "go version",
    "Java": "test -e /usr/share/java/gson.jar && java -version 2>&1",
    "Ruby": "ruby --version && ruby -rjson -e 1",
    "PHP": "php --version && php -r 'json_encode(1);'",
    "Perl": """perl -MJSON::PP -e 'print "$^V, JSON::PP $JSON::PP::VERSION"'""",
    "Lua": "lua5.4 -e 'print(_VERSION, require([[dkjson]]).version)'",
    "Elixir": "elixir -e 'IO.puts([System.version(), :jiffy.encode(1)])'",
    "OCaml": "ocamlfind ocamlopt -version && ocamlfind query yojson",
    "Tcl": "echo 'puts [package require sqlite3]' | tclsh",
    "Shell and jq": "jq --version",
    "Rust": 'test -x "$STDIO_BUS_RUST_WORKER" && rustc --version',
}
# Node is tested in several versions: this system's and those from npm.
NODES = {"": None, " 24": "node24", " 26": "node26"}


def request(id, params="{}"):
    return f'{{"jsonrpc":"2.0","id":{id},"method":"hello","params":{params}}}'.encode()


def nested(depth):
    return "[" * depth + "]" * depth


# Lines that are whole and legal JSON. What is sent is what has to be said back, unless CHANGED names the language.
LINES = {
    "an_object": request(1, '{"a":[],"b":{},"c":null,"d":false,"":"e"}'),
    "no_params": b'{"jsonrpc":"2.0","id":2,"method":"hello"}',
    "raw_line_separators_of_unicode": request(3, '{"a":"b\u2028c\u2029d\u0085e","\u2028":"\U0001f600"}'),
    "a_lone_carriage_return_between_tokens": b'{"jsonrpc":"2.0",\r"id":4,\r\t"method":"hello","params":\r{"a":1}}',
    "a_line_that_ends_in_crlf": request(5) + b"\r",
    "70000_bytes": request(6, json.dumps({"a": "\u00e4" * 35_000}, ensure_ascii=False)),
    "2000000_bytes": request(7, json.dumps({"a": "\u00e4" * (LARGE // 2)}, ensure_ascii=False)),
    "id_0": request(0),
    "an_id_of_20_digits": request("12345678901234567890"),
    "a_negative_id_of_20_digits": request("-12345678901234567890"),
    "an_id_with_a_fraction": request("1.0"),
    "the_largest_whole_id": request(2**53 - 1),
    "a_string_as_id": request('"6b1f-\u2028\\u00e4\\"\\\\n"'),
    "an_empty_string_as_id": request('""'),
    "digits_in_a_string_as_id": request('"12345678901234567890"'),
    "backslashes": request(8, r'{"a":"\\n \\\\ \"\/\b\f\n\r\t\u0000"}'),
    "half_of_a_surrogate_pair": request(9, r'{"a":"cut \ud83d"}'),
    "a_number_of_20_digits": request(10, '{"a":12345678901234567890}'),
    "400_levels_of_arrays": request(11, nested(400)),
}
# Reasons in the log that no worker may give.
BAD = "reason=worker_(killed|malformed|line_too_long|holds_pipe|silent|hangs|stalled|closed_)"
# The daemon gives an error that has no id to the only request that the worker has to answer.
REFUSED = "the worker answers with an error that has no id"
ERROR = "the worker answers with an error"
# What a language makes of a line otherwise. docs/workers.md says so.
CHANGED = {
    "half_of_a_surrogate_pair": {
        **dict.fromkeys(["Ruby", "PHP", "Perl", "Elixir", "OCaml", "Shell and jq"], REFUSED),
        "Lua": ERROR,
        "Java": {"a": "cut ?"},
    },
    "a_number_of_20_digits": {
        **dict.fromkeys(["Node", "Deno", "Bun", "Shell and jq"], {"a": 12345678901234567000}),
        "PHP": {"a": 1.2345678901234567e19},
        "Lua": {"a": 1.2345678901235e19},
    },
    "400_levels_of_arrays": {"Shell and jq": REFUSED},
}


class Worker:
    """A section of docs/workers.md, with what is needed to run it."""

    def __init__(self, name, folder, path, commands):
        self.name, self.folder, self.path = name, folder, path
        self.language = re.sub(r" \d+$", "", name)
        self.id = re.sub(r"\W+", "_", name.lower())
        self.build, self.run = commands[:-1], shlex.split(commands[-1])
        if self.language == "Rust":
            self.build, self.run = [], [os.environ["STDIO_BUS_RUST_WORKER"]]

    def environment(self):
        # A service manager starts programs without a locale.
        return {**os.environ, "PATH": self.path, "LC_ALL": "C"}

    def shell(self, command):
        ran = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=STARTING, stdin=subprocess.DEVNULL,
        )
        return ran.returncode, ran.stdout.strip()

    def pool(self):
        command = shutil.which(self.run[0], path=self.path) or os.path.join(self.folder, self.run[0])
        return {"id": self.id, "command": command, "args": self.run[1:], "cwd": self.folder, "instances": 1}


class Client:
    """A connection to a worker's listener."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(PATIENCE)
        self.reader = self.socket.makefile("rb")

    def send(self, *lines):
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    def receive(self, patience=PATIENCE):
        self.socket.settimeout(patience)
        line = self.reader.readline()
        assert line.endswith(b"\n"), f"the connection ended: {line[:200]!r}"
        return json.loads(line)

    def close(self):
        self.reader.close()
        self.socket.close()


def sections():
    """Name, program's file and commands of each section of the document that shows a worker."""
    with open(os.path.join(ROOT, "docs", "workers.md")) as file:
        parts = re.split(r"^## (.*)\n", file.read(), flags=re.MULTILINE)[1:]
    for name, text in zip(parts[::2], parts[1::2]):
        commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if name in PROBES:
            yield name, [line for line in commands[-1].splitlines() if line]


def install(directory):
    """A worker for each section and version that can be run here, built."""
    found = []
    for name, commands in sections():
        for version, npm in NODES.items() if name == "Node" else [("", None)]:
            folder = os.path.join(directory, name.split()[0] + version.strip())
            shutil.copytree(EXAMPLES, folder)
            programs = [npm] if npm else ["deno", "bun"]
            path = [os.path.join(NPM, "node_modules", program, place) for program in programs for place in ("", "bin")]
            worker = Worker(name + version, folder, ":".join([*path, os.environ["PATH"]]), commands)
            code, told = worker.shell(PROBES[name])
            if code == 0 and npm and not told.startswith("v" + version.strip()):
                code, told = 1, f"this is {told}"
            if code != 0:
                cases.tell_skipped(f"the worker of docs/workers.md in {worker.name}: {told[-200:]}")
                continue
            print(f"{worker.name}: {told.splitlines()[0]}", flush=True)
            found.append(worker)
    assert {worker.language for worker in found} <= PROBES.keys()
    return found


def answer_of(client, line):
    """The answer to this request, when nothing else comes before it."""
    client.send(line)
    answer = client.receive()
    wanted = json.loads(line)["id"]
    assert answer.get("id") == wanted and type(answer["id"]) is type(wanted), f"{str(answer)[:300]} for the id {wanted!r}"
    return answer


def answers_each_line(worker, client):
    for name, line in LINES.items():
        expected = CHANGED.get(name, {}).get(worker.language, json.loads(line).get("params"))
        try:
            # Neither of these has an answer.
            client.send(b'{"jsonrpc":"2.0","method":"note","params":{"a":1}}', b'{"jsonrpc":"2.0","id":null,"method":"note"}')
            answer = answer_of(client, line)
            if expected in (REFUSED, ERROR):
                assert answer["error"]["code"] == (-32700 if expected == REFUSED else -32602), answer
            else:
                result = answer["result"]
                # A member without a value may be left out.
                said = {"you_said": None, **result}
                assert said == {"you_said": expected, "to": "hello"}, f"said: {str(result)[:300]}"
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error


def goes_on_after_a_cancelled_request(client):
    for id in range(100, 110):
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        client.send(request(id), json.dumps(cancel).encode())
    client.send(request(110))
    seen = []
    while 110 not in seen:
        answer = client.receive()
        assert "result" in answer or answer["error"]["code"] == -32800, answer
        seen.append(answer["id"])
    assert len(set(seen)) == len(seen), f"answered twice: {seen}"


def process_of(worker, daemon):
    started = [re.search(r"runs as process (\d+) .*worker=(\w+)/", line) for line in list(daemon.log)]
    return [int(line[1]) for line in started if line and line[2] == worker.id][-1]


def until(what, happened):
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)


def ends_by_sigterm_and_is_replaced(worker, daemon, client):
    before = process_of(worker, daemon)
    client.send(*[request(id, f'{{"a":"{"x" * 10_000}"}}') for id in range(200, 220)])
    answers = [client.receive()]
    os.kill(before, signal.SIGTERM)
    while len(answers) < 20:
        answers.append(client.receive())
    # What the worker did not answer any more fails, by its id.
    assert sorted(answer["id"] for answer in answers) == list(range(200, 220)), answers
    assert all("result" in answer or answer["error"]["code"] in (-32010, -32011) for answer in answers), answers
    until("the worker ended", lambda: any(f"worker={worker.id}/" in line and "a worker ended" in line for line in list(daemon.log)))
    until("another one ran", lambda: process_of(worker, daemon) != before)
    id = 300
    end = time.monotonic() + STARTING
    while True:
        client.send(request(id))
        if "result" in client.receive(STARTING):
            return
        assert time.monotonic() < end, "no worker came back"
        id += 1
        time.sleep(0.2)


def converse(worker, daemon):
    """The name and error, if any, of each test with one worker."""
    client = Client(daemon.ports[worker.id])
    try:
        client.send(request('"first"'))
        assert client.receive(STARTING)["id"] == "first"
    except Exception as error:
        return {"answers": error}
    outcomes = {}
    try:
        answers_each_line(worker, client)
        outcomes["answers_each_line"] = None
        goes_on_after_a_cancelled_request(client)
        outcomes["goes_on_after_a_cancelled_request"] = None
        ends_by_sigterm_and_is_replaced(worker, daemon, client)
        outcomes["ends_by_sigterm_and_is_replaced"] = None
    except Exception as error:
        name = ["answers_each_line", "goes_on_after_a_cancelled_request", "ends_by_sigterm_and_is_replaced"][len(outcomes)]
        outcomes[name] = error
    client.close()
    return outcomes


def ends_with_its_input(worker):
    """Without the daemon: all answers, the last of them long and slowly read, and exit code 0 once stdin is closed."""
    lines = [request(id) for id in range(10)] + [LINES["2000000_bytes"]]
    sent = b"".join(line + b"\n" for line in lines)
    command = [worker.pool()["command"], *worker.run[1:]]
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(sent)
        given.seek(0)
        running = subprocess.Popen(
            command, cwd=worker.folder, env=worker.environment(), stdin=given, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            # It has to wait for its reader at its end.
            time.sleep(0.5)
            output, _ = running.communicate(timeout=STARTING)
        finally:
            running.kill()
        errors.seek(0)
        told = errors.read().decode(errors="replace")[-300:]
    answers = [json.loads(line) for line in output.split(b"\n") if line]
    assert [answer["id"] for answer in answers] == [*range(10), 7], f"{len(answers)} answers, {told}"
    assert len(answers[-1]["result"]["you_said"]["a"]) == LARGE // 2
    assert running.returncode == 0, f"exit code {running.returncode}: {told}"


def main():
    passed = failed = 0

    def report(worker, name, error):
        nonlocal passed, failed
        passed, failed = passed + (error is None), failed + (error is not None)
        verdict = "ok" if error is None else f"FAILED: {error!r}"
        print(f"test a_worker_in_{worker.id}_{name} ... {verdict}", flush=True)

    def attempt(task, *arguments):
        try:
            task(*arguments)
        except Exception as error:
            return error

    def build(worker):
        for command in worker.build:
            code, told = worker.shell(command)
            assert code == 0, f"{command}: {told}"

    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(4) as threads:
        workers = install(directory)
        built = []
        for worker, error in zip(workers, threads.map(lambda worker: attempt(build, worker), workers)):
            if error is None:
                built.append(worker)
            else:
                report(worker, "is_built", error)
        os.environ["LC_ALL"] = "C"
        pools = [worker.pool() for worker in built]
        # The daemon's end is a test, too: no worker has to be killed.
        limits = {"max_input_buffer": 2 * LARGE, "drain_timeout_sec": PATIENCE}
        with Daemon(pools, limits=limits) as daemon:
            for worker, outcomes in zip(built, threads.map(lambda worker: converse(worker, daemon), built)):
                for name, error in outcomes.items():
                    report(worker, name, error)
        for worker in built:
            wrong = [line for line in daemon.log if f"worker={worker.id}/" in line and re.search(BAD, line)]
            report(worker, "ends_with_the_daemon", AssertionError(wrong) if wrong else None)
        for worker, error in zip(built, threads.map(lambda worker: attempt(ends_with_its_input, worker), built)):
            report(worker, "ends_with_its_input", error)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
