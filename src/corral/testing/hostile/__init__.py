"""The hostile suite: programs that attack the sandbox they run in.

`corral doctor --prove` runs it against new sandboxes; the project's tests run it as root and as an ordinary user.

    with plant() as canaries:
        report = await prove(lambda: AsyncSandbox(resources=RESOURCES), canaries=canaries)
"""

from __future__ import annotations

from corral.results import Capabilities
from corral.testing.hostile import (
    counters,
    files,
    kernel,
    lateral,
    lifetime,
    memory,
    network,
    proc,
    resources,
    terminal,
    traps,
)
from corral.testing.hostile.canary import Canaries, plant
from corral.testing.hostile.probe import Finding, HostView, Probe, Verdict
from corral.testing.hostile.run import RESOURCES, Outcome, Report, besiege, prove
from corral.testing.hostile.window import WINDOW

__all__ = [
    "ALL", "RESOURCES", "WINDOW", "Canaries", "Finding", "HostView", "Outcome", "Probe", "Report", "Verdict",
    "besiege", "plant",
    "prove", "soft_limits",
]  # fmt: skip

_AREAS = (files, traps, kernel, proc, memory, resources, counters, network, lifetime, terminal, lateral)
ALL: tuple[Probe, ...] = tuple(value for area in _AREAS for value in vars(area).values() if isinstance(value, Probe))
"""All probes of these modules. Those of windows are apart (`WINDOW`): they need the test ground (`onground.py`)."""


def soft_limits(capabilities: Capabilities) -> frozenset[str]:
    """Give the limits that a backend reports as soft or shared, for `prove`."""
    return capabilities.shares | {name for name in ("memory", "disk") if getattr(capabilities, name) != "hard"}
