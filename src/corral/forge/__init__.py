"""The forge: a contest of candidates on one objective, each in a sandbox of its own.

    from corral.forge import race

    result = race(["fast.py", "thorough.py"], "Summarise the data")
    print(result.winners, result.winner_artifact)

The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.client.exports import load_lazily

if TYPE_CHECKING:
    from corral.forge.candidate import Candidate as Candidate
    from corral.forge.contest import Contest as Contest
    from corral.forge.contest import race as race
    from corral.forge.events import ForgeEvent as ForgeEvent
    from corral.forge.judge.judge import Judge as Judge
    from corral.forge.judge.judge import default_judge as default_judge
    from corral.forge.judge.model import Entry as Entry
    from corral.forge.judge.model import GateVerdict as GateVerdict
    from corral.forge.judge.model import Points as Points
    from corral.forge.judge.model import Standing as Standing
    from corral.forge.outcome import ArtifactFile as ArtifactFile
    from corral.forge.outcome import Attempt as Attempt
    from corral.forge.result import ContestResult as ContestResult
    from corral.forge.runfolder import Run as Run
    from corral.forge.runfolder import read_run as read_run
    from corral.forge.settings import Settings as Settings
    from corral.forge.settings import Take as Take
    from corral.forge.settings import Timeouts as Timeouts
    from corral.forge.sources import Seat as Seat
    from corral.forge.sources import SyncSeat as SyncSeat
else:
    __getattr__, __dir__, __all__ = load_lazily(
        __name__,
        {
            ".candidate": "Candidate",
            ".contest": "Contest race",
            ".events": "ForgeEvent",
            ".judge.judge": "Judge default_judge",
            ".judge.model": "Entry GateVerdict Points Standing",
            ".outcome": "ArtifactFile Attempt",
            ".result": "ContestResult",
            ".runfolder": "Run read_run",
            ".settings": "Settings Take Timeouts",
            ".sources": "Seat SyncSeat",
        },
    )
