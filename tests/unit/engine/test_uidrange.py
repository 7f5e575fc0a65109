"""Ranges of user ids: never given out twice, not available to others, and free again when released."""

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.engine import uidrange
from corral.engine.errors import SetupError
from corral.engine.recipe import UID_RANGE_SIZE
from corral.engine.uidrange import FIRST_UID, SLOTS, claim_range, lock_folder
from support.leftovers import nothing_left_open

DATA = Path("/srv/some-data")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of its own: a place for locks that no sandbox of this one uses."""
    monkeypatch.setattr(uidrange, "LOCK_PARENTS", (tmp_path,))
    return tmp_path


@contextlib.contextmanager
def squatted(*slots: int) -> Iterator[None]:
    """The abstract names, bound as any local user can."""
    with contextlib.ExitStack() as held:
        for slot in slots:
            squatter = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):  # a sandbox of this machine has it: taken all the same
                squatter.bind(f"\0corral-uids-{slot}")
        yield


def test_ranges_do_not_overlap() -> None:
    claimed = [claim_range(DATA) for _ in range(20)]
    try:
        firsts = sorted(found.first for found in claimed)
        assert all(second - first >= UID_RANGE_SIZE for first, second in itertools.pairwise(firsts))
    finally:
        for found in claimed:
            found.close()


def test_every_range_fits_into_what_a_uid_can_be() -> None:
    last = FIRST_UID + SLOTS * UID_RANGE_SIZE - 1
    assert last < 2**31  # many file systems and tools keep ids in a signed number
    found = claim_range(DATA)
    found.close()
    assert FIRST_UID <= found.first <= last
    assert (found.first - FIRST_UID) % UID_RANGE_SIZE == 0


def test_range_is_free_again_when_its_claim_is_closed(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 1)
    first = claim_range(DATA)
    with pytest.raises(SetupError, match=f"in use.*1 by {DATA} .*process {os.getpid()}"):
        claim_range(DATA)
    first.unsign()
    first.close()
    assert not (machine / uidrange.LOCK_NAME / "0").stat().st_size
    claim_range(DATA).close()


def test_names_that_another_user_has_bound_take_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 3)
    with squatted(0, 1, 2):
        claimed = [claim_range(DATA) for _ in range(3)]
    assert len({found.first for found in claimed}) == 3
    for found in claimed:
        found.close()


def test_range_of_an_earlier_version_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 4090)
    with squatted(7):
        found = claim_range(DATA, preferred=FIRST_UID + 7 * UID_RANGE_SIZE)
    assert found.first != FIRST_UID + 7 * UID_RANGE_SIZE
    found.close()


def test_folder_of_locks_is_its_owners_alone(machine: Path) -> None:
    folder = lock_folder()
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(SetupError, match="root only"):
        claim_range(DATA)
    folder.rmdir()
    folder.symlink_to(machine)
    with pytest.raises(SetupError, match="root only"):
        claim_range(DATA)


def test_machine_without_a_place_for_locks_has_the_names(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    monkeypatch.setattr(uidrange, "LOCK_PARENTS", (machine / "not-there",))
    first, second = claim_range(DATA), claim_range(DATA)
    assert first.lock is None
    assert first.first != second.first
    first.close()
    second.close()


def test_claim_is_kept_by_a_fork_and_not_by_another_program() -> None:
    found = claim_range(DATA)
    assert not any(os.get_inheritable(descriptor) for descriptor in found.descriptors())
    found.close()


def test_refused_attempts_leave_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uidrange, "SLOTS", 2)
    with nothing_left_open():
        held = [claim_range(DATA), claim_range(DATA)]
        with nothing_left_open(), pytest.raises(SetupError):
            claim_range(DATA)
        for found in held:
            found.close()
