"""A run at a glance: one row for each candidate, best first."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from corral.forge.judge.model import Standing
from corral.forge.outcome import Attempt
from corral.forge.statistics import find_median

if TYPE_CHECKING:
    from corral.forge.runfolder import Run

MarkKind = Literal["winner", "ranked", "out"]
"""How tables and charts mark a candidate."""

_MAX_WARNINGS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """One candidate: its definition, standing and attempts."""

    id: str
    name: str
    description: str
    definition: dict[str, Any]
    standing: Standing
    """Without a rank and a reason, if the run ended before it was judged."""
    attempts: tuple[Attempt, ...]
    """By round."""

    @property
    def kind(self) -> MarkKind:
        """How charts and tables mark it."""
        if self.standing.rank is None:
            return "out"
        return "winner" if self.standing.rank == 1 else "ranked"

    @property
    def place(self) -> str:
        """Its rank, with `=` for a tie."""
        if self.standing.rank is None:
            return "–"
        return f"{self.standing.rank}{'=' if self.standing.tied else ''}"

    @property
    def total(self) -> float | None:
        """Its total, if it has one."""
        if self.standing.rank is None and not self.standing.scores:
            return None
        return self.standing.total if math.isfinite(self.standing.total) else None

    @property
    def median_seconds(self) -> float | None:
        """The median time of its runs, as the judge measured it; without a judge, of all finished runs."""
        if (found := self.standing.seconds.get("median")) is not None:
            return found
        return find_median(self.times) if self.times else None

    @property
    def times(self) -> list[float]:
        """The seconds of each finished run."""
        return [attempt.seconds for attempt in self.attempts if attempt.finished and attempt.seconds is not None]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the median, with several rounds."""
        seconds = self.standing.seconds
        return (seconds["low"], seconds["high"]) if "low" in seconds and "high" in seconds else None

    @property
    def cpu_seconds(self) -> float | None:
        if self.standing.cpu_seconds is not None:
            return self.standing.cpu_seconds
        times = [attempt.cpu_seconds for attempt in self.attempts if attempt.cpu_seconds is not None]
        return find_median(times) if times else None

    @property
    def peak_memory_bytes(self) -> int | None:
        if self.standing.peak_memory_bytes is not None:
            return self.standing.peak_memory_bytes
        return max(
            (found for attempt in self.attempts if (found := attempt.peak_memory_bytes) is not None), default=None
        )

    @property
    def outcome(self) -> str:
        """How its attempts ended, in a few words."""
        if not self.attempts:
            return "not run"
        counted = Counter(attempt.outcome for attempt in self.attempts)
        if len(counted) == 1:
            return self.attempts[0].outcome
        return ", ".join(f"{number} {outcome}" for outcome, number in counted.most_common())

    @property
    def reason(self) -> str:
        """Why it is not in the ranking, or why an attempt went wrong."""
        return self.standing.reason or next((attempt.reason for attempt in self.attempts if attempt.reason), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A run, ready to be shown or compared."""

    run: Run
    seconds: float | None
    rows: tuple[CandidateRow, ...]
    score_names: tuple[str, ...]
    weights: dict[str, float]
    """Name of a score → its part in the total, as far as known."""
    warnings: tuple[str, ...]

    @property
    def winners(self) -> tuple[CandidateRow, ...]:
        """The candidates with rank 1; more than one are a tie."""
        return tuple(row for row in self.rows if row.kind == "winner")

    @property
    def settings(self) -> dict[str, Any]:
        found = self.run.definition.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def repeated(self) -> bool:
        """Whether there was more than one round."""
        return any(len(row.attempts) > 1 for row in self.rows)


def make_overview(run: Run) -> Overview:
    warnings: list[str] = []
    seconds: float | None = None
    for event in run.events():
        if event.kind == "warning" and len(warnings) < _MAX_WARNINGS:
            warnings.append(str(event.data.get("text", "")))
        elif event.kind == "run-ended":
            seconds = event.data.get("seconds")
    names = tuple(dict.fromkeys(name for standing in run.standings for name in standing.scores))
    return Overview(
        run=run, seconds=seconds, rows=_rows(run), score_names=names, weights=_weights(run.definition.get("judge")),
        warnings=tuple(warnings),
    )  # fmt: skip


def _rows(run: Run) -> tuple[CandidateRow, ...]:
    defined = {str(found.get("id", "")): found for found in run.definition.get("candidates", ())}
    standings = {standing.candidate: standing for standing in run.standings}
    attempts: dict[str, list[Attempt]] = {}
    for (candidate, _), attempt in sorted(run.attempts.items()):
        attempts.setdefault(candidate, []).append(attempt)
    ids = dict.fromkeys([*standings, *defined, *attempts])
    return tuple(
        CandidateRow(
            id=id_, name=str(defined.get(id_, {}).get("name") or id_), definition=defined.get(id_, {}),
            description=str(defined.get(id_, {}).get("description", "")), attempts=tuple(attempts.get(id_, ())),
            standing=standings.get(id_) or Standing(candidate=id_, rank=None),
        )
        for id_ in ids
    )  # fmt: skip


def _weights(judge: object) -> dict[str, float]:
    """From the judge's description; empty if it has another form."""
    scores = judge.get("scores") if isinstance(judge, dict) else None
    found = {
        str(score["name"]): float(score["weight"])
        for score in (scores if isinstance(scores, list | tuple) else ())
        if isinstance(score, dict) and "name" in score and isinstance(score.get("weight"), int | float)
    }
    whole = sum(found.values())
    return {name: weight / whole for name, weight in found.items()} if whole > 0 else {}
