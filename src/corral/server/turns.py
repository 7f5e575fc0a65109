"""Who begins next: the keys take turns, so that many requests of one don't stand before a single one of another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

_AT_ONCE = 8
"""So many calls begin before the event loop looks for others that have come meanwhile."""


class Turns:
    """The calls that have come and not begun, by key."""

    def __init__(self, *, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._begun = 0
        self._round: asyncio.Handle | None = None
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, key_id: str) -> None:
        """Wait for a turn. At once, unless many have just begun."""
        if self._round is None:
            self._round = asyncio.get_running_loop().call_soon(self._next)
        if not self._waiting and self._begun < self._at_once:
            self._begun += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key_id, deque()).append(turn)
        await turn

    def _next(self) -> None:
        self._begun, self._round = 0, None
        while self._waiting and self._begun < self._at_once:
            key_id, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[key_id] = queue  # behind the others
            if not turn.done():
                turn.set_result(None)
                self._begun += 1
        if self._waiting or self._begun:
            self._round = asyncio.get_running_loop().call_soon(self._next)
