"""docs/demo in a real browser: a chat with openai-agent in front of an endpoint that streams when it is asked to, a turn
that is cancelled, permission requests, a page of a foreign origin, a wrong token, and a daemon that shuts down.

STDIO_BUS and OPENAI_AGENT_BIN name the programs. Screenshots go to the directory that is the first argument, or nowhere.
Everything has an end; the last line counts.
"""

import base64
import functools
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from websockets.sync.client import connect

from page import browser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
from daemon import Daemon  # noqa: E402

PATIENCE = 60
TOKEN = "a-token-of-the-demo"
#: Shown as markup, it would change the title.
MARKUP = "<img src=x onerror=\"document.title='owned'\">"

# Asks for permission in each turn, and reports the result.
CAREFUL = r"""
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def text(words):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": words}}
    say(method="session/update", params={"sessionId": "s", "update": update})
turn = None
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        agent = {"name": "careful", "version": "1"}
        say(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": agent})
    elif method == "session/new":
        say(id=message["id"], result={"sessionId": "s"})
    elif method == "session/prompt":
        turn = message["id"]
        options = [{"optionId": "yes", "name": "Allow", "kind": "allow_once"},
                   {"optionId": "no", "name": "Reject", "kind": "reject_once"}]
        say(id="p", method="session/request_permission", params={
            "sessionId": "s", "toolCall": {"toolCallId": "c", "title": "remove everything"}, "options": options})
    elif message.get("id") == "p":
        outcome = message["result"]["outcome"]
        text(f"outcome: {outcome.get('optionId', outcome['outcome'])}")
        say(id=turn, result={"stopReason": "cancelled" if outcome["outcome"] == "cancelled" else "end_turn"})
"""


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Chat Completions whose answers come in the pieces that are put into `pieces`, when they are put there."""

    protocol_version = "HTTP/1.1"
    pieces = queue.Queue()

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            while (piece := self.pieces.get(timeout=PATIENCE)) is not None:
                self.event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.close_connection = True

    def do_GET(self):
        body = json.dumps({"object": "list", "data": [{"id": "demo", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def event(self, data):
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def log_message(self, *_):
        pass


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(handler):
    """The origin of a server that runs until this program ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def until(condition, what, found=lambda: ""):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it never came to that: {what}; {found()}"
        time.sleep(0.01)


class Browser:
    """A headless Chromium, controlled through its DevTools protocol."""

    def __init__(self, directory):
        self.directory = directory
        command = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   f"--user-data-dir={directory}", "--remote-debugging-port=0", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True)
        for line in self.process.stderr:
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        # Its log must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.connection = connect(found.group(1), max_size=None, open_timeout=PATIENCE)
        self.count = 0

    def __enter__(self):
        self.socket = self.connection.__enter__()
        return self

    def __exit__(self, *error):
        self.connection.__exit__(*error)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Its children cannot be waited for, and write to the profile until they have ended.
        until(self.is_removed, f"{self.directory} stays away")

    def is_removed(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        return not os.path.exists(self.directory)

    def call(self, method, session=None, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        self.socket.send(json.dumps({**message, "sessionId": session} if session else message))
        while (answer := json.loads(self.socket.recv(PATIENCE))).get("id") != self.count:
            pass
        assert "result" in answer, answer
        return answer["result"]

    def open(self, url):
        return Page(self, url)


class Page:
    """A tab, used like a user does: with keys and the mouse."""

    def __init__(self, browser, url):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.navigate", url=url)
        until(lambda: self.run("document.readyState === 'complete' && !!document.getElementById('url')"), "the page")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, element):
        until(lambda: self.run(f"!!({element}) && !({element}).disabled"), f"{element} can be clicked")
        x, y = self.run(f"(() => {{ const e = {element}; e.scrollIntoView({{ block: 'nearest' }});"
                        " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, id, text):
        until(lambda: self.run(f"!{id}.disabled"), f"{id} can be written into")
        self.run(f"{id}.focus(); {id}.select()")
        self.call("Input.insertText", text=text)

    def press_enter(self):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")

    def connect(self, url, token):
        self.type("url", url)
        self.type("token", token)
        self.click("connect")

    def status(self):
        return self.run("document.getElementById('status').textContent")

    def shown(self, kind):
        """The chat's texts of this kind."""
        return self.run(f"[...document.querySelectorAll('#chat > .{kind}')].map((e) => e.textContent)")

    def shows(self, kind, *texts):
        until(lambda: self.shown(kind) == list(texts), f"{kind} is {texts}", lambda: (self.shown(kind), self.status()))

    def says(self, part):
        until(lambda: part in self.status(), f"the status has {part!r}", self.status)

    def shoot(self, directory, name, width, height, scheme):
        if not directory:
            return
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=False)
        shot = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        assert len(shot) > 5000, f"{name} is empty"
        with open(os.path.join(directory, f"{name}.png"), "wb") as file:
            file.write(shot)


def chat(page, url):
    """An answer is shown piece by piece: each before the endpoint has the next one."""
    page.connect(url, TOKEN)
    page.says("connected to")
    page.type("text", "Hello?")
    page.press_enter()
    page.shows("user", "Hello?")
    answer = ""
    for piece in ["Hello", " from", " the", f" endpoint {MARKUP}", " ✓"]:
        Endpoint.pieces.put(piece)
        answer += piece
        page.shows("agent", answer)
        assert page.run("send.disabled && !cancel.disabled"), "the turn is not over"
    Endpoint.pieces.put(None)
    until(lambda: page.run("!send.disabled && cancel.disabled"), "the turn is over")
    assert page.run("document.title") == "stdio_bus demo", "what the agent said was run"
    return answer


def cancel(page, answer):
    page.type("text", "Tell me more.")
    page.click("send")
    Endpoint.pieces.put("It was a dark")
    page.shows("agent", answer, "It was a dark")
    page.click("cancel")
    page.shows("note", "ended: cancelled")
    Endpoint.pieces.put(None)
    assert page.shown("error") == [], page.shown("error")


def permissions(page, url, shots):
    page.connect(url, TOKEN)
    page.says("connected to careful 1")
    said = []
    for button, outcome in [("Allow", "yes"), ("Reject", "no")]:
        page.type("text", "Do it.")
        page.press_enter()
        page.click(f"[...document.querySelectorAll('.permission button')].find((b) => b.textContent === '{button}')")
        said.append(f"outcome: {outcome}")
        page.shows("agent", *said)
    page.type("text", "Do it again.")
    page.press_enter()
    until(lambda: page.run("document.querySelectorAll('.permission button').length") == 2, "it asks")
    page.shoot(shots, "permission", 900, 700, "light")
    page.click("cancel")
    page.shows("agent", *said, "outcome: cancelled")
    page.shows("note", "ended: cancelled")


def main():
    shots = sys.argv[1] if len(sys.argv) > 1 else None
    if shots:
        os.makedirs(shots, exist_ok=True)
    files = functools.partial(Files, directory=os.path.join(ROOT, "docs", "demo"))
    origin, foreign, endpoint = serve(files), serve(files), serve(Endpoint)
    passed = 0

    def done(name):
        nonlocal passed
        passed += 1
        print(f"test {name} ... ok", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        tokens = os.path.join(directory, "tokens")
        with open(tokens, "w") as file:
            file.write(f"demo:{TOKEN}\n")
        os.chmod(tokens, 0o600)
        env = {"OPENAI_BASE_URL": f"{endpoint}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "demo"}
        pools = [
            {"id": "openai", "command": os.environ["OPENAI_AGENT_BIN"], "args": ["acp"], "instances": 1, "env": env},
            {"id": "careful", "command": sys.executable, "args": ["-c", CAREFUL], "instances": 1, "assignment": "dedicated"},
        ]
        listeners = [{"ws": "127.0.0.1:0", "origins": [origin], "tokens_file": tokens, "pool": pool["id"]} for pool in pools]
        with Daemon(pools, listeners) as daemon, Browser(os.path.join(directory, "profile")) as chromium:
            page = chromium.open(f"{origin}/")
            answer = chat(page, daemon.urls[0])
            done("an_answer_is_shown_piece_by_piece_as_it_is_streamed")
            cancel(page, answer)
            done("a_turn_is_cancelled_by_its_button")
            page.shoot(shots, "chat", 900, 700, "light")
            page.shoot(shots, "telephone", 400, 800, "dark")

            careful = chromium.open(f"{origin}/")
            permissions(careful, daemon.urls[1], shots)
            done("permission_is_asked_by_buttons")

            stranger = chromium.open(f"{foreign}/")
            stranger.connect(daemon.urls[0], TOKEN)
            stranger.says("refused or cut off")
            assert stranger.run("document.getElementById('status').className") == "failed"
            daemon.logs(foreign)
            done("the_same_page_of_a_foreign_origin_is_refused")

            wrong = chromium.open(f"{origin}/")
            wrong.connect(daemon.urls[0], "another")
            wrong.says("refused or cut off")
            done("a_page_with_a_wrong_token_is_refused")

            assert "connected" in page.status(), page.status()
            daemon.drain()
            page.says("closed with 1001: the daemon is shutting down")
            done("a_page_is_notified_that_the_daemon_shuts_down")
    print(f"{passed} passed, 0 failed")


if __name__ == "__main__":
    main()
