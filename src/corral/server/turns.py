"""Who comes next: the keys take turns, so that the many requests of one don't stand before a single one of another."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

_AT_ONCE = 8
"""So many calls begin before the event loop looks for others that have come meanwhile."""


class Turns:
    """What is to be done and has not begun, by key. Some of it is done at once, then the event loop has its turn."""

    def __init__(self, *, at_once: int = _AT_ONCE, seconds: float = float("inf")) -> None:
        """So many in one round of the event loop; fewer, if they take longer than so many seconds together."""
        self._at_once = at_once
        self._seconds = seconds
        self._begun = 0
        self._spent = 0.0
        self._round: asyncio.Handle | None = None
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()

    async def take(self, key_id: str) -> None:
        """Wait for a turn. At once, unless many have just begun."""
        if not self._waiting and self._has_room:
            self._begun += 1
            self._begin_round()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(key_id, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def call(self, key_id: str, callback: Callable[[], None], *, at_once: bool = False) -> None:
        """Call back in turn; `at_once` if it can be, which is for who is not in the middle of something."""
        self._begin_round()
        if at_once and not self._waiting and self._has_room:
            self._do(callback)
        else:
            self._waiting.setdefault(key_id, deque()).append(callback)

    def _do(self, callback: Callable[[], None]) -> None:
        begin = time.perf_counter()
        self._begun += 1
        callback()
        self._spent += time.perf_counter() - begin

    def _begin_round(self) -> None:
        if self._round is None:
            self._round = asyncio.get_running_loop().call_soon(self._next)

    @property
    def _has_room(self) -> bool:
        return self._begun < self._at_once and self._spent < self._seconds

    def _next(self) -> None:
        self._begun, self._spent, self._round = 0, 0.0, None
        while self._waiting and self._has_room:
            key_id, queue = self._waiting.popitem(last=False)
            callback = queue.popleft()
            if queue:
                self._waiting[key_id] = queue  # behind the others
            self._do(callback)
        if self._waiting or self._begun:
            self._begin_round()
