"""Portals: an event loop in its own thread, to which any thread and any event loop can submit work.

The sync API runs everything on one. The Docker and Daytona backends keep theirs, because connections belong to one
event loop, while sandboxes outlive their event loop. `PerProcess` creates a new portal in a forked child, where
the parent's thread does not exist.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from corral.concurrency.closing import close_iterator
from corral.concurrency.waiting import cancel_all

A = TypeVar("A")
T = TypeVar("T")

_INTERRUPT_SECONDS = 10.0
_STOP_SECONDS = 10.0


class PerProcess(Generic[T]):
    """One object per process: created when first needed, and again in a forked child."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._lock = threading.Lock()
        self._fork_aware = False

    def get(self) -> T:
        """The object of this process."""
        with self._lock:
            if not self._fork_aware:
                os.register_at_fork(after_in_child=self.forget)
                self._fork_aware = True
            if self._value is None:
                self._value = self._make()
            return self._value

    def find(self) -> T | None:
        """The same, if it exists already."""
        with self._lock:
            return self._value

    def forget(self) -> None:
        """Let the next `get` create another. For a forked child, and for an object that was closed."""
        # The parent's lock may have been held by another thread at the moment of the fork.
        self._lock = threading.Lock()
        self._value = None


class Begun(concurrent.futures.Future[T]):
    """Work on a portal that always completes: cancelling a waiting caller does not cancel it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # from here on `cancel` does nothing
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def follow(self, task: asyncio.Task[T]) -> None:
        """In the portal's thread: copy the task's result, once it is done."""
        self._task = task
        task.add_done_callback(self._take)

    def _take(self, task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def interrupt(self) -> None:
        """From any thread: cancel the work itself. This future is done when the work has cleaned up."""
        if not self.done():
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Portal:
    """A thread with an event loop. It ends with the process, or by `stop`."""

    def __init__(self, name: str = "corral-portal", *, workers: int = 0) -> None:
        """`workers` is the number of threads for blocking calls; 0: asyncio's default."""
        self.loop = asyncio.new_event_loop()
        if workers:
            self.loop.set_default_executor(_Workers(name, workers))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: set[Begun[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    # For callers that block.

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, from any other thread. An interrupt cancels the work and waits until it has cleaned up.

        Raises:
            RuntimeError: called in the portal's own thread, which would deadlock.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the sync API can't call the sync API; use the async API there")
        begun = self.begin(work)
        try:
            return begun.result()
        except BaseException:
            begun.interrupt()
            concurrent.futures.wait([begun], timeout=_INTERRUPT_SECONDS)
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """An async iterator as a sync one; leaving the loop early closes it."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            # Not waited for: an iterator may be garbage collected on any thread, at any time.
            self.run_soon(close_iterator(source))

    # For callers in another event loop.

    async def arun(
        self, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Coroutine[Any, Any, object]] | None = None
    ) -> T:
        """Run it on the portal and wait in the caller's loop. Cancelling this call cancels the work.

        `undo` is called with a result that arrives in the moment of the cancellation, and that the caller does not get.
        """
        if undo is None:
            return await asyncio.wrap_future(self.submit(work))
        begun = self.begin(work)
        try:
            return await asyncio.wrap_future(begun)
        except BaseException:
            begun.add_done_callback(functools.partial(self._undo, undo))
            begun.interrupt()
            raise

    def _undo(self, undo: Callable[[T], Coroutine[Any, Any, object]], done: concurrent.futures.Future[T]) -> None:
        if done.exception() is None:
            self.begin(undo(done.result()))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the portal to its end, even if this call is cancelled."""
        return await asyncio.wrap_future(self.begin(work))

    # For callers that don't wait, in any thread, the portal's own included.

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start; cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def begin(self, work: Coroutine[Any, Any, T]) -> Begun[T]:
        """Start work that always completes."""
        begun: Begun[T] = Begun(self.loop)
        self._begun.add(begun)

        def start() -> None:
            task = self.spawn(work)
            begun.follow(task)
            task.add_done_callback(lambda _: self._begun.discard(begun))

        self.loop.call_soon_threadsafe(start)
        return begun

    def run_soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Start without a result. When the program exits, the work may be dropped."""
        if sys.is_finalizing() or not self._thread.is_alive():
            work.close()
            return
        self.begin(work)

    def call_later(self, seconds: float, function: Callable[[A], object], argument: A) -> None:
        """Call a function on the portal after a delay. If the program exits before, it is not called."""
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, function, argument)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the portal's own thread only: start a task, and keep a reference until it ends."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The end.

    def wait_for_work(self, seconds: float) -> None:
        """At exit: wait for started work, and for work started by that, up to the timeout."""
        deadline = time.monotonic() + seconds
        while (left := list(self._begun)) and (more := deadline - time.monotonic()) > 0:
            concurrent.futures.wait(left, timeout=more)

    def stop(self) -> None:
        """Cancel everything, and end the loop and the thread."""

        async def finish() -> None:
            await cancel_all(*asyncio.all_tasks() - {asyncio.current_task()})
            await self.loop.shutdown_asyncgens()

        if not self.loop.is_closed():
            concurrent.futures.wait([self.submit(finish())], timeout=_STOP_SECONDS)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_SECONDS)


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


class _Workers(concurrent.futures.ThreadPoolExecutor):
    """Threads for blocking calls, such as name resolution.

    Python's own pools accept no work once the program starts to exit, and then no thread can be started either. But
    that is when the last sandboxes are deleted; so these threads are started at once, and accept work until the end.
    """

    def __init__(self, name: str, count: int) -> None:
        super().__init__(max_workers=1)  # an event loop accepts no other kind of pool; its own thread is never started
        self._work: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None]
        self._work = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Submit it to the next free thread."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - theirs
        """Called when the loop is closed: the threads end after the work that they have."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
                future.set_exception(error)


get_portal = PerProcess(Portal).get
"""The portal of the sync API, and of work that must outlive its caller's event loop."""
