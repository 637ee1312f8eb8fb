#!/usr/bin/env bash
# One would expect: opening a descriptor takes microseconds, whether the process has threads or not.
# What happens on Linux: the table of descriptors doubles when it is full (at 64, 128, 256 and so on). If threads share the
# table, whoever opens the first descriptor above such a number waits for an RCU grace period (expand_fdtable in fs/file.c),
# which takes milliseconds to tens of milliseconds. In a process with one thread, the same call takes microseconds.
# Versions: Linux 6.18; Python 3.11 as a way to make the system calls. Seen on 30 November 2026.
# Why it matters: an event loop with one helper thread stops at its 257th connection for 10 ms or more, and a burst of
# connections has several such stops. A descriptor that is duplicated to a high number before the first thread is created,
# and closed again, grows the table for good: FDSize in /proc/PID/status shows it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >table.py <<'END'
import fcntl, os, resource, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
status = os.open('/proc/self/status', os.O_RDONLY)
def size():
    text = os.pread(status, 1 << 16, 0).decode()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith('FDSize:')))
def open_until(last):
    """Opens descriptors up to this number. Returns how many calls doubled the table, and the longest of those in seconds."""
    doubled, longest = 0, 0.0
    while True:
        before = size()
        begun = time.perf_counter()
        number = os.dup(0)
        took = time.perf_counter() - begun
        grew = size() != before
        doubled += grew
        longest = max(longest, took if grew else 0.0)
        if number >= last:
            return doubled, longest
if 'grown' in sys.argv:
    os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 2047))
if 'threads' in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
doubled, longest = open_until(1100)
print('doubled' if doubled else 'not doubled', 'slow' if longest > 0.001 else 'fast', flush=True)
os._exit(0)
END
# In at least one of five runs, since a grace period may end at once, and a busy machine may delay any call.
ever() {
  for _ in 1 2 3 4 5; do
    if [ "$(python3 table.py $1)" = "$2" ]; then echo yes; return; fi
  done
  echo no
}
seen="one thread: the table doubles without a wait: $(ever '' 'doubled fast')
two threads: the table doubles, and a call waits for more than a millisecond: $(ever threads 'doubled slow')
two threads, and a table that was grown before: it does not double: $(ever 'threads grown' 'not doubled fast')"
expected='one thread: the table doubles without a wait: yes
two threads: the table doubles, and a call waits for more than a millisecond: yes
two threads, and a table that was grown before: it does not double: yes'
compare "$expected" "$seen"
