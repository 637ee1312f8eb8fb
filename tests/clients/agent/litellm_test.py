"""openai-agent against LiteLLM's proxy with a mocked model. Run by scripts/test-litellm, in LiteLLM's venv."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

CONFIG = """
model_list:
  - model_name: mocked
    litellm_params: {model: openai/mocked, api_key: none, mock_response: "Mocked, but streamed."}
general_settings: {master_key: sk-test}
"""


def ask(agent, identifier, method, params):
    """Sends a request; gives the updates that came before its answer, and the result."""
    agent.stdin.write(json.dumps({"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}) + "\n")
    agent.stdin.flush()
    updates = []
    for line in agent.stdout:
        message = json.loads(line)
        if message.get("id") == identifier:
            return updates, message["result"]
        updates.append(message["params"]["update"])
    raise AssertionError("the agent has ended")


def main():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "litellm.yaml"
        config.write_text(CONFIG)
        command = [Path(sys.executable).parent / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        log = open(Path(directory) / "log", "w+")
        proxy = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            deadline = time.monotonic() + 120
            while True:
                assert proxy.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5)
                    break
                except OSError:
                    time.sleep(0.1)
            env = {
                **os.environ,
                "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
                "OPENAI_API_KEY": "sk-test",
                "OPENAI_MODEL": "mocked",
                "OPENAI_FETCH_MODELS": "1",
            }
            program = os.environ["OPENAI_AGENT_BIN"]
            print(subprocess.run([program, "check"], env=env, text=True, capture_output=True, check=True).stdout, end="")
            agent = subprocess.Popen([program, "acp"], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ask(agent, 0, "initialize", {"protocolVersion": 1})
            _, session = ask(agent, 1, "session/new", {"cwd": "/", "mcpServers": []})
            assert session["configOptions"][0]["options"] == [{"name": "mocked", "value": "mocked"}], session
            prompt = {"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "hi"}]}
            updates, result = ask(agent, 2, "session/prompt", prompt)
            text = [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
            assert "".join(text) == "Mocked, but streamed." and len(text) > 1, text
            assert result["stopReason"] == "end_turn" and result["usage"]["totalTokens"] > 0, result
            wrong = subprocess.run([program, "check"], env={**env, "OPENAI_API_KEY": "sk-wrong"}, text=True, capture_output=True)
            # Without a database LiteLLM answers 400 to a key that it does not know.
            assert wrong.returncode == 1 and "No connected db" in wrong.stdout, wrong
            agent.stdin.close()
            assert agent.wait(5) == 0
            print("LiteLLM: ok")
        finally:
            proxy.terminate()
            proxy.wait(30)


main()
