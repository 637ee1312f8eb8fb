import json
import sys

for line in sys.stdin.buffer:
    message = json.loads(line)
    if message.get("id") is not None and "method" in message:
        result = {"you_said": message.get("params"), "to": message["method"]}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        print(json.dumps(answer), flush=True)
