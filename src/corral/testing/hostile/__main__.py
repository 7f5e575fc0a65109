"""`python -P -m corral.testing.hostile [NAME…]`: attack new sandboxes; prints one JSON line for each probe.

With `-` the names come from standard input, one per line, and each is answered before the next is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator

from corral import AsyncSandbox, get_backend
from corral.testing.hostile import ALL, RESOURCES, Canaries, Probe, Verdict, besiege, plant, soft_limits

_BY_NAME = {probe.name: probe for probe in ALL}


def main() -> int:
    """Give 0 if every probe held, 1 otherwise, 2 if a name is unknown."""
    names = sys.argv[1:]
    if names != ["-"] and (unknown := sorted(set(names) - _BY_NAME.keys())):
        sys.stderr.write(f"no such probe: {', '.join(unknown)}\n")
        return 2
    probes = _read_probes() if names == ["-"] else [probe for probe in ALL if not names or probe.name in names]
    with plant(data_folder=os.environ.get("CORRAL_DATA_DIR")) as canaries:
        return 0 if asyncio.run(_attack(probes, canaries)) else 1


def _read_probes() -> Iterator[Probe]:
    """Give the probe that each line names. The probes' own programs must not read those lines."""
    names = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with names:
        for name in names:
            yield _BY_NAME[name.strip()]


async def _attack(probes: Iterable[Probe], canaries: Canaries) -> bool:
    soft = soft_limits(await get_backend().capabilities())
    stopped = []

    def make() -> AsyncSandbox:
        return AsyncSandbox(resources=RESOURCES)

    async with make() as sandbox, besiege(sandbox, canaries=canaries, make=make, soft=soft) as siege:
        remaining = iter(probes)
        # In a thread: reading the next name may block, and the sandboxes need the event loop meanwhile.
        while (probe := await asyncio.to_thread(next, remaining, None)) is not None:
            outcome = await siege.try_probe(probe)
            sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
            sys.stdout.flush()
            stopped.append(outcome.finding.verdict in (Verdict.HELD, Verdict.UNPROMISED))
    return bool(stopped) and all(stopped)


if __name__ == "__main__":
    sys.exit(main())
