"""Probes that are asked for a line at a time, and answered by a line of JSON each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from corral.testing.hostile.probe import Probe, Verdict
from corral.testing.hostile.run import Outcome


def read_probes(by_name: Mapping[str, Probe]) -> Iterator[Probe]:
    """Give the probe that each line of standard input names. The probes' own programs must not read those lines."""
    names = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with names:
        for name in names:
            yield by_name[name.strip()]


async def answer(probes: Iterable[Probe], try_probe: Callable[[Probe], Awaitable[Outcome]]) -> bool:
    """Try each and print its outcome; True if there were some, and all were stopped."""
    stopped = []
    remaining = iter(probes)
    # In a thread: reading the next name may block, and the sandboxes need the event loop meanwhile.
    while (probe := await asyncio.to_thread(next, remaining, None)) is not None:
        outcome = await try_probe(probe)
        sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
        sys.stdout.flush()
        stopped.append(outcome.finding.verdict in (Verdict.HELD, Verdict.UNPROMISED))
    return bool(stopped) and all(stopped)
