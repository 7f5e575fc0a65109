"""Waiting for work that others wait for as well, or that must be carried out to its end; and letting others go on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

PACE: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("PACE", default=None)
"""Where many share one event loop: waits until it is this caller's turn again."""


async def breathe() -> None:
    """Between two parts of a long piece of work: let all others of the event loop go on, in turn where there are turns.

    It is not enough that each part is short: a hundred callers that do their parts in the same round are long together.
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


def _retrieve(done: asyncio.Future[T]) -> None:
    if not done.cancelled():
        done.exception()
