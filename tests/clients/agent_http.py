"""An ACP agent without an SDK for acp_http.js and acp_http: it repeats each prompt, whatever its length, and answers one
that says `wait` once it is cancelled. Its sessions have names that nobody guesses."""

import json
import sys
import uuid


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


waiting = {}
asks = 0
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    session = params.get("sessionId")
    if method == "initialize":
        say(id=id, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "authMethods": []})
    elif method == "session/new":
        say(id=id, result={"sessionId": str(uuid.uuid4())})
    elif method == "session/load":
        say(method="session/update", params={"sessionId": session, "update": {
            "sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "replayed"}}})
        say(id=id, result={})
    elif method == "_names":
        # A message on the stream of the connection that names a session.
        say(id=id, result={"sessionId": params["session"]})
    elif method == "session/prompt":
        text = params["prompt"][0]["text"]
        say(method="session/update", params={"sessionId": session, "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"heard {text}"}}})
        if text == "wait":
            waiting[session] = id
        elif text == "ask":
            asks += 1
            waiting[f"ask-{asks}"] = id
            say(id=f"ask-{asks}", method="session/request_permission", params={
                "sessionId": session, "toolCall": {"toolCallId": "call", "title": text},
                "options": [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}]})
        else:
            say(id=id, result={"stopReason": "end_turn"})
    elif method == "session/cancel":
        if session in waiting:
            say(id=waiting.pop(session), result={"stopReason": "cancelled"})
    elif method is None and id in waiting:
        say(id=waiting.pop(id), result={"stopReason": "end_turn"})
    elif id is not None and method is not None:
        say(id=id, error={"code": -32601, "message": "Method not found"})
