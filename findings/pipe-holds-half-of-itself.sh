#!/usr/bin/env bash
# One would expect: a pipe of 64 KiB holds 64 KiB, give or take a little, in whatever pieces they are written.
# What happens: a write adds to the last page of the pipe only if it fits there whole; otherwise it begins a page of its own.
# Lines of 2,048 bytes fill the pipe (32 of them), with one byte more it holds 16: half as many, and half of the bytes. A
# Unix socket, which child processes of Node.js get in place of a pipe, counts in another way: 278 lines, be they of 1 byte
# or of 100.
# Versions: Linux 6.18 (x86-64, pages of 4 KiB); Python 3.11 as a way to make the system calls. Seen on 28 November 2026.
# Why it matters: "the pipe takes 64 KiB before the writer blocks" is wrong by half for JSON-RPC lines of 2 to 4 KiB. The
# numbers decide when a program that writes before it reads is stuck, and how many lines are lost with a process.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >fill.py <<'END'
import os, socket
def lines(length, pair):
    reader, writer = pair()
    descriptor = writer if isinstance(writer, int) else writer.fileno()
    os.set_blocking(descriptor, False)
    count = 0
    try:
        while os.write(descriptor, b'x' * (length - 1) + b'\n') == length:
            count += 1
    except BlockingIOError:
        pass
    return count
for length in 1, 100, 1024, 2048, 2049, 4096:
    count = lines(length, os.pipe)
    print('pipe:', count, 'lines of', length, 'bytes, together', count * length)
for length in 1, 100:
    print('Unix socket:', lines(length, socket.socketpair), 'lines of', length, 'bytes')
END
expected='pipe: 65536 lines of 1 bytes, together 65536
pipe: 640 lines of 100 bytes, together 64000
pipe: 64 lines of 1024 bytes, together 65536
pipe: 32 lines of 2048 bytes, together 65536
pipe: 16 lines of 2049 bytes, together 32784
pipe: 16 lines of 4096 bytes, together 65536
Unix socket: 278 lines of 1 bytes
Unix socket: 278 lines of 100 bytes'
compare "$expected" "$(python3 fill.py)"
