"""`python -m corral.testing.hostile [NAME…]`: attack sandboxes of one's own; one JSON line for each probe."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from corral import AsyncSandbox
from corral.testing.hostile import ALL, RESOURCES, Outcome, plant, prove


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
        report = asyncio.run(
            prove(lambda: AsyncSandbox(resources=RESOURCES), canaries=canaries, probes=probes, on_progress=show)
        )
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
