"""Waiting for work that goes on when the caller is cancelled."""

import asyncio
import concurrent.futures
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from corral.concurrency.waiting import wait_for


async def find_unseen(wait: Callable[[Any], Awaitable[object]]) -> list[str]:
    """What asyncio logs when a caller is cancelled, and the work fails later."""
    unseen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context["message"]))
    work: concurrent.futures.Future[int] = concurrent.futures.Future()
    caller = asyncio.ensure_future(wait(work))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not work.cancelled()
    work.set_exception(ValueError("too late"))
    del work, caller
    await asyncio.sleep(0.01)
    gc.collect()
    loop.set_exception_handler(None)
    return unseen


async def test_failure_after_a_cancelled_wait_is_not_logged_as_unseen() -> None:
    async def shielded(work: concurrent.futures.Future[int]) -> int:
        return await asyncio.shield(asyncio.wrap_future(work))

    assert await find_unseen(shielded) == [
        "Future exception was never retrieved"
    ]  # so that the next line says something
    assert await find_unseen(wait_for) == []


async def test_caller_gets_result_or_failure() -> None:
    work: concurrent.futures.Future[int] = concurrent.futures.Future()
    work.set_result(3)
    assert await wait_for(work) == 3
    task = asyncio.ensure_future(asyncio.sleep(0, result=4))
    assert await wait_for(task) == 4
    failed: concurrent.futures.Future[int] = concurrent.futures.Future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await wait_for(failed)


def test_result_outlives_the_event_loop_of_its_work() -> None:
    async def work() -> asyncio.Future[int]:
        task = asyncio.ensure_future(asyncio.sleep(0, result=4))
        await task
        return task

    done = asyncio.run(work())
    assert asyncio.run(wait_for(done)) == 4
