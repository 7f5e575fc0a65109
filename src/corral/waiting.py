"""Waiting for work that others wait for as well, or that must be carried out to its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TypeVar

T = TypeVar("T")


async def wait_for(work: concurrent.futures.Future[T] | asyncio.Future[T]) -> T:
    """The result of the work. Cancelling this call ends the waiting, never the work.

    `asyncio.shield` alone is not enough: once its caller is cancelled it no longer looks at the work, and if that fails
    later, asyncio logs "exception was never retrieved" with a traceback, although the failure is reported elsewhere.
    """
    inner = asyncio.wrap_future(work)
    inner.add_done_callback(_retrieve)
    return await asyncio.shield(inner)


def _retrieve(done: asyncio.Future[T]) -> None:
    if not done.cancelled():
        done.exception()
