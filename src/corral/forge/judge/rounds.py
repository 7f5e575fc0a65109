"""Scores that look at one round at a time, and then join the rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from corral.errors import JudgeError
from corral.forge.calling import ask_judge, check_callable, describe_function, do_all
from corral.forge.judge.model import Bench, Entry, Points, Score
from corral.forge.judge.work import Work, list_work, make_plain
from corral.forge.numbers import is_number
from corral.forge.statistics import Over, check_over, join_rounds
from corral.spec import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundScore(Score, ABC):
    """Base class of such scores. A round without an artifact has no points and is not rated."""

    weight: float = 1.0
    over: Over = "median"
    """How rounds become one number: `median`, `mean`, `worst`, or `best`, which is best-of-k."""

    def __post_init__(self) -> None:
        check_over(self.over)

    @abstractmethod
    async def rate_rounds(self, works: Sequence[Work], bench: Bench) -> list[Points]:
        """Points for each of these rounds, in their order."""

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        every = {entry.candidate: list_work(entry) for entry in entries}
        works = [work for of_one in every.values() for work in of_one if work.has_artifact]
        rated = await self.rate_rounds(works, bench)
        points = {(work.candidate, work.round): given for work, given in zip(works, rated, strict=True)}
        return {
            candidate: self._join([points.get((candidate, work.round), _NOTHING) for work in of_one])
            for candidate, of_one in every.items()
        }

    def _join(self, rounds: Sequence[Points]) -> Points:
        if len(rounds) == 1:
            return rounds[0]
        # Points of a round are clamped to 0 to 100 first: one wild round would decide a mean.
        values = [min(max(points.points, 0.0), 100.0) for points in rounds]
        joined = join_rounds(values, self.over)
        nearest = min(range(len(values)), key=lambda index: abs(values[index] - joined))
        details = make_plain(rounds[nearest].details)
        return Points(joined, details | {"rounds": values, "over": self.over})


_NOTHING = Points(0.0, {"note": "no artifact"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonScore(RoundScore):
    """A function of yours, async or not: it gets a `Work` and gives a number of 0 to 100, or the number and details.

    It runs in this program, so it must not execute what it is given. An exception is the judge's failure.
    """

    function: Callable[[Work], Any] = field(kw_only=False)
    name: str = ""
    jobs: int = 4
    timeout: float | None = None
    """Seconds for one call; None: as the contest's settings say for judges."""

    def __post_init__(self) -> None:
        RoundScore.__post_init__(self)
        check_callable(self.function, what="score")
        check_count(self.jobs, what="jobs")
        object.__setattr__(self, "name", self.name or getattr(self.function, "__name__", "function"))

    async def rate_rounds(self, works: Sequence[Work], bench: Bench) -> list[Points]:
        return await do_all(works, partial(self._rate_one, bench=bench), jobs=self.jobs)

    async def _rate_one(self, work: Work, *, bench: Bench) -> Points:
        timeout = self.timeout or bench.timeout
        said = await ask_judge(self.function, work, timeout=timeout, who=self.name, candidate=work.candidate)
        return read_answer(said, candidate=work.candidate)

    def describe(self) -> dict[str, Any]:
        return {"kind": "python", **describe_function(self.function), "over": self.over}


def read_answer(said: object, *, candidate: str) -> Points:
    """A number, a pair of a number and details, or Points. Raises: JudgeError for anything else."""
    value: object = said
    details: object = {}
    if isinstance(said, Points):
        value, details = said.points, said.details
    elif isinstance(said, tuple) and len(said) == 2:
        value, details = said
    if not is_number(value):
        raise JudgeError(
            f"{value!r:.100} is not points", candidate=candidate, hint="give a number of 0 to 100, or (number, details)"
        )
    return Points(float(value), make_plain(details))
