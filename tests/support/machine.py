"""What this machine can do, found out by trying.

Each row of `NEEDS` gives a marker `needs_<name>`. A probe returns None when the power is there, else the reason that a
skipped test shows. A probe tries the thing itself wherever it can: a file that says "allowed" has been wrong before.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from support import browser, dockerd, podman, user

CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True, slots=True)
class Need:
    """One power that a test may ask of the machine."""

    meaning: str
    probe: Callable[[], str | None]


def _probe_root() -> str | None:
    if os.geteuid() == 0:
        return None
    return f"runs as uid {os.geteuid()}; run the tests as root"


def _probe_userns() -> str | None:
    """An ordinary user's namespace is what rootless needs, so root gives up its uid before it tries."""
    if sys.platform != "linux":
        return "user namespaces are Linux only"
    child = os.fork()
    if child == 0:
        # Nothing of the parent's may run here: neither its atexit handlers nor its buffers.
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(user.FIRST_UID, user.FIRST_UID, user.FIRST_UID)
                os.setresuid(user.FIRST_UID, user.FIRST_UID, user.FIRST_UID)
            libc = ctypes.CDLL(None, use_errno=True)
            os._exit(0 if libc.unshare(CLONE_NEWUSER) == 0 else min(ctypes.get_errno(), 254) or 254)
        except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happened
            os._exit(255)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return None
    return f"an ordinary user may not unshare(CLONE_NEWUSER): {os.strerror(code) if 0 < code < 254 else f'code {code}'}"


def _probe_user() -> str | None:
    try:
        user.find_python()
    except user.NoOrdinaryUserError as error:
        return str(error)
    return None


def _find_program(name: str) -> Callable[[], str | None]:
    def probe() -> str | None:
        return None if shutil.which(name) else f"{name} is not on PATH"

    return probe


def _probe_network() -> str | None:
    """Asked of pip, because it knows this machine's mirrors and proxies."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--dest", folder, "iniconfig"]
        return None if _succeeds(argv, timeout=60) else "pip could not fetch a small package"


def _succeeds(argv: list[str], *, timeout: float) -> bool:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


NEEDS: dict[str, Need] = {
    "root": Need("runs as root", _probe_root),
    "user": Need("can run a script as an ordinary user (the fixture ordinary_user)", _probe_user),
    "userns": Need("an ordinary user may make user namespaces", _probe_userns),
    "git": Need("git is installed", _find_program("git")),
    "node": Need("Node.js is installed", _find_program("node")),
    "npm": Need("npm is installed", _find_program("npm")),
    "zsh": Need("zsh is installed", _find_program("zsh")),
    "network": Need("packages can be fetched", _probe_network),
    "docker": Need("a Docker daemon can be started", dockerd.find_lack),
    "podman": Need("a podman service can be started", podman.find_lack),
    "busybox": Need("there is a static busybox", dockerd.find_busybox_lack),
    "browser": Need("Chromium is installed and starts", browser.find_lack),
}


@cache
def find_lack(name: str) -> str | None:
    """Return why the need called name is not met, or None when it is. Probed once in a run."""
    return NEEDS[name].probe()
