"""Replaying a run: the same events, at the original pace or another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from corral.forge.events import ForgeEvent
from corral.forge.numbers import check_number

if TYPE_CHECKING:
    from corral.forge.runfolder import Run

_YIELD_EVERY = 200
"""After this many events without a pause, other tasks on the event loop may run."""


async def replay(
    run: Run, *, speed: float = 1.0, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[ForgeEvent]:  # fmt: skip
    """Yield the run's events at their times.

    Times are counted from the start, so a slow listener does not stretch the replay: late events come at once.

    Args:
        run: A run read from its folder, also an interrupted one.
        speed: 2 is twice as fast, 0.5 half as fast, 0 does not wait.
        sleep: How to wait.
        clock: What time it is, in seconds.

    Raises:
        SpecError: an invalid speed.
    """
    hint = "give 1 for the pace it had, 10 for faster, 0 for no pauses"
    check_number(speed, what="speed", kind="speed", hint=hint, least=0)
    begun = clock()
    for number, event in enumerate(run.events()):
        wait = (event.at / speed - (clock() - begun)) if speed else 0.0
        if wait > 0:
            await sleep(wait)
        elif number % _YIELD_EVERY == 0:
            await sleep(0)
        yield event
