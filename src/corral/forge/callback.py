"""Async work for a plain caller, who is told of lines on a thread of its own: the one that it called from."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from corral.concurrency.portal import get_portal

T = TypeVar("T")
log = logging.getLogger(__name__)

LogCallback = Callable[[str, str], object]
"""log_callback(candidate_id, line)"""
SayFor = Callable[[str, str], None]
_SETTLE_SECONDS = 60.0


def run_with_callback(work: Callable[[SayFor], Coroutine[Any, Any, T]], callback: LogCallback | None) -> T:
    """Run the work on the portal, and call back here. An interrupt ends the work, and waits until it has cleared up.

    A callback that raises is told of in the log and is not called again: it is no reason to lose the run.

    Raises:
        RuntimeError: called from a callback of the sync API, where waiting would never end.
    """
    lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def say(who: str, line: str) -> None:
        if callback is not None:
            lines.put((who, line))

    portal = get_portal()
    portal.run(asyncio.sleep(0))  # refuses on the portal's own thread
    future = portal.begin(work(say))
    future.add_done_callback(lambda _: lines.put(None))
    try:
        while (item := lines.get()) is not None:
            if callback is not None and not _call(callback, *item):
                callback = None
        return future.result()
    except BaseException:
        future.interrupt()
        concurrent.futures.wait([future], timeout=_SETTLE_SECONDS)
        raise


def _call(callback: LogCallback, who: str, line: str) -> bool:
    try:
        callback(who, line)
    except Exception:
        log.exception("log_callback failed, and is not called again")
        return False
    return True
