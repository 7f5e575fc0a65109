"""Descriptors that a loop watches, with a callback for each; timers."""

from __future__ import annotations

import contextlib
import math
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_IN, _OUT, _EDGE, _ONCE = 1, 4, 1 << 31, 1 << 30
"""epoll's numbers; the first two are poll's as well."""


class Ready:
    """An epoll with a callback for each descriptor. For one thread.

    Of several descriptors that are ready at once, a callback may close one whose turn is still to come, and the next
    may open another with the same number. That one is not ready, and reading from it would block the loop.
    """

    def __init__(self) -> None:
        self._poll: Any = select.epoll() if hasattr(select, "epoll") else _Poll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._events: dict[int, int] = {}
        self._held: set[int] = set()

    def watch(self, descriptor: int, callback: Callable[[], None], *, edge: bool = False) -> None:
        """Call back when a descriptor can be read; with `edge`, once for each arrival."""
        self._add(descriptor, callback, _IN | (_EDGE if edge else 0))

    def watch_writing(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back when a descriptor can be written, unless it is watched already."""
        if descriptor not in self._callbacks:
            self._add(descriptor, callback, _OUT)

    def _add(self, descriptor: int, callback: Callable[[], None], events: int) -> None:
        self._callbacks[descriptor] = callback
        self._events[descriptor] = events
        self._poll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching, if it is watched. To be called before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is None:
            return
        del self._events[descriptor]
        if descriptor in self._held:
            self._held.remove(descriptor)
            return
        with contextlib.suppress(OSError):
            self._poll.unregister(descriptor)

    def hold(self, descriptor: int) -> None:
        """Do not call back until `release`; data waits in the descriptor."""
        self._poll.unregister(descriptor)
        self._held.add(descriptor)

    def release(self, descriptor: int) -> None:
        """Watch a held descriptor again."""
        self._held.remove(descriptor)
        self._poll.register(descriptor, self._events[descriptor])

    def loosen(self, descriptor: int) -> None:
        """Call back once, and then only after the next call of this."""
        self._events[descriptor] = _IN | _ONCE
        if descriptor not in self._held:
            self._poll.modify(descriptor, _IN | _ONCE)

    def serve(self, patience: float) -> bool:
        """Wait, and call back for all ready descriptors; False if there was none."""
        ready = [(descriptor, self._callbacks.get(descriptor)) for descriptor, _ in self._poll.poll(patience)]
        for descriptor, callback in ready:
            still_watched = self._callbacks.get(descriptor) is callback and descriptor not in self._held
            if callback is not None and still_watched:
                self._call(callback, descriptor)
        return bool(ready)

    def _call(self, callback: Callable[[], None], descriptor: int | None = None) -> None:
        callback()


class Loop(Ready):
    """A `Ready` with timers, and with callbacks that wait for one turn."""

    def __init__(self) -> None:
        super().__init__()
        self._again: list[Callable[[], None]] = []
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def again(self, callback: Callable[[], None]) -> None:
        """Call back after everything that is ready now."""
        self._again.append(callback)

    def call_at(self, key: object, moment: float, callback: Callable[[], None]) -> None:
        """Call back at a moment of the monotonic clock, unless cancelled; one timer for each key."""
        self._timers[key] = (moment, callback)

    def cancel(self, key: object) -> None:
        """Remove a timer, if there is one."""
        self._timers.pop(key, None)

    def turn(self, patience: float) -> None:
        """Wait at most so many seconds, and make all callbacks that are due."""
        now = time.monotonic()
        waiting, self._again = self._again, []
        patience = min([patience, *(moment - now for moment, _ in self._timers.values())])
        self.serve(0.0 if waiting else max(0.0, patience))
        # After all ready descriptors: that keeps the order of output.
        for callback in waiting:
            self._call(callback)
        now = time.monotonic()
        for key in [key for key, (moment, _) in self._timers.items() if moment <= now]:
            _, callback = self._timers.pop(key)
            self._call(callback)


class _Poll:
    """Replaces epoll on other systems: without edges, so that a descriptor is reported until it is empty, and the order
    of two pipes is only approximate."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._once: set[int] = set()

    def register(self, descriptor: int, events: int) -> None:
        self._once.discard(descriptor)
        if events & _ONCE:
            self._once.add(descriptor)
        self._poll.register(descriptor, events & (_IN | _OUT))

    modify = register

    def unregister(self, descriptor: int) -> None:
        self._once.discard(descriptor)
        with contextlib.suppress(KeyError):  # it was reported once
            self._poll.unregister(descriptor)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        ready = self._poll.poll(None if seconds < 0 else math.ceil(seconds * 1000))
        for descriptor, _ in ready:
            if descriptor in self._once:
                self._poll.unregister(descriptor)
        return ready
