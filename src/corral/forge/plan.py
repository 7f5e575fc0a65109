"""Which attempt starts when, and how many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from corral.forge.candidate import Candidate
from corral.forge.settings import Settings

_MEMORY_SHARE = 0.8
"""How much of the free memory candidates may have together."""


class Turn(NamedTuple):
    """One candidate's attempt in one round."""

    candidate: str
    round: int


def plan_turns(candidates: Sequence[Candidate], settings: Settings) -> tuple[Turn, ...]:
    """Round after round; each has all candidates in another order, so no candidate is always first.

    The order follows from the seed and the ids alone, so a run can be repeated.
    """
    # Not a secret: the order must be reproducible.
    source = random.Random(settings.seed)  # noqa: S311
    ids = sorted(candidate.id for candidate in candidates)
    turns: list[Turn] = []
    for number in range(1, settings.repeat + 1):
        source.shuffle(ids)
        turns += [Turn(candidate, number) for candidate in ids]
    return tuple(turns)


def decide_jobs(candidates: Sequence[Candidate], settings: Settings, *, local: bool) -> int:
    """How many may run at once without taking processors or memory from each other.

    A number that was given is taken as it is. On a service only the number of candidates limits.
    """
    turns = len(candidates) * settings.repeat
    if settings.jobs is not None:
        return min(settings.jobs, turns)
    if not local:
        return min(turns, 8)
    resources = [candidate.resources or settings.resources for candidate in candidates]
    by_cpu = int(count_processors() / max(resource.cpus for resource in resources))
    by_memory = int(_free_memory() * _MEMORY_SHARE / max(resource.memory for resource in resources))
    return max(1, min(turns, by_cpu, by_memory))


class Slots:
    """A number of run slots, given in the order of requests."""

    def __init__(self, jobs: int, processors: Sequence[int] = ()) -> None:
        """With `processors`, each slot has its own, as long as there are enough."""
        self._free: asyncio.Queue[int | None] = asyncio.Queue()
        for number in range(jobs):
            self._free.put_nowait(processors[number % len(processors)] if processors else None)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[int | None]:
        """Wait for a slot and hold it for the block. Gives its processor, None without `processors`."""
        slot = await self._free.get()
        try:
            yield slot
        finally:
            self._free.put_nowait(slot)


def count_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def list_processors() -> list[int]:
    """The numbers of the processors that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _free_memory() -> int:
    """The memory that is available without swapping; where that is unknown, plenty."""
    try:
        with open("/proc/meminfo", encoding="ascii") as table:  # noqa: PTH123 - a file of the kernel
            for line in table:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 2**60
