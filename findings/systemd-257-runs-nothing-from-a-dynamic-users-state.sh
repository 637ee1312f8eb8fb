#!/usr/bin/env bash
# One would expect: a service may run a program that it has put into its own StateDirectory=, as npx, uvx and pip do with
# what they download, unless the unit has NoExecPaths=; and if it may not, then on every machine alike.
# What happens: with DynamicUser=yes systemd 257 refuses it ("Permission denied", status 126), where the file system of
# /var/lib can be mounted for another user (tmpfs here; ext4 and xfs are such, too); on an overlay, as in most containers,
# the same unit runs it. With User= it runs on both, with ExecPaths= as well, and systemd 252 runs it everywhere.
# Versions: systemd 257 (Debian 13) and 252 (Debian 12). Seen on 29 November 2026 with Linux 6.18.
# Why it matters: a unit that was tested in a container, or with Debian 12, starts no worker of npx on a real Debian 13.
# Needs root, mmdebstrap and systemd-nspawn (apt-get install mmdebstrap systemd-container).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cat >probe.sh <<'END'
try() {
    name=$1
    shift
    systemd-run --quiet --wait --pipe --collect -p StateDirectory=probe -p "$@" \
        /bin/sh -c 'cp /bin/true "$STATE_DIRECTORY/downloaded" && "$STATE_DIRECTORY/downloaded"' 2>/dev/null
    echo "$name: status $?"
    rm -rf /var/lib/probe /var/lib/private/probe
}
systemctl --version | sed -n 's/^systemd \([0-9]*\) .*/systemd \1/p'
try 'overlay, DynamicUser' DynamicUser=yes
mkdir -p /var/lib/private
mount -t tmpfs -o mode=0700 tmpfs /var/lib/private
try 'tmpfs, DynamicUser' DynamicUser=yes
try 'tmpfs, DynamicUser and ExecPaths' DynamicUser=yes -p ExecPaths=/var/lib/probe
umount /var/lib/private
mount -t tmpfs tmpfs /var/lib
try 'tmpfs, User' User=nobody
END
seen=
for release in bookworm trixie; do
    mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus "$release" "$release"
    systemd-nspawn --quiet --boot --register=no --keep-unit --volatile=overlay --private-network --console=read-only \
        --bind-ro="$PWD/probe.sh:/root/probe.sh" --directory="$release" </dev/null >"$release.log" 2>&1 &
    nspawn=$!
    leader=
    for _ in $(seq 600); do
        leader=$(pgrep --parent $nspawn || true)
        inside() { nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
        [ -n "$leader" ] && inside systemctl is-system-running 2>/dev/null | grep -q 'running\|degraded' && break
        sleep 0.2
    done
    seen+=$(inside timeout 120 sh /root/probe.sh)$'\n'
    kill $nspawn
    wait $nspawn || true
done
expected='systemd 252
overlay, DynamicUser: status 0
tmpfs, DynamicUser: status 0
tmpfs, DynamicUser and ExecPaths: status 0
tmpfs, User: status 0
systemd 257
overlay, DynamicUser: status 0
tmpfs, DynamicUser: status 126
tmpfs, DynamicUser and ExecPaths: status 0
tmpfs, User: status 0'
compare "$expected" "${seen%$'\n'}"
