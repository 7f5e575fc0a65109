"""A run once more, as it happened: the same events, at the same pace or at another."""

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
"""At once is still not alone: after so many events others on the loop have their turn."""


async def replay(
    run: Run, *, speed: float = 1.0, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[ForgeEvent]:  # fmt: skip
    """Give the run's events when their time has come.

    Pauses are counted from the beginning, so a listener that takes its time does not stretch the whole: what is late
    comes at once.

    Args:
        run: From its folder; also one that broke off.
        speed: 2 is twice as fast, 0.5 half as fast, 0 gives everything at once.
        sleep: How to wait.
        clock: What time it is, in seconds.

    Raises:
        SpecError: not a speed.
    """
    hint = "give 1 for the pace it had, 10 for faster, 0 for at once"
    check_number(speed, what="speed", kind="speed", hint=hint, least=0)
    begun = clock()
    for number, event in enumerate(run.events()):
        wait = (event.at / speed - (clock() - begun)) if speed else 0.0
        if wait > 0:
            await sleep(wait)
        elif number % _YIELD_EVERY == 0:
            await sleep(0)
        yield event
