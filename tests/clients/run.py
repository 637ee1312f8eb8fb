"""Runs other projects' programs through the daemon: ACP clients and agents on three SDKs, over lines and over WebSockets; MCP
client and server, and the example servers of `config` that npx and uvx fetch.

run.py [PART]: only the cases with PART in their name. STDIO_BUS names the daemon's program.
"""

import json
import os
import subprocess
import sys
import time
import traceback

from daemon import Daemon

HERE = os.path.dirname(os.path.abspath(__file__))
AGENTS = {
    "ts2": ["node", "agent.js", "2"],
    "ts1": ["node", "agent.js", "1"],
    "python": [sys.executable, "agent.py"],
}
CLIENTS = {
    "ts2": ["node", "client.js", "2"],
    "ts1": ["node", "client.js", "1"],
    "python": [sys.executable, "client.py"],
}


def pool(name, instances, assignment, **more):
    command, *args = AGENTS[name]
    return {"id": name, "command": command, "args": args, "cwd": HERE, "instances": instances,
            "assignment": assignment, **more}


def start(client, count, initializes, scenario, addresses):
    command = [*CLIENTS[client], str(count), str(initializes), scenario, *addresses]
    return subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(name, process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, f"{name} exited with {process.returncode}:\n{output}"


def one_client_one_worker():
    """Issue 2: one client, one worker, over TCP."""
    with Daemon([pool("ts2", 1, "round_robin")]) as daemon:
        finish("ts2", start("ts2", 1, 1, "turns", daemon.addresses("ts2")[:1]))


def all_at_once(assignment, instances, agents):
    """Eight clients of each SDK at once, half of them over TCP, with each of these agents."""
    # Round robin sends each message without a session to the next worker, so each worker has to be initialized.
    initializes = instances if assignment == "round_robin" else 1
    with Daemon([pool(agent, instances, assignment) for agent in agents]) as daemon:
        if initializes > 1:
            for agent in agents:
                finish("first " + agent, start("ts2", 1, initializes, "turns", daemon.addresses(agent)))
        running = [
            (f"{client} on {agent}", start(client, 8, 1, "turns", daemon.addresses(agent)))
            for agent in agents
            for client in CLIENTS
        ]
        for name, process in running:
            finish(name, process)


def a_client_vanishes(client, agent):
    """A client dies in the middle of a prompt; the others on the same worker continue."""
    # The shutdown waits this long for a client that vanished.
    with Daemon([pool(agent, 1, "client", cancel_on_disconnect=True)], limits={"drain_timeout_sec": 3}) as daemon:
        others = start("ts2", 4, 1, "turns", daemon.addresses(agent))
        vanishing = start(client, 1, 1, "vanish", daemon.addresses(agent))
        vanishing.communicate(timeout=60)
        finish("the others", others)
        finish("those who come later", start(client, 2, 1, "turns", daemon.addresses(agent)))


def a_worker_crashes(client, agent):
    """A worker dies in the middle of a prompt: its client gets an error, and the next client a new worker."""
    with Daemon([pool(agent, 1, "client")]) as daemon:
        finish("the one with the bad luck", start(client, 1, 1, "crash", daemon.addresses(agent)))
        # Lines are queued for a worker that is being started; for 100 ms before that there is none.
        daemon.logs("reason=restart_scheduled")
        daemon.logs("reason=worker_started")
        finish("those who come later", start(client, 4, 1, "turns", daemon.addresses(agent)))


def websockets(assignment, instances, counts):
    """The clients of both SDKs that support WebSocket, this many of each at once."""
    with Daemon([pool("ts2", instances, assignment)], [{"ws": "127.0.0.1:0", "pool": "ts2"}]) as daemon:
        for client, count in counts.items():
            finish(client, start(client, count, 1, "turns", daemon.urls))


def websocket_crash():
    """A worker dies in the middle of a WebSocket client's prompt, which is reported to the client."""
    with Daemon([pool("ts2", 1, "dedicated")], [{"ws": "127.0.0.1:0"}]) as daemon:
        finish("the one with the bad luck", start("ts2", 1, 1, "crash", daemon.urls))
        daemon.logs("client_closed")
        vanishing = start("ts2", 1, 1, "vanish", daemon.urls)
        vanishing.communicate(timeout=60)
        daemon.logs("client_closed")
        finish("those who come later", start("ts2", 2, 1, "turns", daemon.urls))


def mcp(assignment, what):
    """The official MCP client with the reference server: many at once, or one that receives the server's own
    messages."""
    server = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    everything = {"id": "everything", "command": "node", "args": [server, "stdio"], "cwd": HERE, "instances": 1,
                  "assignment": assignment}
    with Daemon([everything]) as daemon:
        port = str(daemon.ports["everything"])
        client = subprocess.Popen(["node", "mcp.js", what, port], cwd=HERE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        finish("mcp.js", client)


def ready(name):
    """An example in config, verbatim except for its port, is used as in docs/mcp.md."""
    with open(os.path.join(HERE, "..", "..", "config", name + ".json")) as file:
        config = json.load(file)
    # uvx is installed beside this Python.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    listeners = [{**listener, "http": "127.0.0.1:0"} for listener in config["listeners"]]
    with Daemon(config["pools"], listeners) as daemon:
        call = [os.environ["STDIO_BUS"], "call", "--connect", daemon.urls[0], "--initialize", "mcp", "--timeout", "120"]
        asked = subprocess.run([*call, "tools/list"], capture_output=True, text=True, timeout=300)
        assert asked.returncode == 0, f"{asked.returncode}\n{asked.stdout}\n{asked.stderr}"
        assert json.loads(asked.stdout.splitlines()[-1])["result"]["tools"], asked.stdout


def cases():
    yield "one_client_and_one_worker", one_client_one_worker
    for assignment in ("round_robin", "client"):
        for instances in (1, 4):
            yield (f"all_clients_at_once_on_all_agents_{assignment}_{instances}",
                   lambda a=assignment, i=instances: all_at_once(a, i, list(AGENTS)))
    # Here every client has a process of its own: one kind of agent at a time.
    for agent in AGENTS:
        for instances in (1, 4):
            yield (f"all_clients_at_once_on_{agent}_dedicated_{instances}",
                   lambda a=agent, i=instances: all_at_once("dedicated", i, [a]))
    for client, agent in (("ts2", "ts2"), ("ts1", "python"), ("python", "ts1")):
        yield f"a_{client}_client_vanishes_from_a_{agent}_agent", lambda c=client, a=agent: a_client_vanishes(c, a)
        yield f"a_{agent}_agent_crashes_under_a_{client}_client", lambda c=client, a=agent: a_worker_crashes(c, a)
    yield "official_websocket_clients_share_two_agents", lambda: websockets("client", 2, {"ts2": 20, "python": 20})
    # Starting an agent for each client takes most of the time here.
    yield "official_websocket_clients_have_an_agent_each", lambda: websockets("dedicated", 4, {"ts2": 20, "python": 4})
    yield "official_websocket_clients_are_told_of_a_crash_and_vanish_without_harm", websocket_crash
    yield "mcp_clients_have_a_reference_server_each", lambda: mcp("dedicated", "4")
    for assignment in ("client", "dedicated"):
        yield (f"an_mcp_client_hears_what_its_server_says_by_itself_{assignment}",
               lambda a=assignment: mcp(a, "hears"))
    for name in ("mcp-npx", "mcp-uvx"):
        yield f"the_server_of_{name}_is_fetched_and_lists_its_tools", lambda n=name: ready(n)


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    for name, case in cases():
        if part not in name:
            continue
        begun = time.monotonic()
        try:
            case()
            passed, verdict = passed + 1, "ok"
        except Exception:
            traceback.print_exc()
            failed, verdict = failed + 1, "FAILED"
        print(f"test {name} ... {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
