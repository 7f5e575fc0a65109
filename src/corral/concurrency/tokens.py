"""One sandbox for each client token: however many ask for it at once, from whatever threads and event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Lasting(Protocol):
    """What can be given out again, as long as it lives."""

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""

    async def is_alive(self) -> bool:
        """Whether it is there and answers."""


S = TypeVar("S", bound=Lasting)


class TokenBook(Generic[S]):
    """Which sandbox a backend has made for which token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promises: dict[str, concurrent.futures.Future[S]] = {}

    async def make_once(self, token: str | None, make: Callable[[], Awaitable[S]]) -> S:
        """The one of a token, if it lives; else a new one, which all who ask meanwhile get. Raises: as `make`."""
        if token is None:
            return await make()
        while True:
            ours: concurrent.futures.Future[S] = concurrent.futures.Future()
            with self._lock:
                self._forget_closed(token)
                first = self._promises.setdefault(token, ours)
            if first is ours:
                return await self._keep(token, ours, make)
            known = await _wait_for(first)
            if known is not None and not known.closed and await known.is_alive():
                return known
            with self._lock:
                # The first one was cancelled, or its sandbox is closed: whoever comes now is the first.
                if self._promises.get(token) is first:
                    del self._promises[token]

    def _forget_closed(self, wanted: str) -> None:
        """Of others than the one that is asked for: a closed handle would be held for as long as the book is."""
        done = [(token, promise) for token, promise in self._promises.items() if token != wanted and promise.done()]
        for token, promise in done:
            if promise.cancelled() or promise.exception() is not None or promise.result().closed:
                del self._promises[token]

    async def _keep(self, token: str, promise: concurrent.futures.Future[S], make: Callable[[], Awaitable[S]]) -> S:
        try:
            sandbox = await make()
        except BaseException as error:
            # First out of the book, then told: who tries again at once must not find it.
            with self._lock:
                self._promises.pop(token, None)
            if isinstance(error, Exception):
                promise.set_exception(error)
            else:
                promise.cancel()
            raise
        promise.set_result(sandbox)
        return sandbox


async def _wait_for(promise: concurrent.futures.Future[S]) -> S | None:
    """What somebody else makes; None if that was cancelled, which is no cancellation of who waits here."""
    await asyncio.wait([asyncio.wrap_future(promise)])
    return None if promise.cancelled() else promise.result()
