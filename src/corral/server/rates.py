"""Rates: so many in a second on average, and a burst now and then."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 4096


class Rates:
    """A bucket of tokens for each name. Only the names used last are remembered: a forgotten one has a full bucket."""

    def __init__(self, *, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token; 0 if there was one, else after how many seconds there will be."""
        now = self._clock()
        tokens = self._fill(name, now)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_second
        self._buckets[name] = (tokens - 1 if tokens >= 1 else tokens, now)
        self._buckets.move_to_end(name)
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return wait

    def look(self, name: str) -> float:
        """After how many seconds there will be a token; takes none."""
        tokens = self._fill(name, self._clock())
        return 0.0 if tokens >= 1 else (1 - tokens) / self._per_second

    def _fill(self, name: str, now: float) -> float:
        tokens, then = self._buckets.get(name, (self._burst, now))
        return min(self._burst, tokens + (now - then) * self._per_second)
