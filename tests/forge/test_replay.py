"""Replaying a run: the same events in the same order, at the requested speed."""

from pathlib import Path

import pytest

from corral.errors import SpecError
from corral.forge.replay import replay
from corral.forge.runfolder import EVENTS, read_run
from support.forge_runs import write_run


class Clock:
    """Time that passes only while a task sleeps or is busy."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("speed", [0.5, 1.0, 10])
async def test_events_come_when_their_time_has_come(tmp_path: Path, speed: float) -> None:
    run = read_run(write_run(tmp_path / "run"))
    clock = Clock()
    seen = []
    async for event in replay(run, speed=speed, sleep=clock.sleep, clock=clock):
        assert clock.now - 1000 == pytest.approx(event.at / speed)
        seen.append(event)
    assert seen == list(run.events())
    assert seen[-1].kind == "run-ended"
    assert clock.now - 1000 == pytest.approx(31 / speed)


async def test_a_slow_listener_does_not_stretch_the_whole(tmp_path: Path) -> None:
    clock = Clock()
    async for event in replay(read_run(write_run(tmp_path / "run")), sleep=clock.sleep, clock=clock):
        if event.kind == "base-ready":
            clock.now += 20
    assert clock.now - 1000 == pytest.approx(31)


async def test_at_once_waits_for_nothing(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    clock = Clock()
    assert [event async for event in replay(run, speed=0, sleep=clock.sleep, clock=clock)] == list(run.events())
    assert set(clock.slept) == {0}  # others have their turn


async def test_a_torn_log_is_told_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    whole = list(read_run(folder).events())
    log = (folder / EVENTS).read_bytes()
    (folder / EVENTS).write_bytes(log[:-10])
    assert [event async for event in replay(read_run(folder), speed=0)] == whole[:-1]


@pytest.mark.parametrize("speed", [-1, float("nan"), float("inf"), True, "fast"])
async def test_what_is_no_speed_is_refused(tmp_path: Path, speed: float) -> None:
    run = read_run(write_run(tmp_path / "run"))
    with pytest.raises(SpecError, match="speed"):
        await anext(replay(run, speed=speed))
