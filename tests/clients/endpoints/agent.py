"""openai-agent as a child, with a client on its pipes. Every wait has a limit."""

import json
import os
import queue
import re
import subprocess
import threading
from pathlib import Path

PROGRAM = os.environ["OPENAI_AGENT_BIN"]
# Time limit in seconds for everything that must happen.
PATIENCE = 60


def environment(settings):
    """Our environment without variables that would affect the agent, plus these settings."""
    foreign = re.compile(r"OPENAI_|.*_proxy$|SSL_CERT_", re.IGNORECASE)
    own = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    return {**own, "OPENAI_LOG": "error", **settings}


def check(settings):
    """Runs `openai-agent check`: its exit code and output."""
    ran = subprocess.run([PROGRAM, "check"], env=environment(settings), text=True, capture_output=True, timeout=PATIENCE)
    return ran.returncode, ran.stdout + ran.stderr


class Turn:
    """The result of a prompt."""

    def __init__(self, updates, answer):
        self.updates = updates
        self.answer = answer

    def pieces(self, kind="agent_message_chunk"):
        return [update["content"]["text"] for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def text(self):
        return "".join(self.pieces())

    @property
    def thought(self):
        return "".join(self.pieces("agent_thought_chunk"))

    @property
    def stop(self):
        return self.answer["stopReason"]

    @property
    def usage(self):
        return self.answer.get("usage")


class Agent:
    """A running agent. Its input and output are kept for the check against ACP's schema."""

    count = 0

    def __init__(self, settings):
        self.process = subprocess.Popen(
            [PROGRAM, "acp"], env=environment(settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        Agent.count += 1
        path = Path(os.environ["OPENAI_AGENT_TRANSCRIPTS"]) / f"endpoints-{os.getpid()}-{Agent.count}"
        self.told = open(f"{path}.in", "wb", buffering=0)
        self.said = open(f"{path}.out", "wb", buffering=0)
        self.lines = queue.Queue()
        self.next_id = 0
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.process.stdin.close()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.reader.join()
            self.told.close()
            self.said.close()
        if kind is None:
            assert code == 0, f"the agent ended with {code}"

    def read(self):
        for line in self.process.stdout:
            self.said.write(line)
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def send(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self.told.write(line)
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ask(self, method, params):
        """Sends a request, and returns its id."""
        self.next_id += 1
        self.send({"id": self.next_id, "method": method, "params": params})
        return self.next_id

    def line(self):
        """The next line, except session titles."""
        while True:
            line = self.lines.get(timeout=PATIENCE)
            assert line is not None, "the agent has closed its stdout"
            update = line.get("params", {}).get("update", {})
            if update.get("sessionUpdate") != "session_info_update":
                return line

    def answer(self, number, updates=()):
        """Waits for the answer to a request. `updates` were received before."""
        updates = list(updates)
        while (line := self.line()).get("id") != number:
            updates.append(line["params"]["update"])
        assert "result" in line, line
        return Turn(updates, line["result"])

    def call(self, method, params):
        return self.answer(self.ask(method, params)).answer

    def session(self):
        """A new session: its id, and its models."""
        created = self.call("session/new", {"cwd": "/", "mcpServers": []})
        return created["sessionId"], [option["value"] for option in created["configOptions"][0]["options"]]

    def ask_prompt(self, session, text, *blocks):
        return self.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}, *blocks]})

    def prompt(self, session, text, *blocks):
        return self.answer(self.ask_prompt(session, text, *blocks))
