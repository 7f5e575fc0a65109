"""Probes for the window of a sandbox: what its network policy permits, and how the gate enforces that.

They run on the test ground (`corral.testing.ground`), gates and all, so that nothing is sent out even if a defence
fails.
"""

from __future__ import annotations

from corral.testing.hostile.probe import Probe
from corral.testing.hostile.window import gate, limits, names, requests, secrets

_AREAS = (names, requests, gate, limits, secrets)
WINDOW: tuple[Probe, ...] = tuple(value for area in _AREAS for value in vars(area).values() if isinstance(value, Probe))
"""All probes of these modules."""
