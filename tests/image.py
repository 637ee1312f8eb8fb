"""The image of config/docker: buildah builds it from what Dockerfile.dockerignore leaves, and podman runs it as
docs/operations.md says: read-only, as nobody, as the first process, under the default seccomp profile and under ours, with a
limit of memory, and is stopped.

    tests/image.py

The base images cannot be pulled on every machine, so a Debian that mmdebstrap makes stands in for both, with this machine's
Rust mounted into it, and the programs are built without optimization. Needs root, mmdebstrap, buildah, podman and runc; without
them it says so and is skipped.
"""

import os
import re
import shutil
import subprocess
import tempfile

import cases
import debian
from podman import ULIMITS, Podman

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = "bookworm"
OURS = ["--security-opt", f"seccomp={ROOT}/config/docker/seccomp.json"]


def built(podman, system):
    """Builds the image as its first lines say."""
    home = os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))
    # The build needs no network then, and no certificates of one.
    subprocess.run(["cargo", "fetch", "--quiet", "--locked"], cwd=ROOT, check=True, timeout=900)
    toolchain = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    podman.base("docker.io/library/debian:bookworm-slim", system, "--env", "PATH=/usr/local/bin:/usr/bin:/bin")
    container = podman("buildah", "from", "docker.io/library/debian:bookworm-slim")
    fast = {"LTO": "off", "OPT_LEVEL": "0", "CODEGEN_UNITS": "16", "DEBUG": "none"}
    variables = {"PATH": "/toolchain/bin:/usr/bin:/bin", "CARGO_HOME": "/cargo", "CARGO_INCREMENTAL": "0",
                 "CARGO_NET_OFFLINE": "true",
                 **{f"CARGO_PROFILE_RELEASE_{key}": value for key, value in fast.items()}}
    podman("buildah", "config", *[f"--env={key}={value}" for key, value in variables.items()], container)
    podman("buildah", "commit", "--quiet", container, "docker.io/library/rust:1-bookworm", timeout=900)
    podman("buildah", "rm", container)
    podman("buildah", "build", "--format", "docker", "--pull-never", "--network", "none", f"--volume={toolchain}:/toolchain:ro",
           f"--volume={home}:/cargo", "--file", "config/docker/Dockerfile", "--tag", "stdio_bus", ".", timeout=1800)

    for language, base in (("node", "node:22-bookworm-slim"), ("python", "python:3.13-slim-bookworm")):
        podman("buildah", "tag", "docker.io/library/debian:bookworm-slim", f"docker.io/library/{base}")
        podman("buildah", "build", "--format", "docker", "--pull-never", "--file", f"config/docker/Dockerfile.{language}", "--tag",
               f"agents-{language}", ".", timeout=900)


def the_image_runs_read_only_as_nobody_and_as_the_first_process(podman):
    with podman.running() as name:
        assert podman.calls(name)["method"] == "hello"
        status = podman("podman", "exec", name, "cat", "/proc/1/status")
        assert "Name:\tstdio_bus" in status and re.search(r"Uid:\s+65532\s", status), status
        assert re.search(r"Seccomp:\s+2", status), status
        assert podman.tries("podman", "exec", name, "touch", "/usr/local/bin/new").returncode != 0
        # The check of the image, which only its format of Docker has.
        podman("podman", "healthcheck", "run", name)


def under_our_profile_io_uring_is_used(podman):
    with podman.running(*OURS) as name:
        assert podman.calls(name)["method"] == "hello"
        assert ", on ring," in podman("podman", "exec", name, "stdio_bus", "status"), podman.log(name)


def a_container_that_is_stopped_ends_by_itself(podman):
    with podman.running() as name:
        podman("podman", "stop", "--time", "60", name)
        assert podman("podman", "inspect", "--format", "{{.State.ExitCode}}", name) == "0", podman.log(name)


def what_workers_leave_is_reaped_by_the_first_process(podman):
    # A worker that starts a process for each line and never waits for it: sh's own child ends, and leaves its child behind.
    worker = """while read -r line; do
        sh -c 'sleep 0.1 & exit'
        echo "$line" | sed 's/"method".*/"result":true}/'
    done"""
    with podman.running(command=("--tcp", ":9000", "--admin", "/tmp/admin.sock", "--", "sh", "-c", worker)) as name:
        for _ in range(5):
            assert podman.calls(name) is True
        cases.waits_for(lambda: "Z" not in podman.states(name) and "sleep" not in podman.states(name), lambda: podman.states(name))


def a_worker_beyond_the_limit_of_memory_ends_alone(podman):
    # tail(1) keeps the last lines of its input, which has no line end here.
    hungry = """while read -r line; do
        case $line in *eat*) exec tail /dev/zero ;; esac
        echo "$line" | sed 's/"method".*/"result":true}/'
    done"""
    command = ("--tcp", ":9000", "--admin", "/tmp/admin.sock", "--", "sh", "-c", hungry)
    with podman.running("--memory", "256m", "--memory-swap", "256m", command=command) as name:
        error = podman.tries("podman", "exec", name, "stdio_bus", "call", "--connect", "tcp://127.0.0.1:9000", "eat")
        assert error.returncode == 1 and "signal 9" in podman.log(name), (error, podman.log(name))
        assert podman.calls(name) is True


TESTS = [
    the_image_runs_read_only_as_nobody_and_as_the_first_process,
    under_our_profile_io_uring_is_used,
    a_container_that_is_stopped_ends_by_itself,
    what_workers_leave_is_reaped_by_the_first_process,
    a_worker_beyond_the_limit_of_memory_ends_alone,
]


def main():
    missing = [program for program in ("mmdebstrap", "buildah", "podman", "runc") if not shutil.which(program)]
    if missing or os.geteuid() != 0:
        return cases.skip(f"the image: {', '.join(missing) or 'root'} is missing")
    try:
        system = debian.made(RELEASE)
    except subprocess.CalledProcessError as error:
        return cases.skip(f"the image: no Debian could be made: {error.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        podman = Podman(folder)
        built(podman, system)
        tried = podman.tries("podman", "run", "--rm", *ULIMITS, "--network", "none", "--entrypoint", "/bin/true", "stdio_bus")
        if tried.returncode != 0:
            return cases.skip(f"the image was built; it cannot be run here: {tried.stderr}")
        print(podman("podman", "--version"), podman("buildah", "--version"), sep="\n")
        cases.run(TESTS, podman)


main()
