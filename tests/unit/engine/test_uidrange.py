"""Ranges of user ids: never the same one twice, and free again when nobody holds it."""

import contextlib
import itertools
import os
import socket

import pytest

from corral.engine import uidrange
from corral.engine.recipe import UID_RANGE_SIZE
from corral.engine.uidrange import FIRST_UID, SLOTS, claim_range
from support.leftovers import count_descriptors


def test_ranges_do_not_overlap() -> None:
    claimed = [claim_range() for _ in range(20)]
    try:
        firsts = sorted(found.first for found in claimed)
        assert all(second - first >= UID_RANGE_SIZE for first, second in itertools.pairwise(firsts))
    finally:
        for found in claimed:
            found.claim.close()


def test_every_range_fits_into_what_a_uid_can_be() -> None:
    last = FIRST_UID + SLOTS * UID_RANGE_SIZE - 1
    assert last < 2**31  # many file systems and tools keep ids in a signed number
    found = claim_range()
    found.claim.close()
    assert FIRST_UID <= found.first <= last
    assert (found.first - FIRST_UID) % UID_RANGE_SIZE == 0


def test_range_is_free_again_when_its_claim_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 1)
    monkeypatch.setattr(uidrange, "FIRST_UID", FIRST_UID)
    held = occupy_slot_zero()
    if held is None:
        pytest.skip("somebody on this machine holds the first range")
    held.close()
    first = claim_range()
    with pytest.raises(OSError, match="every range of user ids is taken"):
        claim_range()
    first.claim.close()
    claim_range().claim.close()


def occupy_slot_zero() -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind("\0corral-uids-0")
    except OSError:
        claim.close()
        return None
    return claim


def test_claim_is_kept_by_a_fork_and_not_by_another_program() -> None:
    found = claim_range()
    assert not os.get_inheritable(found.claim.fileno())
    found.claim.close()


def test_refused_attempts_leave_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 2)
    before = count_descriptors()
    held = []
    for _ in range(3):  # the last, at least, finds every range taken
        with contextlib.suppress(OSError):
            held.append(claim_range())
    try:
        assert len(held) < 3
        assert count_descriptors() == before + len(held)
    finally:
        for found in held:
            found.claim.close()
