"""Waiting for shared work or work that must complete, time limits, cancelling tasks, and yielding to other tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

PACE: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("PACE", default=None)
"""Where many share one event loop: waits until it is this caller's turn again."""


async def breathe() -> None:
    """Between two parts of long work: let other tasks of the event loop run, in turn if there are turns.

    Short parts are not enough: a hundred callers that run their parts in the same round take long together.
    """
    await asyncio.sleep(0)
    pace = PACE.get()
    if pace is not None:
        await pace()


async def wait_for(work: concurrent.futures.Future[T] | asyncio.Future[T]) -> T:
    """The result of the work. Cancelling this call ends the waiting, never the work.

    `asyncio.shield` alone is not enough: once its caller is cancelled it no longer looks at the work, and if that fails
    later, asyncio logs "exception was never retrieved" with a traceback, although the failure is reported elsewhere.
    """
    inner = asyncio.wrap_future(work)
    if not inner.done():  # else its event loop may be closed already
        inner.add_done_callback(_retrieve)
    return await asyncio.shield(inner)


@contextlib.asynccontextmanager
async def in_time(seconds: float | None, late: Callable[[float], Exception]) -> AsyncIterator[None]:
    """Stop the block after so many seconds, and raise `late(seconds)`; a TimeoutError from elsewhere is passed on."""
    try:
        async with asyncio.timeout(seconds) as clock:
            yield
    except TimeoutError as error:
        if seconds is None or not clock.expired():
            raise
        raise late(seconds) from error


def still_running(seconds: float) -> TimeoutError:
    """The error of waiting for a program's end that has not come in time."""
    return TimeoutError(f"still running after {seconds:g} s")


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _retrieve(done: asyncio.Future[T]) -> None:
    if not done.cancelled():
        done.exception()
