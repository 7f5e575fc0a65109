"""`python -P -m corral.testing.hostile [NAME…]`: attack new sandboxes; prints one JSON line for each probe.

With `-` the names come from standard input, one per line, and each is answered before the next is read.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable

from corral import AsyncSandbox, get_backend
from corral.backends.embedded.settings import default_data_folder
from corral.testing.hostile import ALL, RESOURCES, WINDOW, Canaries, Outcome, Probe, besiege, plant, soft_limits
from corral.testing.hostile.lines import answer, read_probes
from corral.testing.hostile.onground import besiege_on_ground

_BY_NAME = {probe.name: probe for probe in (*ALL, *WINDOW)}


def main() -> int:
    """Give 0 if every probe held, 1 otherwise, 2 if a name is unknown."""
    names = sys.argv[1:]
    if names != ["-"] and (unknown := sorted(set(names) - _BY_NAME.keys())):
        sys.stderr.write(f"no such probe: {', '.join(unknown)}\n")
        return 2
    probes = read_probes(_BY_NAME) if names == ["-"] else [_BY_NAME[name] for name in names or _BY_NAME]
    with plant(data_folder=os.environ.get("CORRAL_DATA_DIR")) as canaries:
        return 0 if asyncio.run(_attack(probes, canaries)) else 1


async def _attack(probes: Iterable[Probe], canaries: Canaries) -> bool:
    soft = soft_limits(await get_backend().capabilities())

    def make() -> AsyncSandbox:
        return AsyncSandbox(resources=RESOURCES)

    async with (
        make() as sandbox,
        besiege(sandbox, canaries=canaries, make=make, soft=soft) as siege,
        besiege_on_ground(default_data_folder()) as on_ground,
    ):

        async def try_probe(probe: Probe) -> Outcome:
            return await (on_ground if probe.area == "window" else siege).try_probe(probe)

        return await answer(probes, try_probe)


if __name__ == "__main__":
    sys.exit(main())
