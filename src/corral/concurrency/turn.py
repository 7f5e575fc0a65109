"""Turns: one at a time, first come first served, across event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future


class Turn:
    """A lock that can be released from any thread. `asyncio.Lock` belongs to one event loop; this one does not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._held = False

    async def take(self) -> None:
        """Wait for the lock."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine: Future[None] = Future()
            self._waiting.append(mine)
        try:
            await asyncio.wrap_future(mine)
        except BaseException:
            with self._lock:
                waiting = mine in self._waiting
                if waiting:
                    self._waiting.remove(mine)
            if not waiting and not mine.cancelled():
                self.release()  # it was handed over in the same moment
            raise

    def release(self) -> None:
        """Hand it to the next waiter."""
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._held = False
