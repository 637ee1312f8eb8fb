#!/usr/bin/env bash
# One would expect: a runtime's own log goes to stderr, so that stdout has what the program writes and nothing else.
# What happens: the loggers of Erlang and Elixir write to stdout unless they are told otherwise. A program that prints nothing
# but its data has one line more there when it is ended by SIGTERM: "[notice] SIGTERM received - shutting down".
# Versions: Debian 12's Elixir 1.14.0 with Erlang/OTP 25. Seen on 28 November 2026.
# Why it matters: whoever reads lines of JSON from such a program finds one that is none at every ordered shutdown, and a
# strict reader reports a broken program.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if ! command -v elixir >/dev/null; then
  apt-get update --quiet >apt.log 2>&1
  apt-get install --yes --quiet --no-install-recommends elixir >>apt.log 2>&1 || { cat apt.log; exit 1; }
fi
cat >program.exs <<'END'
IO.puts("data")
IO.gets("")
END
mkfifo input
elixir program.exs <input >stdout 2>stderr &
program=$!
exec 3>input
for _ in $(seq 600); do
  grep -q data stdout && break
  sleep 0.1
done
kill -TERM "$program"
wait "$program" || true
elixir --version | grep -E '^(Erlang|Elixir)'
stated='stdout: data
stdout: [notice] SIGTERM received - shutting down'
compare "$stated" "$(grep -v '^$' stdout | sed -E 's/^[0-9:.]+ \[/[/; s/^/stdout: /'; grep SIGTERM stderr | sed 's/^/stderr: /')"
