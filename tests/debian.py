"""A small Debian, made by mmdebstrap: the machine of tests/systemd.py, and what stands in for the base images of
tests/image.py, which cannot be pulled everywhere. It is kept in target/hosts."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
PACKAGES = "systemd,systemd-sysv,libpam-systemd,dbus,passwd,procps,iproute2,python3,bubblewrap,gcc,libc6-dev,ca-certificates"


def this_release():
    with open("/etc/os-release") as file:
        return dict(line.strip().split("=", 1) for line in file if "=" in line).get("VERSION_CODENAME", "stable")


def made(release):
    """The directory of a Debian of this release. It is made once, and again when other packages belong to it."""
    system = os.path.join(TARGET, "hosts", release)
    marker = f"{system}.packages"
    if not os.path.exists(marker) or open(marker).read() != PACKAGES:
        os.makedirs(os.path.dirname(system), exist_ok=True)
        subprocess.run(["rm", "-rf", system], check=True)
        subprocess.run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", release, system], check=True, timeout=1800,
                       capture_output=True, text=True)
        with open(marker, "w") as file:
            file.write(PACKAGES)
    return system
