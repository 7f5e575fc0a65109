"""The forge: a contest of candidates on one objective, each in a sandbox of its own.

    from corral.forge import race

    result = race(["fast.py", "thorough.py"], "Summarise the data")
    print(result.winners, result.winner_artifact)

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.forge.candidate import Candidate
    from corral.forge.contest import Contest, race
    from corral.forge.events import ForgeEvent
    from corral.forge.judge.judge import Judge, default_judge
    from corral.forge.judge.model import Entry, GateVerdict, Points, Standing
    from corral.forge.outcome import ArtifactFile, Attempt
    from corral.forge.result import ContestResult
    from corral.forge.runfolder import Run, read_run
    from corral.forge.settings import Settings, Take, Timeouts
    from corral.forge.sources import Seat, SyncSeat

_HOME_OF = {
    "ArtifactFile": "outcome",
    "Attempt": "outcome",
    "Candidate": "candidate",
    "Contest": "contest",
    "ContestResult": "result",
    "Entry": "judge.model",
    "ForgeEvent": "events",
    "GateVerdict": "judge.model",
    "Judge": "judge.judge",
    "Points": "judge.model",
    "Run": "runfolder",
    "Seat": "sources",
    "Settings": "settings",
    "Standing": "judge.model",
    "SyncSeat": "sources",
    "Take": "settings",
    "Timeouts": "settings",
    "default_judge": "judge.judge",
    "race": "contest",
    "read_run": "runfolder",
}

__all__ = [
    "ArtifactFile",
    "Attempt",
    "Candidate",
    "Contest",
    "ContestResult",
    "Entry",
    "ForgeEvent",
    "GateVerdict",
    "Judge",
    "Points",
    "Run",
    "Seat",
    "Settings",
    "Standing",
    "SyncSeat",
    "Take",
    "Timeouts",
    "default_judge",
    "race",
    "read_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'corral.forge' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"corral.forge.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
