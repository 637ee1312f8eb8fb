"""openai-agent against other projects' servers, with a model of ours whose answers are known (model.py).

run.py llama [litellm]

llama: llama.cpp's server. litellm: LiteLLM's proxy in front of it; LITELLM names its program. The same cases are tried
with each, and what differs is in SERVERS. OPENAI_AGENT_BIN names the agent, LLAMA_PYTHON a Python that has llama.cpp.
What each agent received and wrote is left in OPENAI_AGENT_TRANSCRIPTS.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

from agent import Agent, check

HERE = Path(__file__).parent
MODEL = "tiny"
KEY = "sk-test"
# Longer than the model's window.
TOO_LONG = "x" * 10_000
# Shorter, but not four times.
PART = "x" * 4_000
# A white pixel.
IMAGE = {
    "type": "image",
    "mimeType": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP6DwABBQECz6AuzQAAAABJRU5ErkJggg==",
}
# Time limit in seconds for a server to listen.
PATIENCE = 120


class Server:
    """Its address, and its particular messages (regular expressions)."""

    def __init__(self, url, unknown_model, wrong_key, too_long, no_images):
        self.url = url
        self.unknown_model = unknown_model
        self.wrong_key = wrong_key
        self.too_long = too_long
        self.no_images = no_images
        self.settings = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": MODEL,
            "OPENAI_MODELS": "fetch",
            "OPENAI_MAX_RETRIES": "0",
        }

    def agent(self, **settings):
        agent = Agent({**self.settings, **settings})
        agent.call("initialize", {"protocolVersion": 1, "clientInfo": {"name": "tests", "version": "1"}})
        return agent


def says(turn, words):
    """Whether a turn failed with these words and without token counts."""
    assert re.search(words, turn.text), turn.text[:2000]
    assert turn.stop == "end_turn" and turn.usage is None, turn.answer
    print(f"    {turn.text[:400]}")


def the_check_finds_nothing_wrong(server):
    code, told = check(server.settings)
    assert code == 0, told
    print("    " + told.strip().replace("\n", "\n    "))


def the_models_are_listed(server):
    with server.agent() as agent:
        assert agent.session()[1] == [MODEL]


def an_answer_streams_and_is_counted(server):
    with server.agent() as agent:
        session, _ = agent.session()
        turn = agent.prompt(session, "Please count!")
        assert turn.text == "one, two, three" and len(turn.pieces()) > 1, turn.updates
        assert turn.stop == "end_turn", turn.answer
        counts = turn.usage
        assert counts["inputTokens"] > 0 and counts["outputTokens"] > 0, counts
        assert counts["totalTokens"] == counts["inputTokens"] + counts["outputTokens"], counts
        assert turn.updates[-1]["used"] == counts["totalTokens"], turn.updates
        again = agent.prompt(session, "Who are you?")
        assert again.text == " I hear you.", again.updates
        assert again.usage["inputTokens"] > counts["totalTokens"], "what was said before goes with it"


def letters_in_pieces_and_thoughts_arrive(server):
    with server.agent() as agent:
        session, _ = agent.session()
        assert agent.prompt(session, "check!").text == "✓"
        turn = agent.prompt(session, "think!")
        assert (turn.thought, turn.text) == ("Two and two.", "Four."), turn.updates


def a_limit_ends_the_answer(server):
    with server.agent(OPENAI_MAX_TOKENS="5") as agent:
        turn = agent.prompt(agent.session()[0], "for ever!")
        assert (turn.text, turn.stop) == (" on and on and on", "max_tokens"), turn.answer


def a_cancelled_answer_ends_here_and_there(server):
    with server.agent() as agent:
        session, _ = agent.session()
        prompt = agent.ask_prompt(session, "for ever!")
        first = agent.line()
        assert first["params"]["update"]["content"]["text"].startswith(" on"), first
        agent.send({"method": "session/cancel", "params": {"sessionId": session}})
        assert agent.answer(prompt).stop == "cancelled"
        # The server handles one prompt at a time: it answers this one only if it has cancelled the other.
        assert agent.prompt(session, "count!").text == "one, two, three"


def a_pending_prompt_can_be_cancelled(server):
    with server.agent() as agent:
        (busy, _), (waiting, _) = agent.session(), agent.session()
        first = agent.ask_prompt(busy, "for ever!")
        agent.line()
        second = agent.ask_prompt(waiting, "count!")
        agent.send({"method": "session/cancel", "params": {"sessionId": waiting}})
        turn = agent.answer(second)
        assert turn.stop == "cancelled" and "one" not in turn.text, turn.answer
        agent.send({"method": "session/cancel", "params": {"sessionId": busy}})
        assert agent.answer(first).stop == "cancelled"
        assert agent.prompt(waiting, "count!").text == "one, two, three"


def an_unsupported_image_is_reported(server):
    with server.agent(OPENAI_IMAGE_INPUT="1") as agent:
        session, _ = agent.session()
        says(agent.prompt(session, "What is this?", IMAGE), server.no_images)
        assert agent.prompt(session, "count!").text == "one, two, three", "the image is not sent again"


def an_unknown_model_is_reported(server):
    with server.agent(OPENAI_MODEL="nobody") as agent:
        turn = agent.prompt(agent.session()[0], "count!")
        if server.unknown_model is None:
            assert turn.text == "one, two, three", "it has one model, and takes any name for it"
        else:
            says(turn, server.unknown_model)


def a_wrong_key_is_told(server):
    with server.agent(OPENAI_API_KEY="sk-wrong") as agent:
        turn = agent.prompt(agent.session()[0], "count!")
        says(turn, server.wrong_key)
        assert "sk-wrong" not in turn.text, turn.text
    code, told = check({**server.settings, "OPENAI_API_KEY": "sk-wrong"})
    assert code == 1 and re.search(server.wrong_key, told), told


def an_overlong_prompt_is_reported(server):
    with server.agent() as agent:
        session, _ = agent.session()
        says(agent.prompt(session, TOO_LONG), server.too_long)
        assert agent.prompt(session, "count!").text == "one, two, three", "it is not sent again"


def a_conversation_longer_than_the_window_continues_without_its_beginning(server):
    # The window is known in advance, from the server's list, or only from the refusal.
    for models in ["fetch", ""]:
        with server.agent(OPENAI_MODELS=models) as agent:
            session, _ = agent.session()
            turns = [agent.prompt(session, PART + "count!").text for _ in range(4)]
            assert all(text.endswith("one, two, three") for text in turns), turns
            told = [text for text in turns if text != "one, two, three"]
            assert told and all(re.match(r"The .* no longer fits? into .*\)\.one", text) for text in told), turns
            print(f"    {told[0]}")


CASES = [
    the_check_finds_nothing_wrong,
    the_models_are_listed,
    an_answer_streams_and_is_counted,
    letters_in_pieces_and_thoughts_arrive,
    a_limit_ends_the_answer,
    a_cancelled_answer_ends_here_and_there,
    a_pending_prompt_can_be_cancelled,
    an_unsupported_image_is_reported,
    an_unknown_model_is_reported,
    a_wrong_key_is_told,
    an_overlong_prompt_is_reported,
    a_conversation_longer_than_the_window_continues_without_its_beginning,
]


@contextlib.contextmanager
def started(command, directory, name, **more):
    """A server as a child: the process and its log file, which is shown if a case fails."""
    path = Path(directory) / f"{name}.log"
    with open(path, "wb") as log:
        process = subprocess.Popen(command, stderr=log, cwd=directory, **more)
    try:
        yield process, path
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def llama(directory):
    model = Path(directory) / "tiny.gguf"
    subprocess.run([sys.executable, HERE / "model.py", model], check=True)
    command = [os.environ["LLAMA_PYTHON"], HERE / "llama.py", model, MODEL, KEY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started(command, directory, "llama", **pipes) as (process, log):
        ends = threading.Timer(PATIENCE, process.kill)
        ends.start()
        url = process.stdout.readline().strip()
        ends.cancel()
        assert url.startswith("http://"), log.read_text()
        yield Server(
            f"{url}/v1",
            unknown_model=None,
            wrong_key=r"^Authentication error \(HTTP 401\) .* It says: Invalid API Key",
            too_long=r"HTTP 400.* request \(\d+ tokens\) exceeds the available context size \(16384 tokens\)",
            no_images=r"HTTP 500.* It says: image input is not supported",
        ), log


CONFIGURATION = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{url}", api_key: {key}}}
general_settings: {{master_key: {key}}}
"""


@contextlib.contextmanager
def litellm(directory):
    with llama(directory) as (behind, _):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        configuration = Path(directory) / "litellm.yaml"
        configuration.write_text(CONFIGURATION.format(model=MODEL, url=behind.url, key=KEY))
        command = [os.environ["LITELLM"], "--config", configuration, "--host", "127.0.0.1", "--port", str(port)]
        env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with started(command, directory, "litellm", env=env, stdout=subprocess.DEVNULL) as (process, log):
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + PATIENCE
            while not answers(f"{url}/health/liveliness"):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield Server(
                f"{url}/v1",
                unknown_model=r"HTTP 400.* Invalid model name passed in model=nobody",
                # Without a database LiteLLM answers 400 to a key that it does not know.
                wrong_key=r"HTTP 400.* No connected db",
                too_long=r"HTTP 400.* exceeds the available context size",
                no_images=r"HTTP 500.* image input is not supported",
            ), log


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
        return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


SERVERS = {"llama": llama, "litellm": litellm}


def main(names):
    passed = failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as directory, SERVERS[name](directory) as (server, log):
            for case in CASES:
                begun = time.monotonic()
                try:
                    case(server)
                    passed, verdict = passed + 1, "ok"
                except Exception:
                    traceback.print_exc(file=sys.stdout)
                    print(log.read_text(errors="replace")[-4000:])
                    failed, verdict = failed + 1, "FAILED"
                print(f"test {name}: {case.__name__} ... {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


main(sys.argv[1:])
