"""One sandbox for each client token, also for concurrent callers in any threads and event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from corral.protocol import SandboxPrimitives

S = TypeVar("S", bound=SandboxPrimitives)


class TokenBook(Generic[S]):
    """The sandboxes of a backend, by client token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promises: dict[str, concurrent.futures.Future[S]] = {}

    async def make_once(self, token: str | None, make: Callable[[], Awaitable[S]]) -> S:
        """The sandbox of a token, if it lives; else a new one, which concurrent callers share. Raises: as `make`."""
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
                # The first call was cancelled, or its sandbox is closed: the next caller is the first.
                if self._promises.get(token) is first:
                    del self._promises[token]

    def _forget_closed(self, wanted: str) -> None:
        """Drop closed handles of other tokens, which would stay in memory otherwise."""
        done = [(token, promise) for token, promise in self._promises.items() if token != wanted and promise.done()]
        for token, promise in done:
            if promise.cancelled() or promise.exception() is not None or promise.result().closed:
                del self._promises[token]

    async def _keep(self, token: str, promise: concurrent.futures.Future[S], make: Callable[[], Awaitable[S]]) -> S:
        try:
            sandbox = await make()
        except BaseException as error:
            # First removed, then raised: a retry must not find it.
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
    """The result of another caller's create; None if that was cancelled, which does not cancel this waiter."""
    await asyncio.wait([asyncio.wrap_future(promise)])
    return None if promise.cancelled() else promise.result()
