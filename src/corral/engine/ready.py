"""Descriptors that a loop watches, and what it does when one of them has something to say."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable

Callback = Callable[[], None]


class Ready:
    """An epoll with a callback for each descriptor. For one thread.

    Several descriptors are ready at once, and a callback may close one whose turn is still to come; the next one may
    then open another under the same number. That one is not ready, and to read from it would block the loop.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._held: set[int] = set()

    def watch(self, descriptor: int, callback: Callback, *, edge: bool = False) -> None:
        """Call back when a descriptor can be read; with `edge`, once for everything that comes."""
        self._callbacks[descriptor] = callback
        self._epoll.register(descriptor, select.EPOLLIN | (select.EPOLLET if edge else 0))

    def unwatch(self, descriptor: int) -> None:
        """The opposite, and nothing if it is not watched; to be called before closing."""
        if self._callbacks.pop(descriptor, None) is None:
            return
        if descriptor in self._held:
            self._held.remove(descriptor)
            return
        with contextlib.suppress(OSError):
            self._epoll.unregister(descriptor)

    def hold(self, descriptor: int) -> None:
        """Let what comes wait in the descriptor until `release`."""
        self._epoll.unregister(descriptor)
        self._held.add(descriptor)

    def release(self, descriptor: int) -> None:
        """Go on with one that was held."""
        self._held.remove(descriptor)
        self._epoll.register(descriptor, select.EPOLLIN)

    def loosen(self, descriptor: int) -> None:
        """Call back once, and then only when this is asked for again."""
        self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def serve(self, patience: float) -> bool:
        """Wait, and call back for everything that is ready; False if nothing came."""
        ready = [(descriptor, self._callbacks.get(descriptor)) for descriptor, _ in self._epoll.poll(patience)]
        for descriptor, callback in ready:
            still_watched = self._callbacks.get(descriptor) is callback and descriptor not in self._held
            if callback is not None and still_watched:
                callback()
        return bool(ready)
