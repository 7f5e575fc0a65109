"""The portal: one thread with an event loop per process, on which the sync door runs everything.

It works inside a running loop (a notebook), from several threads, and is made anew after `os.fork`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from corral.concurrency.perprocess import PerProcess

A = TypeVar("A")
T = TypeVar("T")


class Portal:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="corral-portal", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, from any other thread. An interrupt cancels the work and waits until it is gone."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the sync API can't call the sync API; use the async API there")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                concurrent.futures.wait([asyncio.run_coroutine_threadsafe(_settle(), self._loop)], timeout=10)
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run it here, from any thread, this one included; whoever wants to may wait, in whichever event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_later(self, seconds: float, function: Callable[[A], object], argument: A) -> None:
        """Call a plain function here, after a while. At the end of the program it may not come to it."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, function, argument)

    def run_soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Run without waiting, from any thread, this one included. At the end of the program it may not come to it."""
        if sys.is_finalizing() or not self._thread.is_alive():
            work.close()
            return
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """An async iterator as a plain one; leaving the loop early closes it."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            # Not waited for: a forgotten iterator is collected on whatever thread, and however late.
            close = getattr(source, "aclose", None)
            if close is not None:
                self.run_soon(close())


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


async def _settle() -> None:
    """Let cancelled work run its clean-up."""
    await asyncio.sleep(0.05)


_portal = PerProcess(Portal)


def get_portal() -> Portal:
    """The portal of this process."""
    return _portal.get()
