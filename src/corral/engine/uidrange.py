"""A range of user ids that no other sandbox on this machine has.

A range is claimed by binding an abstract socket named after it: the kernel owns the name and frees it when the last
holder is gone, so that nothing stale can be left behind and several data folders never collide.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from corral.engine.recipe import UID_RANGE_SIZE

FIRST_UID = 0x7000_0000
"""Just above the range that systemd gives to containers."""
SLOTS = 4095


@dataclass(frozen=True, slots=True)
class UidRange:
    """A claimed range; it lasts as long as `claim` is open somewhere."""

    first: int
    claim: socket.socket


def claim_range() -> UidRange:
    """Claim a free range.

    Raises:
        OSError: all of them are taken.
    """
    start = int.from_bytes(os.urandom(4), "little")
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
