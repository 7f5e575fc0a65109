"""`python -m corral.testing.hostile [NAME…]`: attack sandboxes of one's own; one JSON line for each probe."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable

from corral import AsyncSandbox, get_backend
from corral.testing.hostile import ALL, RESOURCES, Canaries, Outcome, Probe, Report, plant, prove, soft_limits


def main() -> int:
    """Give 0 when everything held, 1 otherwise, 2 for a name that no probe has."""
    wished = sys.argv[1:]
    probes = [probe for probe in ALL if not wished or probe.name in wished]
    if unknown := set(wished) - {probe.name for probe in probes}:
        sys.stderr.write(f"no such probe: {', '.join(sorted(unknown))}\n")
        return 2

    def show(outcome: Outcome) -> None:
        sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
        sys.stdout.flush()

    with plant(data_folder=os.environ.get("CORRAL_DATA_DIR")) as canaries:
        report = asyncio.run(_prove(probes, canaries, show))
    return 0 if report.ok else 1


async def _prove(probes: list[Probe], canaries: Canaries, show: Callable[[Outcome], None]) -> Report:
    soft = soft_limits(await get_backend().capabilities())
    return await prove(
        lambda: AsyncSandbox(resources=RESOURCES), canaries=canaries, probes=probes, on_progress=show, soft=soft
    )


if __name__ == "__main__":
    sys.exit(main())
