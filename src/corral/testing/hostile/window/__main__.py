"""On the test ground: attacks windows with the probes that standard input names, one per line.

Prints one JSON line for each.
"""

from __future__ import annotations

import asyncio
import os
import sys

from corral import get_backend
from corral.testing.hostile import besiege, plant, soft_limits
from corral.testing.hostile.canary import Canaries
from corral.testing.hostile.lines import answer, read_probes
from corral.testing.hostile.window import WINDOW
from corral.testing.hostile.window.gate import open_neighbour
from corral.testing.hostile.window.stage import set_stage
from corral.testing.hostile.window.tools import open_usual


async def _attack(canaries: Canaries) -> bool:
    soft = soft_limits(await get_backend().capabilities())
    async with (
        open_usual() as sandbox,
        besiege(sandbox, canaries=canaries, make=open_usual, make_neighbour=open_neighbour, soft=soft) as siege,
    ):
        return await answer(read_probes({probe.name: probe for probe in WINDOW}), siege.try_probe)


if __name__ == "__main__":
    with plant(data_folder=os.environ.get("CORRAL_DATA_DIR")) as planted, set_stage(planted):
        done = asyncio.run(_attack(planted))
    sys.exit(0 if done else 1)
