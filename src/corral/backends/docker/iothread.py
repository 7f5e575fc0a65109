"""One thread with an event loop, in which everything is said to the daemon, whichever loop or thread asks.

Connections belong to one event loop, and sandboxes to none: they outlive the loop that made them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_STOP_SECONDS = 10.0


class IoThread:
    """Runs coroutines; ends with the process at the latest."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._work, name="corral-docker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin, from any thread. It goes on whatever happens to the caller."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin, in this thread, what nobody waits for."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run from any event loop. Whoever is cancelled cancels the work; a result nobody takes any more is undone."""
        handover = _Handover(work, undo)
        return await asyncio.wrap_future(self.submit(handover.run())) if undo is None else await handover.take(self)

    def stop(self) -> None:
        """End the loop and the thread."""

        async def finish() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loop.shutdown_asyncgens()

        if not self.loop.is_closed():
            done = self.submit(finish())
            concurrent.futures.wait([done], timeout=_STOP_SECONDS)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_SECONDS)


class _Handover(Generic[T]):
    """Between the thread that makes something and the caller who may have gone: one of them has it, never nobody."""

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] | None) -> None:
        self._work = work
        self._undo = undo
        self._lock = threading.Lock()
        self._abandoned = False
        self._made: list[T] = []
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> T:
        """In the thread."""
        with self._lock:
            if self._abandoned:
                self._work.close()
                raise asyncio.CancelledError
            self._task = asyncio.current_task()
        value = await self._work
        with self._lock:
            self._made.append(value)
            abandoned = self._abandoned
        if abandoned and self._undo is not None:
            await self._undo(value)
        return value

    async def take(self, thread: IoThread) -> T:
        """In the caller's loop."""
        future = thread.submit(self.run())
        try:
            return await asyncio.wrap_future(_shielded(future))
        except asyncio.CancelledError:
            with self._lock:
                self._abandoned = True
                made = list(self._made)
            if made:
                assert self._undo is not None
                thread.submit(_call(self._undo, made[0]))
            elif self._task is not None:
                thread.loop.call_soon_threadsafe(self._task.cancel)
            raise


def _shielded(future: concurrent.futures.Future[T]) -> concurrent.futures.Future[T]:
    """The same end, but cancelling this one does not touch the other."""
    outer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def pass_on(done: concurrent.futures.Future[T]) -> None:
        if not outer.set_running_or_notify_cancel():
            return
        if done.cancelled():
            outer.set_exception(asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(done.result())

    future.add_done_callback(pass_on)
    return outer


async def _call(undo: Callable[[T], Awaitable[None]], value: T) -> None:
    await undo(value)
