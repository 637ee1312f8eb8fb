#!/usr/bin/env bash
# One would expect: as soon as a TCP socket whose buffer was full has room, poll() says that it is writable (poll(2): POLLOUT,
# "writing is now possible"), so a reader that takes anything at all shows in the events of the sender.
# What happens on Linux: a send takes bytes as soon as some of what is queued was acknowledged, but POLLOUT waits until a
# third of the buffer is free. With a buffer of 4 MiB that are 1.4 MB: a reader of 1 KB/s causes no event for 23 minutes.
# Versions: Linux 6.18; Python 3.11 as a way to make the system calls. Seen on 29 November 2026.
# Why it matters: a server that gives a slow reader up when its socket was not writable for 30 or 60 seconds cuts off
# everybody below 25 to 50 KB/s, though they read all the time. It has to try a send by time, or to look at SIOCOUTQ.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >room.py <<'END'
import fcntl, select, socket, struct, time
SIOCOUTQ = 0x5411
with socket.create_server(('127.0.0.1', 0)) as listener:
    reader = socket.create_connection(listener.getsockname())
    sender = listener.accept()[0]
# The kernel doubles it.
sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
sender.setblocking(False)
def send():
    taken = 0
    try:
        while True:
            taken += sender.send(b'x' * 4096)
    except BlockingIOError:
        return taken
def unacknowledged():
    return struct.unpack('i', fcntl.ioctl(sender.fileno(), SIOCOUTQ, b'\0' * 4))[0]
def fill():
    # Until the peer's buffer has taken what it can, too.
    quiet = 0
    while quiet < 10:
        quiet = 0 if send() else quiet + 1
        time.sleep(0.02)
    return unacknowledged()
def is_writable():
    poll = select.poll()
    poll.register(sender, select.POLLOUT)
    return bool(poll.poll(0))
def read_until(condition):
    for _ in range(100_000):
        if condition():
            return True
        reader.recv(1024)
        time.sleep(0.0005)
    return False
full = fill()
assert read_until(lambda: unacknowledged() < full), 'something is acknowledged'
first = is_writable()
taken = send()
print('after the first acknowledgement: writable', first, 'and a send takes bytes', taken > 0)
full = fill()
assert read_until(is_writable), 'it is writable in the end'
part = (full - unacknowledged()) / full
print('when it is writable, at least a quarter was acknowledged:', part >= 0.25)
END
expected='after the first acknowledgement: writable False and a send takes bytes True
when it is writable, at least a quarter was acknowledged: True'
compare "$expected" "$(python3 room.py)"
