"""buildah and podman for tests/image.py and tests/release.py, with a storage of their own."""

import contextlib
import json
import os
import subprocess

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE = cases.PATIENCE
# The command of config/docker/Dockerfile, without the port that is published: the machine may have no bridge.
LIMITS = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp", "--network", "none"]
# Podman asks for more than a container's own limits may allow.
ULIMITS = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]


class Podman:
    """buildah and podman with a storage of their own, which is removed with the folder."""

    def __init__(self, folder):
        self.folder, self.environment = folder, {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        # vfs copies every layer, and works where the folder is on an overlay itself.
        for driver in ("overlay", "vfs"):
            self.storage = ["--root", f"{folder}/{driver}", "--runroot", f"{folder}/run-{driver}", "--storage-driver", driver]
            container = self.tries("buildah", "from", "scratch").stdout.strip()
            if container and self.tries("buildah", "mount", container).returncode == 0:
                self("buildah", "rm", container)
                break

    def tries(self, program, *arguments, timeout=PATIENCE, **options):
        # runc takes cgroups of both versions at once, which crun does not.
        runtime = ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--log-level", "error"] if program == "podman" else []
        # conmon leaves a file where podman is started when a container has used up its memory.
        where = ROOT if program == "buildah" else self.folder
        return subprocess.run([program, *self.storage, *runtime, *arguments], capture_output=True, text=True, timeout=timeout,
                              env=self.environment, cwd=where, stdin=subprocess.DEVNULL, **options)

    def __call__(self, *command, **options):
        done = self.tries(*command, **options)
        assert done.returncode == 0, (command, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout.strip()

    def base(self, name, system, *config):
        """An image of this name, of a directory."""
        container = self("buildah", "from", "scratch")
        self("buildah", "copy", "--quiet", container, system, "/", timeout=900)
        self("buildah", "config", *config, container)
        self("buildah", "commit", "--quiet", container, name, timeout=900)
        self("buildah", "rm", container)

    @contextlib.contextmanager
    def running(self, *options, image="stdio_bus", command=("--tcp", ":9000", "--admin", "/tmp/admin.sock")):
        """A container of the image, until it answers, and its removal."""
        name = self("podman", "run", "--detach", *ULIMITS, *LIMITS, *options, image, *command)
        try:
            cases.waits_for(lambda: self.tries("podman", "exec", name, "stdio_bus", "status").returncode == 0, lambda: self.log(name))
            yield name
        finally:
            self.tries("podman", "rm", "--force", "--time", "0", name)

    def log(self, name):
        done = self.tries("podman", "logs", name)
        return done.stdout + done.stderr

    def calls(self, name):
        """The result of a request."""
        answer = self("podman", "exec", name, "stdio_bus", "call", "--connect", "tcp://127.0.0.1:9000", "hello")
        return json.loads(answer)["result"]

    def states(self, name):
        """Name and state of each process in the container."""
        return self("podman", "exec", name, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f2,3 | tr -d '()'").split()
