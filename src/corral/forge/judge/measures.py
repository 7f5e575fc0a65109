"""Scores from what was measured: success, speed, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corral.forge.judge.model import Bench, Entry, Points, Score
from corral.forge.numbers import check_number
from corral.forge.statistics import find_median
from corral.spec import parse_size


def measure(entry: Entry, what: Literal["seconds", "cpu_seconds", "peak_memory_bytes"]) -> list[float]:
    """What was measured in each round that succeeded; if no round did, in all. A fast crash is not speed."""
    attempts = [attempt for attempt in entry.attempts if attempt.ok] or list(entry.attempts)
    return [float(value) for attempt in attempts if (value := getattr(attempt, what)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Success(Score):
    """100 × the part of its rounds that ended with exit code 0 and an artifact."""

    weight: float = 1.0
    name: str = "success"

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        found: dict[str, Points] = {}
        for entry in entries:
            good = sum(attempt.ok for attempt in entry.attempts)
            details = {"succeeded": good, "rounds": len(entry.attempts)}
            found[entry.candidate] = Points(100.0 * good / len(entry.attempts), details)
        return found

    def describe(self) -> dict[str, Any]:
        return {"kind": "success"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed(Score):
    """Without a limit 100 × fastest ÷ own, with one 100 × (1 − own ÷ limit), and never below 0.

    `own` is the median over the rounds that succeeded, of the run alone, without creating the sandbox and copying
    files.
    """

    limit: float | None = None
    """Seconds. With a limit, points do not depend on the other candidates."""
    weight: float = 1.0
    name: str = "speed"

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_number(self.limit, what="limit", kind="limit", hint="give seconds above 0, or None")

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        return _rate_less(entries, "seconds", self.limit)

    def describe(self) -> dict[str, Any]:
        return {"kind": "speed", "limit": self.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Score):
    """As `Speed`, with the peak memory that the kernel measured."""

    limit: int | str | None = None
    """Bytes, or a text such as "512MiB"."""
    weight: float = 1.0
    name: str = "memory"

    def __post_init__(self) -> None:
        if self.limit is not None:
            object.__setattr__(self, "limit", parse_size(self.limit, what="limit"))
            hint = 'give bytes above 0, a text such as "512MiB", or None'
            check_number(self.limit, what="limit", kind="limit", hint=hint)

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        return _rate_less(entries, "peak_memory_bytes", None if self.limit is None else float(self.limit))

    def describe(self) -> dict[str, Any]:
        return {"kind": "memory", "limit": self.limit}


def _rate_less(
    entries: Sequence[Entry], what: Literal["seconds", "peak_memory_bytes"], limit: float | None
) -> dict[str, Points]:
    """Less is better. A candidate that never succeeded, or that could not be measured, has no points."""
    middle = {
        entry.candidate: find_median(values)
        for entry in entries
        if any(attempt.ok for attempt in entry.attempts) and (values := measure(entry, what))
    }
    best = min(middle.values(), default=0.0)
    found: dict[str, Points] = {}
    for entry in entries:
        own = middle.get(entry.candidate)
        if own is None:
            succeeded = any(attempt.ok for attempt in entry.attempts)
            why = "this could not be measured here" if succeeded else "no round succeeded"
            found[entry.candidate] = Points(0.0, {"note": why})
        elif limit is not None:
            found[entry.candidate] = Points(100.0 * max(0.0, 1 - own / limit), {what: own})
        else:
            found[entry.candidate] = Points(100.0 * best / own if own > 0 else 100.0, {what: own, "best": best})
    return found
