"""The files of config/docker and config/kubernetes: the seccomp profile lets the daemon and its workers live and nobody
make a namespace; without io_uring in it the daemon says what to do; the manifests are valid, and give a drain its time.
And the recipes of docs/operations.md.

STDIO_BUS names the daemon's program.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

import cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUS = os.environ["STDIO_BUS"]
PATIENCE = 60

NODE = r"""
require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: JSON.parse(line).id, result: "node" }) + "\n");
});
"""
PYTHON = r"""
import json, sys
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": "python"}), flush=True)
"""


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def profile():
    with open(os.path.join(ROOT, "config", "docker", "seccomp.json")) as file:
        return json.load(file)


def confine(profile):
    """Puts this process under a profile, as a container runtime does (seccomp_init(3), seccomp_rule_add(3))."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    add = library.seccomp_rule_add_array
    add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument)]
    comparisons = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}

    def action(name, error):
        return {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000 | (error or 1)}[name]

    default = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    context = library.seccomp_init(default)
    for rule in profile["syscalls"]:
        wanted = action(rule["action"], rule.get("errnoRet"))
        arguments = [
            Argument(one["index"], comparisons[one["op"]], one["value"], one["valueTwo"]) for one in rule.get("args", [])
        ]
        for name in rule["names"]:
            # Names that this machine's library does not know are left out, as runtimes do.
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1 and wanted != default:
                error = add(context, wanted, number, len(arguments), (Argument * len(arguments))(*arguments))
                assert error == 0, f"{name}: {error}"
    assert library.seccomp_load(context) == 0


def confined(profile, command, **options):
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    return subprocess.run(command, preexec_fn=lambda: confine(profile), **options)


def pool(name, command, *arguments):
    return {"id": name, "command": command, "args": list(arguments), "instances": 1}


def the_daemon_and_its_workers_live_under_the_profile():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bus.json")
        pools = [pool("python", sys.executable, "-c", PYTHON), pool("node", "node", "-e", NODE)]
        with open(path, "w") as file:
            json.dump({"pools": pools}, file)
        requests = [{"jsonrpc": "2.0", "id": one, "method": "x", "pool": one} for one in ["python", "node"]]
        lines = "".join(json.dumps(one) + "\n" for one in requests)
        done = confined(profile(), [BUS, "--config", path, "--stdio"], input=lines)
        assert done.returncode == 0, done.stderr
        answers = {json.loads(line)["id"]: json.loads(line).get("result") for line in done.stdout.splitlines()}
        assert answers == {"python": "python", "node": "node"}, (answers, done.stderr)


def without_io_uring_in_the_profile_epoll_serves_and_the_daemon_says_what_to_do():
    refusing = profile()
    refusing["syscalls"] = [rule for rule in refusing["syscalls"] if "io_uring_setup" not in rule["names"]]
    assert len(refusing["syscalls"]) == len(profile()["syscalls"]) - 1
    done = confined(refusing, [BUS, "--stdio", "--io", "ring"], stdin=subprocess.DEVNULL)
    assert done.returncode == 69 and "seccomp" in done.stderr, (done.returncode, done.stderr)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": [7]}) + "\n"
    done = confined(refusing, [BUS, "--stdio"], input=line)
    assert done.returncode == 0 and json.loads(done.stdout)["result"]["echo"] == [7], (done.stdout, done.stderr)
    assert "epoll is used instead" in done.stderr and "seccomp" in done.stderr, done.stderr
    done = confined(refusing, [BUS, "doctor"])
    assert done.returncode == 0 and "seccomp" in done.stdout and "epoll" in done.stdout, (done.stdout, done.stderr)
    done = confined(profile(), [BUS, "doctor"])
    assert done.returncode == 0 and "io_uring      works" in done.stdout, (done.returncode, done.stdout)


def nobody_makes_a_namespace_or_traces_under_the_profile():
    calls = {"unshare": [0x10000000], "ptrace": [0, 0, 0, 0], "mount": [0, 0, 0, 0, 0], "keyctl": [0, 0]}
    program = f"""
import ctypes, errno, json
libc, calls = ctypes.CDLL(None, use_errno=True), {calls!r}
seccomp = ctypes.CDLL("libseccomp.so.2")
number = lambda name: seccomp.seccomp_syscall_resolve_name(name.encode())
told = {{}}
for name, arguments in [*calls.items(), ("clone", [0x10000000, 0, 0, 0, 0]), ("socket", [40, 1, 0]), ("clone3", [0, 0])]:
    libc.syscall(number(name), *arguments)
    told[name] = errno.errorcode[ctypes.get_errno()]
print(json.dumps(told))
"""
    done = confined(profile(), [sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    expected = dict.fromkeys(calls, "EPERM") | {"clone": "ENOSYS", "socket": "ENOSYS", "clone3": "ENOSYS"}
    assert json.loads(done.stdout) == expected, done.stdout


def the_manifests_are_valid_and_give_a_drain_its_time():
    with open(os.path.join(ROOT, "config", "kubernetes", "stdio_bus.yaml")) as file:
        documents = {one["kind"]: one for one in yaml.safe_load_all(file)}
    assert set(documents) == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    for one in documents.values():
        kubernetes_validate.validate(one, "1.29", strict=True)
    text = documents["ConfigMap"]["data"]["bus.json"]
    config = json.loads(text)
    token = config["admin"]["token_file"]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("0" * 64)
        file.flush()
        checked = subprocess.run(
            [BUS, "check", "--config", "-"], input=text.replace(token, file.name), capture_output=True, text=True,
            timeout=PATIENCE,
            env={**os.environ, "PATH": f"{os.path.dirname(os.path.abspath(BUS))}:{os.environ['PATH']}"},
        )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    limits = config["limits"]
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    sum_of_all = limits["lame_duck_sec"] + limits["quiesce_sec"] + limits["drain_timeout_sec"]
    assert pod["terminationGracePeriodSeconds"] >= sum_of_all + 10
    container = pod["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["STDIO_BUS_ADMIN_TOKEN_FILE"] == token
    assert environment["STDIO_BUS_ADMIN"].split(":")[1] == config["admin"]["listen"].split(":")[1]
    assert os.path.dirname(token) in [mount["mountPath"] for mount in container["volumeMounts"]]
    probe = container["readinessProbe"]
    assert limits["lame_duck_sec"] > probe["periodSeconds"] * (probe["failureThreshold"] + 1)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config["admin"]["listen"].endswith(f":{ports['admin']}")
    assert config["listeners"][0]["tcp"].endswith(f":{ports['clients']}")
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for one in ["Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"]:
        spec = documents[one]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector) == labels, one
    # The memory of the container holds what the daemon may use, and workers beside it.
    assert container["resources"]["limits"]["memory"] == "1Gi" and limits["max_memory"] * 5 // 4 < 1 << 29


def the_recipes_of_the_book_answer():
    with open(os.path.join(ROOT, "docs", "operations.md")) as file:
        recipes = file.read().split("## Recipes")[1].split("```json")[1:]
    pools = [json.loads(recipe.split("```")[0]) for recipe in recipes]
    # The fourth needs systemd, which not every machine that runs tests has.
    assert [one["id"] for one in pools] == ["bounded", "clean", "humble", "scoped"]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "worker.py"), "w") as file:
            file.write(PYTHON)
        with open(os.path.join(folder, "bus.json"), "w") as file:
            json.dump({"pools": pools[:3]}, file)
        lines = "".join(json.dumps({"jsonrpc": "2.0", "id": one["id"], "method": "x", "pool": one["id"]}) + "\n" for one in pools[:3])
        done = subprocess.run(
            [BUS, "--config", "bus.json", "--stdio"], input=lines, cwd=folder, capture_output=True, text=True, timeout=PATIENCE
        )
        answers = {json.loads(line)["id"]: json.loads(line).get("result") for line in done.stdout.splitlines()}
        assert answers == dict.fromkeys(["bounded", "clean", "humble"], "python"), (answers, done.stderr)


TESTS = [
    the_daemon_and_its_workers_live_under_the_profile,
    without_io_uring_in_the_profile_epoll_serves_and_the_daemon_says_what_to_do,
    nobody_makes_a_namespace_or_traces_under_the_profile,
    the_manifests_are_valid_and_give_a_drain_its_time,
    the_recipes_of_the_book_answer,
]

cases.run(TESTS)
