"""When a sandbox is paused."""

import pytest

from corral.engine.pausing import _all_still
from corral.inside.processes import Process


@pytest.mark.parametrize(
    ("states", "still"),
    [
        ({1: (0, b"S")}, True),
        ({1: (0, b"S"), 2: (1, b"T")}, True),
        ({1: (0, b"S"), 2: (1, b"R")}, False),
        ({1: (0, b"S"), 2: (1, b"D")}, False),  # it waits for a disk, and may write a moment later
        ({1: (0, b"S"), 2: (1, b"D"), 3: (2, b"T")}, True),  # vfork: it waits for a child that is stopped
        ({1: (0, b"S"), 2: (1, b"D"), 3: (2, b"R")}, False),
    ],
)
def test_all_are_stopped_or_wait_for_one_that_is(states: dict[int, tuple[int, bytes]], still: bool) -> None:
    processes = {pid: Process(parent, state, 100) for pid, (parent, state) in states.items()}
    assert _all_still(processes) is still
