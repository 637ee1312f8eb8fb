"""The misbehaving worker of the end-to-end tests: it obeys until it is told otherwise.

Flags say how it lives from its start on, the method of a request what it does now. Whatever it is not told about it
answers with {"result": {"echo": params, "method": method, "pid": pid, "line": number}}, at once and in order; the
number says how many lines it has read.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time

flags = argparse.ArgumentParser()
flags.add_argument("--gate", help="read nothing before this FIFO has been opened and closed for writing")
flags.add_argument("--exit", type=int, help="exit with this code at once")
flags.add_argument("--ignore-term", action="store_true", help="ignore SIGTERM and the end of stdin")
flags.add_argument("--answer-late", action="store_true", help="answer what is held only when told to stop")
flags.add_argument("--record", help="append what happens to this file")
flags.add_argument("--orphan", action="store_true", help="start a process that outlives this one and ignores SIGTERM")
flags.add_argument("--name", default="", help="told in the answer to `who`")
flags.add_argument("--doubles", action="store_true", help="read ids as Node does: numbers as doubles, text as UTF-16")
flags.add_argument("--slow", type=int, default=0, help="take so many microseconds for each line")
flags.add_argument("--keep", action="store_true", help="keep every line and tell them in the answer to `kept`")
flags = flags.parse_args()

CANCELLING = ("$/cancel_request", "$/cancelRequest", "notifications/cancelled")

held = []  # requests to answer later, each with its result
kept = []  # lines as they were read, if asked for
lines_read = 0
next_session = 0
questions = {}  # our own requests: id -> the request that made us ask
next_question = 0

SLEEPER = "import signal,sys,time\nsignal.signal(15, signal.SIG_IGN)\nsignal.signal(1, signal.SIG_IGN)\ntime.sleep(600)\n"


def record(what):
    if flags.record:
        with open(flags.record, "a") as file:
            file.write(f"{what} pid={os.getpid()} at={time.monotonic_ns()}\n")


def write(data):
    # Without a buffer and without a lock, so that a signal handler may write, too.
    while data:
        data = data[os.write(1, data):]


def say(message):
    write(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")


def answer(request, result):
    reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
    if "sessionId" in request:
        reply["sessionId"] = request["sessionId"]
    say(reply)


def fail(request, code, message):
    say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})


def hold(request, result=None):
    held.append((request, result or {"held": True, "echo": request.get("params")}))


def release():
    for request, result in held:
        answer(request, result)
    held.clear()


def cancel(method, params):
    """Gives up held requests, as agents do (with an error) and as MCP servers do (without a word)."""
    names = [params[key] for key in ("requestId", "id") if key in params]
    wanted = [entry for entry in held if entry[0].get("id") in names and not entry[0]["params"].get("stubborn")]
    for entry in wanted:
        held.remove(entry)
        if method.startswith("$"):
            fail(entry[0], -32800, "cancelled by the worker")
    return len(wanted)


def make_session(params):
    # Names are counted, as careless agents do it: after a restart they begin anew.
    global next_session
    name = params.get("name", f"session-{next_session}")
    next_session += 1
    return {"sessionId": name, "pid": os.getpid()}


def as_double(value):
    """An id as a program writes it that has doubles for all numbers and UTF-16 for all text."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isinf(number):
        return None
    return int(number) if number.is_integer() else number


def rest_for_ever():
    while True:
        signal.pause()


def start_grandchild(options):
    # What a careless agent does: a helper that keeps our stdout, or that leaves our process group.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SLEEPER],
        stdin=subprocess.DEVNULL,
        stdout=None if options.get("holds_stdout") else subprocess.DEVNULL,
        start_new_session=options.get("setsid", False),
    )
    return process.pid


def do(request):
    """Does what a request, or a notification, asks for."""
    global next_question
    method, params = request.get("method"), request.get("params") or {}
    if method == "exit":
        os._exit(params.get("code", 0))
    if method == "die":
        os.kill(os.getpid(), params.get("signal", signal.SIGKILL))
        rest_for_ever()
    if method == "half_line":
        write(params["whole"].encode() + b"\n" + params["half"].encode())
        os._exit(0)
    if method == "write":
        write(params["text"].encode("utf-8", "surrogateescape"))
        return
    if method == "write_hex":
        write(bytes.fromhex(params["hex"]))
        return
    if method == "close_stdout":
        os.close(1)
        return
    if method == "close_stdin":
        os.close(0)
        if "answer_after" in params:
            time.sleep(params["answer_after"])
            answer(request, {})
        rest_for_ever()
    if method == "rest":
        rest_for_ever()
    if method == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if method == "hold":
        hold(request)
        return
    if method == "twice":
        # The second answer follows when what is held is released.
        hold(request)
    if method in CANCELLING:
        count = cancel(method, params)
        if "id" in request:
            answer(request, {"cancelled": count})
        return
    if method == "release":
        release()
    if method == "stderr":
        os.write(2, params["text"].encode())
    if method == "stderr_flood":
        line = (b"noise " * 20 + b"\n") * params.get("lines_at_once", 1)
        for _ in range(params["bytes"] // len(line)):
            os.write(2, line)
    if method == "flood":
        line = json.dumps({"jsonrpc": "2.0", "method": "tick", "params": {"fill": "x" * params["size"]}})
        line = line[:-1] + (',"sessionId":%s}' % json.dumps(request["sessionId"]) if "sessionId" in request else "}")
        for _ in range(params["lines"]):
            write(line.encode() + b"\n")
    if method == "ask":
        question = params.get("id", next_question)
        next_question += 1
        questions[json.dumps(question)] = request
        say({"jsonrpc": "2.0", "id": question, "method": params.get("method", "session/request_permission"),
             "params": {"sessionId": params.get("session", request.get("sessionId")), "about": params.get("about")}})
        return
    if method == "session/new":
        made = make_session(params)
        return hold(request, made) if params.get("later") else answer(request, made)
    if method in ("session/load", "session/resume"):
        if params.get("unknown"):
            return fail(request, -32002, "there is no such session")
        for number in range(params.get("replay", 0)):
            say({"jsonrpc": "2.0", "method": "session/update",
                 "params": {"sessionId": params["sessionId"], "replayed": number}})
    if method == "kept":
        return answer(request, {"lines": kept})
    if method == "big":
        return answer(request, {"fill": "x" * params["size"]})
    if method == "grandchild":
        return answer(request, {"pid": start_grandchild(params)})
    if method == "who":
        return answer(request, {"pid": os.getpid(), "name": flags.name, "cwd": os.getcwd(), "held": len(held),
                                "group": os.getpgrp(), "session": os.getsid(0), "parent": os.getppid(),
                                "argv": sys.argv, "variables": {name: os.environ.get(name) for name in params}})
    if "id" in request:
        answer(request, {"echo": request.get("params"), "method": method, "pid": os.getpid(), "line": lines_read})


def receive(line):
    global lines_read
    lines_read += 1
    if flags.slow:
        time.sleep(flags.slow / 1e6)
    if flags.keep:
        kept.append(line.decode())
    message = json.loads(line)
    if flags.doubles:
        params = message.get("params")
        for place, key in ((message, "id"), (params, "requestId"), (params, "id")):
            if isinstance(place, dict) and place.get(key) is not None:
                place[key] = as_double(place[key])
    if "method" not in message and ("result" in message or "error" in message):
        asked = questions.pop(json.dumps(message["id"]), None)
        if asked is not None:
            answer(asked, {"answered": message.get("result"), "error": message.get("error")})
        return
    do(message)


def on_signal(number, _frame):
    record(signal.Signals(number).name)
    if flags.ignore_term and number == signal.SIGTERM:
        return
    if number == signal.SIGTERM:
        if flags.answer_late:
            release()
        os._exit(0)


def main():
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    record("start")
    if flags.exit is not None:
        os._exit(flags.exit)
    if flags.orphan:
        start_grandchild({"setsid": True})
    if flags.gate:
        with open(flags.gate, "rb") as gate:
            gate.read()
    # Small reads by hand: a buffered reader would swallow lines that a stopped worker must leave in its pipe.
    buffer = b""
    while True:
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            receive(line)
    record("eof")
    if flags.ignore_term:
        rest_for_ever()
    if flags.answer_late:
        release()


main()
