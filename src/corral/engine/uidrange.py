"""A range of user ids that no other sandbox on this machine has.

A range is claimed by binding an abstract socket named after it: the kernel owns the name and frees it when the last
holder is gone, so that nothing stale can be left behind and several data folders never collide.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from corral.engine import syscalls
from corral.engine.recipe import UID_RANGE_SIZE

FIRST_UID = 0x7000_0000
"""Just above the range that systemd gives to containers."""
SLOTS = 4095
"""The next one would be `BASE_FIRST_UID`, which belongs to no sandbox."""


@dataclass(frozen=True, slots=True)
class UidRange:
    """A claimed range; it lasts as long as `claim` is open somewhere."""

    first: int
    claim: socket.socket


def claim_range(preferred: int | None = None) -> UidRange:
    """Claim a free range: the one that begins with `preferred`, if nobody has it.

    Raises:
        OSError: all of them are taken.
    """
    start = int.from_bytes(os.urandom(4), "little")
    if preferred is not None:
        start = (preferred - FIRST_UID) // UID_RANGE_SIZE
    for attempt in range(SLOTS):
        slot = (start + attempt) % SLOTS
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0corral-uids-{slot}")
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return UidRange(FIRST_UID + slot * UID_RANGE_SIZE, claim)
    raise OSError(errno.EUSERS, "every range of user ids is taken")


def make_shift(*extents: tuple[int, int, int]) -> int:
    """A user namespace that says how ids on disk are shown: first one there, first one shown, how many. For idmapped
    mounts.

    Raises:
        OSError: the kernel gives none.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the namespace is held by its descriptor, or our maker is gone
        os._exit(0)
    os.close(reader)
    try:
        proc = Path(f"/proc/{pid}")
        for name in ("uid_map", "gid_map"):
            (proc / name).write_text("\n".join(" ".join(map(str, extent)) for extent in extents))
        return os.open(proc / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
