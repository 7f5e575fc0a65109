"""The judge: gates decide who is in the ranking, weighted scores decide the order, and ties are ties.

An exception in a gate or score is the judge's failure, never a candidate's: `decide` raises `JudgeError`, which names
the gate or score and the candidate, and no candidate is ranked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.errors import JudgeError, SpecError
from corral.forge.calling import do_all
from corral.forge.judge.gates import ArtifactPresent, ExitCode
from corral.forge.judge.measures import Speed, Success, measure
from corral.forge.judge.model import Bench, Entry, Gate, GateVerdict, Points, Score, Standing
from corral.forge.judge.work import make_plain, make_printable
from corral.forge.numbers import DECIMALS, check_number, is_number
from corral.forge.statistics import describe_seconds, find_median
from corral.spec import check_count

_BUG_HINT = "a bug in that judge: correct it and resume the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Gates and scores. Weights are divided by their sum, so any scale will do."""

    gates: tuple[Gate, ...] = ()
    scores: tuple[Score, ...] = ()
    tie_margin: float = 0.0
    """Totals within this margin of the best of a rank share that rank."""
    jobs: int = 4
    """How many candidates are checked at once. The bench limits sandboxes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gates", tuple(self.gates))
        object.__setattr__(self, "scores", tuple(self.scores))
        check_count(self.jobs, what="jobs")
        check_number(self.tie_margin, what="tie_margin", kind="margin", hint="give points, 0 or more", least=0)
        for score in self.scores:
            check_number(score.weight, what=f"{score.name}: weight", kind="weight", hint="give 0 or more", least=0)
        names = [score.name for score in self.scores]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"two scores have the name {twice[0]!r}", hint="give each its own: name=…")
        if self.scores and not sum(score.weight for score in self.scores) > 0:
            raise SpecError("all weights are 0", hint="give at least one score a weight")

    @property
    def weights(self) -> dict[str, float]:
        """Each score's part in the total; together 1."""
        whole = math.fsum(score.weight for score in self.scores)
        return {score.name: score.weight / whole for score in self.scores}

    async def decide(
        self, entries: Sequence[Entry], unfinished: Mapping[str, str], bench: Bench
    ) -> tuple[Standing, ...]:
        """The standings: ranked candidates, best first; then disqualified ones; then unfinished ones.

        `unfinished`: id → reason, of candidates that the infrastructure kept from finishing. They have not lost.

        Raises:
            JudgeError: a gate or score failed.
        """
        _check_entries(entries, unfinished)
        looked = await do_all(entries, lambda entry: self._look(entry, bench), jobs=self.jobs)
        verdicts = {entry.candidate: found for entry, found in zip(entries, looked, strict=True)}
        passed = [entry for entry in entries if all(verdict.passed for verdict in verdicts[entry.candidate])]
        rated = {score.name: await self._rate(score, passed, bench) for score in self.scores} if passed else {}
        weights = self.weights
        totals = {
            entry.candidate: math.fsum(weights[name] * points[entry.candidate].points for name, points in rated.items())
            for entry in passed
        }
        standings = [
            replace(place, scores={name: points[place.candidate] for name, points in rated.items()})
            for place in rank(totals, tie_margin=self.tie_margin)
        ]
        standings += [
            Standing(candidate=name, rank=None, disqualified=True, reason=reason)
            for name, found in sorted(verdicts.items())
            if (reason := _join_reasons(found))
        ]
        by_id = {entry.candidate: entry for entry in entries}
        return (
            *(_complete(standing, by_id[standing.candidate], verdicts[standing.candidate]) for standing in standings),
            *(Standing(candidate=name, rank=None, reason=reason) for name, reason in sorted(unfinished.items())),
        )

    def describe(self) -> dict[str, Any]:
        """For `run.json`: kinds and parameters, without secrets."""
        return {
            "gates": [{"name": gate.name, **gate.describe()} for gate in self.gates],
            "scores": [{"name": score.name, "weight": score.weight, **score.describe()} for score in self.scores],
            "tie_margin": self.tie_margin,
        }

    async def _look(self, entry: Entry, bench: Bench) -> tuple[GateVerdict, ...]:
        """All gates, also after one that failed, so that the result names every failed gate."""
        found: list[GateVerdict] = []
        for gate in self.gates:
            try:
                verdict = await gate.check(entry, bench)
            except Exception as error:
                raise _blame(error, "gate", gate.name, entry.candidate) from error
            if not isinstance(verdict, GateVerdict) or not isinstance(verdict.passed, bool):
                raise _refuse("gate", gate.name, entry.candidate, f"{verdict!r:.100} is not a verdict")
            reason = verdict.reason or ("" if verdict.passed else "not passed")
            found.append(GateVerdict(gate.name, verdict.passed, make_printable(reason)))
        return tuple(found)

    async def _rate(self, score: Score, entries: Sequence[Entry], bench: Bench) -> dict[str, Points]:
        try:
            found = await score.rate(entries, bench)
        except Exception as error:
            raise _blame(error, "score", score.name, None) from error
        ids = [entry.candidate for entry in entries]
        if not isinstance(found, Mapping):
            raise _refuse("score", score.name, None, f"{found!r:.100} is not points by candidate")
        if strangers := sorted(str(name) for name in found if name not in ids):
            raise _refuse("score", score.name, strangers[0], "points for a candidate that it was not asked to rate")
        missing = Points(0.0, {"note": "the score gave no points for it"})
        return {name: _check_points(score.name, name, found.get(name, missing)) for name in ids}


def rank(totals: Mapping[str, float], *, tie_margin: float = 0.0) -> list[Standing]:
    """Candidates with their ranks, best first. Those within `tie_margin` of the best of a rank share it; the next rank
    counts all before it (1, 1, 3). The margin is measured from the best, never from neighbour to neighbour: a long
    chain of small differences does not make the first and the last equal. Equal candidates are sorted by id.
    """
    ordered = sorted((-round(total, DECIMALS), candidate) for candidate, total in totals.items())
    groups: list[list[tuple[float, str]]] = []
    for negative, candidate in ordered:
        if groups and round(negative - groups[-1][0][0], DECIMALS) <= tie_margin:
            groups[-1].append((negative, candidate))
        else:
            groups.append([(negative, candidate)])
    places: list[Standing] = []
    for group in groups:
        number, tied = len(places) + 1, len(group) > 1
        places += [Standing(candidate=name, rank=number, total=0.0 - negative, tied=tied) for negative, name in group]
    return places


def default_judge() -> Judge:
    """When no judge is given: exit code 0 and an artifact; then success and speed, half each.

    The margin is half a point, which is one part in a hundred of the time: a smaller difference is noise.
    """
    return Judge(gates=(ExitCode(), ArtifactPresent()), scores=(Success(), Speed()), tie_margin=0.5)


def _complete(standing: Standing, entry: Entry, gates: tuple[GateVerdict, ...]) -> Standing:
    cpu, memory = measure(entry, "cpu_seconds"), measure(entry, "peak_memory_bytes")
    return replace(
        standing,
        gates=gates,
        seconds=describe_seconds(measure(entry, "seconds")),
        cpu_seconds=find_median(cpu) if cpu else None,
        peak_memory_bytes=int(find_median(memory)) if memory else None,
    )


def _join_reasons(verdicts: Sequence[GateVerdict]) -> str:
    """Why a candidate is disqualified; empty if it passed. The same reason is given once: every gate about a missing
    file fails for the same reason."""
    found: dict[str, str] = {}
    for verdict in verdicts:
        if not verdict.passed:
            found.setdefault(verdict.reason, verdict.gate)
    return "; ".join(f"{gate}: {reason}" for reason, gate in found.items())


def _check_entries(entries: Sequence[Entry], unfinished: Mapping[str, str]) -> None:
    names = [*(entry.candidate for entry in entries), *unfinished]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"the candidate {twice[0]!r} was given twice", hint="give each candidate once")
    for entry in entries:
        if not entry.attempts:
            raise SpecError(f"the candidate {entry.candidate!r} has no attempt", hint="give it as unfinished")


def _check_points(score: str, candidate: str, points: object) -> Points:
    """Points within 0 and 100. A number outside is clamped, with a note."""
    if not isinstance(points, Points) or not is_number(points.points):
        value = points.points if isinstance(points, Points) else points
        raise _refuse("score", score, candidate, f"{value!r:.100} is not points")
    value = float(points.points)
    details = make_plain(points.details)
    if not 0 <= value <= 100:
        details["note"] = f"{value:g} was clamped to 0 to 100"
    return Points(min(max(value, 0.0), 100.0), details)


def _blame(error: Exception, kind: str, name: str, candidate: str | None) -> JudgeError:
    """The judge's failure. If the error names a candidate, that one is kept."""
    if isinstance(error, JudgeError):
        return _refuse(kind, name, error.candidate or candidate, error.message, error.hint)
    why = f"{type(error).__name__}: {str(error)[:500]}"
    return _refuse(kind, name, candidate, why, "correct the judge and resume the run")


def _refuse(kind: str, name: str, candidate: str | None, why: str, hint: str = _BUG_HINT) -> JudgeError:
    at = f" at {candidate!r}" if candidate else ""
    return JudgeError(f"the {kind} {name!r} failed{at}: {why}", judge=name, candidate=candidate, op="judge", hint=hint)
