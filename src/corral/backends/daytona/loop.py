"""One thread with an event loop per process, on which everything that talks to the service runs.

The SDK's client belongs to the event loop it was made in, while our callers come from any number of them, leave theirs,
and fork. So the client lives here, and they wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from corral.concurrency.perprocess import PerProcess

T = TypeVar("T")

_WORKERS = 2


class _Workers(concurrent.futures.ThreadPoolExecutor):
    """Threads for what blocks, such as looking up a name.

    Python's own pools take no work once the program begins to end, and then no thread can be started either. But that
    is when the last sandboxes are deleted; so these threads are there from the beginning, and take work to the end.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # an event loop takes no other kind of pool; its own thread is never started
        self._work: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        for number in range(_WORKERS):
            threading.Thread(target=self._serve, name=f"corral-daytona-{number}", daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """See `Executor`."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)


class LoopThread:
    """The thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Workers())
        self._thread = threading.Thread(target=self.loop.run_forever, name="corral-daytona", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: set[concurrent.futures.Future[None]] = set()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin it, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin it, from any thread, to be carried out to its end: who waits for the future may be cancelled."""
        promise: concurrent.futures.Future[T] = concurrent.futures.Future()
        promise.set_running_or_notify_cancel()  # from here on nobody who waits for it can cancel it for the others
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._begun.add(ended)

        def tell(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            self._begun.discard(ended)
            ended.set_result(None)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                promise.set_exception(error)
            else:
                promise.set_result(task.result())

        def start() -> None:
            task = self.loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(tell)

        self.loop.call_soon_threadsafe(start)
        return promise

    def wait_for_work(self, seconds: float) -> None:
        """At the end of the program: what was begun to be carried out to its end is, if it does not take too long.

        That may begin more of it.
        """
        deadline = time.monotonic() + seconds
        while (left := list(self._begun)) and (more := deadline - time.monotonic()) > 0:
            concurrent.futures.wait(left, timeout=more)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, and wait here. Whoever is cancelled meanwhile cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """The same; but it is carried out to its end, whatever becomes of who waits."""
        return await asyncio.wrap_future(self.begin(work))


_thread = PerProcess(LoopThread)


def get_loop() -> LoopThread:
    """The thread of this process."""
    return _thread.get()


def find_loop() -> LoopThread | None:
    """The same, if there is one."""
    return _thread.find()
