"""The result of a contest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corral.forge.judge.model import Standing
from corral.forge.outcome import Attempt

State = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestResult:
    """The winners, and everything about the other candidates."""

    run: str
    folder: Path
    objective: str
    state: State
    seconds: float
    """From start to end; of a resumed run, the sum of its parts."""
    standings: tuple[Standing, ...]
    """Ranked candidates, best first; then those without a rank."""
    attempts: tuple[Attempt, ...]
    output: str = "artifact.md"
    artifact_folders: dict[tuple[str, int], Path] = field(default_factory=dict, repr=False)

    @property
    def winners(self) -> tuple[str, ...]:
        """The candidates with rank 1: several are a tie; empty if no candidate passed."""
        return tuple(standing.candidate for standing in self.standings if standing.rank == 1)

    @property
    def complete(self) -> bool:
        """Whether the run finished, and no attempt failed because of the infrastructure."""
        return self.state == "finished" and all(attempt.finished for attempt in self.attempts)

    def artifact_of(self, candidate: str) -> Path | None:
        """The artifact of a candidate's first good attempt."""
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.round):
            if attempt.candidate == candidate and attempt.ok:
                return self.artifact_folders[candidate, attempt.round] / self.output
        return None

    @property
    def winner_artifact(self) -> Path | None:
        """The artifact of the winner; None without a winner, and for a tie."""
        return self.artifact_of(self.winners[0]) if len(self.winners) == 1 else None

    def to_json(self) -> dict[str, Any]:
        """For `result.json` and `--json`."""
        artifact = self.winner_artifact
        return {
            "run": self.run,
            "state": self.state,
            "complete": self.complete,
            "objective": self.objective,
            "seconds": round(self.seconds, 3),
            "winners": list(self.winners),
            "winner_artifact": str(artifact) if artifact else None,
            "standings": [standing.to_json() for standing in self.standings],
            "attempts": [attempt.to_json() for attempt in self.attempts],
        }
