"""How much a sandbox may use of its network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from corral.network.settings import GateLimits

BURST_SECONDS: Final = 10.0
"""So many seconds' worth of attempts may come at once."""


class Bucket:
    """A token bucket. Tokens may be owed: then `wait` says how long until there are some again."""

    def __init__(self, per_second: float, *, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._clock = clock
        self._moment = clock()

    def take(self, tokens: float) -> bool:
        """Take tokens if there are so many; else none."""
        self._fill()
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

    def owe(self, tokens: float) -> float:
        """Take tokens in any case; returns after how many seconds they are paid."""
        self._fill()
        self._tokens -= tokens
        return max(0.0, -self._tokens / self._per_second)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._moment) * self._per_second)
        self._moment = now


class Meter:
    """What a sandbox has used, against its limits."""

    def __init__(self, limits: GateLimits, *, transferred: int = 0, room: int | None = None) -> None:
        self.attempts = self.connections = 0
        self.bytes_in = self.bytes_out = 0
        self._before = transferred
        self.change(limits, room=room)

    def change(self, limits: GateLimits, *, room: int | None = None) -> None:
        """From now on, these limits. `room`: for how many connections this process has descriptors."""
        self.most_connections = limits.connections if room is None else min(limits.connections, room)
        rate = limits.attempts_per_second
        self._attempts = Bucket(rate, burst=max(1.0, rate * BURST_SECONDS))
        self._total = limits.total_bytes
        per_second = limits.bytes_per_second
        self._speed = None if per_second is None else Bucket(per_second, burst=per_second)

    @property
    def transferred(self) -> int:
        """Bytes in both directions, with those of earlier gates of the sandbox."""
        return self._before + self.bytes_in + self.bytes_out

    @property
    def is_spent(self) -> bool:
        """True if the sandbox has used all the bytes that it may."""
        return self._total is not None and self.transferred >= self._total

    def attempt(self, weight: float = 1.0) -> bool:
        """Count an attempt; False if there were too many."""
        self.attempts += 1
        return self._attempts.take(weight)

    def count_in(self, size: int) -> float:
        """Count bytes that came from outside; returns for how many seconds to pause."""
        self.bytes_in += size
        return 0.0 if self._speed is None else self._speed.owe(size)

    def count_out(self, size: int) -> float:
        """Count bytes that went outside; returns for how many seconds to pause."""
        self.bytes_out += size
        return 0.0 if self._speed is None else self._speed.owe(size)
