"""The pump: one thread per process that reads what programs print and hears how they end.

A thread of its own, because a program must be read whichever event loop its caller has, or has no more, and because the
order of the two streams is only known to somebody who is never busy with anything else.

Order: the pipes are those of `corral.inside.pipes`, and epoll reports them in the order in which they were written. A
program that has printed much is looked at once in a millisecond while it prints, and woken for only after a silence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from corral.concurrency.portal import PerProcess
from corral.inside.pipes import NAP_SECONDS, Turn

log = logging.getLogger("corral.embedded")


class Source(Protocol):
    """Something the pump listens to."""

    def ready(self, descriptor: int) -> Turn:
        """Take what is there, and say when to be asked again."""


class Pump:
    """The thread and its epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sources: dict[int, Source] = {}
        self._again: deque[int] = deque()
        # Of the thread alone; all naps are equally long, so in order. With the source: numbers are used again.
        self._naps: deque[tuple[float, int, Source]] = deque()
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_reader, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="corral-pump", daemon=True)
        self._thread.start()

    def add(self, descriptor: int, source: Source) -> None:
        """Listen to a descriptor."""
        with self._lock:
            self._sources[descriptor] = source
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def hand_over(self, descriptor: int, source: Source) -> None:
        """Another source takes a descriptor that is listened to, and is asked once."""
        with self._lock:
            self._sources[descriptor] = source
        self.again(descriptor)

    def remove(self, descriptor: int) -> None:
        """Listen no more; to be called before closing."""
        with self._lock:
            if self._sources.pop(descriptor, None) is None:
                return
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(descriptor)

    def loosen(self, descriptor: int) -> None:
        """No more an event for each write: a single one, and from then on only when its source asks for it."""
        with contextlib.suppress(OSError, ValueError):  # it is gone
            self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def again(self, descriptor: int) -> None:
        """Ask a source again, as if its descriptor had become ready."""
        with self._lock:
            self._again.append(descriptor)
        self._wake()

    def call_at(self, key: object, moment: float, callback: Callable[[], None]) -> None:
        """Call back at a moment of the monotonic clock, unless cancelled under the same key."""
        with self._lock:
            self._timers[key] = (moment, callback)
        self._wake()

    def cancel(self, key: object) -> None:
        """Forget a timer."""
        with self._lock:
            self._timers.pop(key, None)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b".")

    def _run(self) -> None:
        while True:
            patience = self._patience()
            with self._lock:
                waiting, self._again = self._again, deque()
            for descriptor, _ in self._epoll.poll(patience):
                if descriptor == self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                else:
                    self._serve(descriptor)
            # After everything that was ready by itself: that is what keeps the order.
            for descriptor in waiting:
                self._serve(descriptor)
            self._end_naps()
            self._ring()

    def _end_naps(self) -> None:
        """Not in `_run`, which would hold the last source, and all that its program printed, until the next nap."""
        now = time.monotonic()
        while self._naps and self._naps[0][0] <= now:
            _, descriptor, source = self._naps.popleft()
            if self._sources.get(descriptor) is source:
                self._serve(descriptor)

    def _serve(self, descriptor: int) -> None:
        with self._lock:
            source = self._sources.get(descriptor)
        if source is None:
            return
        try:
            turn = source.ready(descriptor)
        except Exception:
            # One program's trouble must never silence all the others: this thread reads for everybody.
            log.exception("a program's output could not be read any more")
            self.remove(descriptor)
            return
        if turn == "again":
            with self._lock:
                self._again.append(descriptor)
        elif turn == "later":
            self._naps.append((time.monotonic() + NAP_SECONDS, descriptor, source))
        elif turn == "rearm":
            self.loosen(descriptor)

    def _patience(self) -> float:
        with self._lock:
            if self._again:
                return 0.0
            moments = [moment for moment, _ in self._timers.values()]
        if self._naps:
            moments.append(self._naps[0][0])
        # An hour at most: epoll takes no more than 24 days, and a timer may be for later.
        return max(0.0, min(3600.0, min(moments) - time.monotonic())) if moments else -1.0

    def _ring(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [key for key, (moment, _) in self._timers.items() if moment <= now]
            callbacks = [self._timers.pop(key)[1] for key in due]
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a timer failed")


_pump = PerProcess(Pump)


def get_pump() -> Pump:
    """The pump of this process."""
    return _pump.get()
