"""What the live page shows: the last events with their numbers, and the state that they led to.

Readers have no queues of their own. Each has a position in one ring of events; a reader that falls behind the ring gets
the whole state and goes on from there. So a slow reader costs nothing, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Any

from corral.forge.events import ForgeEvent
from corral.forge.lanes import Lanes
from corral.forge.numbers import change_floats

RING_EVENTS = 4096
RING_CHARACTERS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One event as it goes over the wire."""

    number: int
    kind: str
    text: str


class Hub(Lanes):
    """Takes events, and lets any number of readers follow. For one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = secrets.token_hex(4)
        """Numbers of another hub, before a restart, mean nothing here."""
        self._ring: deque[Message] = deque()
        self._ring_characters = 0
        self.number = 0
        """The number of the last event."""
        self._news = asyncio.Event()

    def add(self, event: ForgeEvent) -> None:
        """Take an event. Unknown kinds are ignored."""
        data = self.take(event)
        if data is None:
            return
        self.number += 1
        if event.kind == "run-started":
            self._begin_anew()
            return
        found = {"at": event.at, "candidate": event.candidate, "round": event.round, "data": data}
        message = Message(self.number, event.kind, _write_json(found))
        self._ring.append(message)
        self._ring_characters += len(message.text)
        while len(self._ring) > RING_EVENTS or (self._ring_characters > RING_CHARACTERS and len(self._ring) > 1):
            self._ring_characters -= len(self._ring.popleft().text)
        self._wake()

    def lose(self) -> None:
        """The process of the run is gone, and the run never said that it ended."""
        if self.state in ("running", "judging"):
            self.state = "broken off"
            for lane in self.lanes.values():
                lane.finish_log()
            self.number += 1
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Every reader gets the whole state next."""
        self._ring.clear()
        self._ring_characters = 0
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def since(self, number: int) -> list[Message] | None:
        """The events after that number; None if they are no longer in the ring."""
        if number > self.number or number < 0:
            return None
        missing = self.number - number
        if missing > len(self._ring):
            return None
        return list(self._ring)[len(self._ring) - missing :] if missing else []

    async def wait(self) -> None:
        """Wait for the next event."""
        await self._news.wait()

    def snapshot(self) -> str:
        """The whole state as JSON, for a page that connects now."""
        return _write_json(self.to_json())


def _write_json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # NaN or infinity, which JSON does not have
        plain = change_floats(value, lambda found: found if math.isfinite(found) else None)
        return json.dumps(plain, separators=(",", ":"))
