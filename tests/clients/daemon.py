"""Starts a daemon for the real clients, reports its addresses, and stops it with a check of its exit."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading

PATIENCE = 60


def hears_hangups():
    """A new process does not ignore SIGHUP, which may be ignored where the tests run (nohup)."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Daemon:
    """A daemon with these pools: each has a TCP listener and a Unix socket of its own, unless listeners are given."""

    def __init__(self, pools, listeners=None, **settings):
        self.directory = tempfile.TemporaryDirectory()
        self.is_draining = False
        self.log = []
        self.lines = queue.Queue()
        given = listeners
        if given is None:
            listeners = []
            for pool in pools:
                listeners.append({"tcp": "127.0.0.1:0", "pool": pool["id"]})
                listeners.append({"unix": self.unix(pool["id"]), "pool": pool["id"]})
        path = os.path.join(self.directory.name, "bus.json")
        with open(path, "w") as file:
            json.dump({"pools": pools, "listeners": listeners, **settings}, file)
        program = os.environ["STDIO_BUS"]
        self.process = subprocess.Popen(
            [program, "--config", path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=hears_hangups)
        threading.Thread(target=self.follow, daemon=True).start()
        self.ports = {}
        self.urls = [self.logs("listening on ").split("listening on ")[1].split()[0] for _ in given or []]
        for pool in pools if given is None else []:
            line = self.logs("listening on tcp://")
            self.ports[pool["id"]] = int(line.rsplit(":", 1)[1].split()[0])
            self.logs("listening on unix:")

    def follow(self):
        for line in self.process.stderr:
            line = line.decode(errors="replace").rstrip("\n")
            self.log.append(line)
            self.lines.put(line)
        self.lines.put(None)

    def unix(self, pool):
        return os.path.join(self.directory.name, pool + ".sock")

    def addresses(self, pool):
        return [f"tcp:{self.ports[pool]}", f"unix:{self.unix(pool)}"]

    def logs(self, part):
        """Waits for the next line of the log that contains `part`."""
        while True:
            line = self.lines.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"the daemon ended without saying {part!r}:\n" + "\n".join(self.log))
            if part in line:
                return line

    def drain(self):
        """Begins the shutdown. A second signal would cut it short."""
        if not self.is_draining:
            self.is_draining = True
            self.process.send_signal(signal.SIGTERM)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.drain()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none: it had to be killed"
        if error is not None or code != 0:
            print("\n".join(["--- the daemon's log", *self.log[-60:], "---"]), flush=True)
        self.directory.cleanup()
        assert error is not None or code == 0, f"exit code {code}"
