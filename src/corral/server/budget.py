"""A budget of memory for each key: what its requests, answers and sockets may hold in this process at the same time.

What a call is about to hold, it reserves: a body before it is read, a stream's buffers before it begins. That waits a
while for other calls of the same key, and then it is a 429. What grows while it runs (a program's output, a frame that
comes in pieces) is taken as it grows; when there is no more, output is cut and a socket is closed, and nobody waits.
A call never waits while it holds something that another one waits for: it reserves once, at its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.server.auth import too_many

PATIENCE_SECONDS = 10.0
OUTPUT_FACTOR = 2
"""Output is held as it came, and then once more as what is told of it."""


@dataclass(slots=True)
class _Key:
    limit_bytes: int
    taken: int = 0
    accounts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class Budget:
    """What all calls of each key hold.

    An account is opened and closed in the event loop; only `take` is called from any thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._keys: dict[str, _Key] = {}

    @contextlib.contextmanager
    def account(self, key_id: str) -> Iterator[Account]:
        """For one call; at its end all that it took is given back."""
        key = self._keys.setdefault(key_id, _Key(self.limit_bytes))
        key.accounts += 1
        account = Account(key)
        try:
            yield account
        finally:
            account.close()
            key.accounts -= 1
            if not key.accounts:
                del self._keys[key_id]

    def held(self, key_id: str) -> int:
        """What a key holds now."""
        key = self._keys.get(key_id)
        return key.taken if key is not None else 0


class Account:
    """What one call holds."""

    def __init__(self, key: _Key) -> None:
        self._key = key
        self._taken = 0
        self._closed = False

    def take(self, count: int) -> bool:
        """Hold so much more; False if the key has no more. From any thread, and never waits."""
        with self._key.lock:
            if self._closed or self._key.taken + count > self._key.limit_bytes:
                return False
            self._add(count)
            return True

    def take_output(self, count: int) -> bool:
        """The same for what a program prints."""
        return self.take(count * OUTPUT_FACTOR)

    def give_back(self, count: int) -> None:
        """Hold so much less. From the event loop."""
        with self._key.lock:
            if not self._closed:
                self._add(-count)
        self._wake()

    async def reserve(self, count: int) -> None:
        """Hold so much more, and wait for it if need be: first come, first served, among the calls of a key.

        Raises:
            Fault: 429, the key holds too much already, and has not let go of it for a while.
        """
        if count == 0:
            return
        count = min(count, self._key.limit_bytes)
        if not self._key.waiting and self.take(count):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count, turn)
        self._key.waiting.append(entry)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await turn
        except TimeoutError:
            raise too_many("this key's requests hold too much memory at the same time", 1.0) from None
        finally:
            if not turn.done() or turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._key.waiting.remove(entry)
                self._wake()
            elif self._closed is False:
                with self._key.lock:
                    self._taken += count  # `_wake` has counted it for the key

    def close(self) -> None:
        """Give all back. From the event loop."""
        with self._key.lock:
            if self._closed:
                return
            self._add(-self._taken)
            self._closed = True
        self._wake()

    def _add(self, count: int) -> None:
        self._taken += count
        self._key.taken += count

    def _wake(self) -> None:
        """Those who wait and now have room, in their order."""
        key = self._key
        with self._key.lock:
            while key.waiting:
                count, turn = key.waiting[0]
                if turn.done():
                    key.waiting.popleft()
                    continue
                if key.taken + count > self._key.limit_bytes:
                    return
                key.waiting.popleft()
                key.taken += count
                turn.set_result(None)
