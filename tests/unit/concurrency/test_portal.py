"""Portals: each piece of work ends once, and a result that its caller no longer takes is undone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from corral.concurrency.portal import PerProcess, Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("corral-test", workers=1)
    yield portal
    portal.stop()


async def _say(value: str) -> str:
    await asyncio.sleep(0)
    return value


class Slow:
    """Work that takes a while to clear up when it is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cleared = False

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            self.cleared = True


def test_runs_from_a_thread_and_from_an_event_loop(portal: Portal) -> None:
    assert portal.run(_say("a")) == "a"
    assert asyncio.run(portal.arun(_say("b"))) == "b"
    assert asyncio.run(portal.finish(_say("c"))) == "c"


def test_refuses_to_wait_for_itself(portal: Portal) -> None:
    async def inside() -> str:
        return portal.run(_say("never"))

    with pytest.raises(RuntimeError, match="can't call the sync API"):
        portal.run(inside())


def test_interrupted_run_waits_until_the_work_has_cleared_up(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    begin = portal.begin

    def begin_and_interrupt(work):  # type: ignore[no-untyped-def]
        begun = begin(work)
        slow.begun.wait(5)
        monkeypatch.setattr(begun, "result", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        return begun

    monkeypatch.setattr(portal, "begin", begin_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        portal.run(slow.work())
    assert slow.cleared


async def test_cancelled_caller_cancels_the_work(portal: Portal) -> None:
    slow = Slow()
    waiting = asyncio.ensure_future(portal.arun(slow.work()))
    await asyncio.to_thread(slow.begun.wait, 5)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    portal.run(asyncio.sleep(0.3))
    assert slow.cleared


@pytest.mark.parametrize("is_made", [True, False])
async def test_result_that_the_caller_no_longer_takes_is_undone(portal: Portal, is_made: bool) -> None:
    made, left, undone = threading.Event(), threading.Event(), threading.Event()

    async def make() -> str:
        made.set()
        while not left.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if not is_made:
                    raise
        return "thing"

    async def undo(thing: str) -> None:
        assert thing == "thing"
        undone.set()

    waiting = asyncio.ensure_future(portal.arun(make(), undo=undo))
    await asyncio.to_thread(made.wait, 5)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    left.set()
    assert await asyncio.to_thread(undone.wait, 5 if is_made else 0.2) is is_made


async def test_what_is_to_be_finished_outlives_its_caller(portal: Portal) -> None:
    done = threading.Event()

    async def work() -> None:
        await asyncio.sleep(0.1)
        portal.begin(more())

    async def more() -> None:
        await asyncio.sleep(0.1)
        done.set()

    waiting = asyncio.ensure_future(portal.finish(work()))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.to_thread(portal.wait_for_work, 5)
    assert done.is_set()


def test_stop_ends_the_work_and_all_threads() -> None:
    portal, slow = Portal("corral-stopped", workers=2), Slow()
    portal.begin(slow.work())
    slow.begun.wait(5)
    portal.stop()
    assert slow.cleared
    deadline = time.monotonic() + 5
    while [each for each in threading.enumerate() if each.name.startswith("corral-stopped")]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_take_work_at_the_end_of_the_program() -> None:
    program = """
import asyncio, atexit, threading
from corral.concurrency.portal import Portal
portal = Portal(workers=1)
def look_up(): print("found", flush=True)
def last(): portal.run(asyncio.wait_for(wait(), 5))
async def wait(): await asyncio.get_running_loop().run_in_executor(None, look_up)
atexit.register(last)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (ended.stdout, ended.stderr) == ("found\n", "")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python 3.12 and later
def test_forked_child_has_an_object_of_its_own() -> None:
    per_process = PerProcess(os.getpid)
    assert per_process.find() is None
    assert per_process.get() == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if per_process.find() is None and per_process.get() == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
