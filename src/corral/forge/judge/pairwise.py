"""Scores by comparing two at a time, which people and models do better than giving numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from corral.errors import JudgeError, SpecError
from corral.forge.calling import ask_judge, check_callable, describe_function, do_all
from corral.forge.judge.llm import CRITERIA, Ask, LLMComparison
from corral.forge.judge.model import Bench, Entry, Points, Score
from corral.forge.judge.work import Work, list_work
from corral.forge.numbers import is_number
from corral.forge.statistics import find_strengths
from corral.spec import check_count

_WORDS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairwise(Score):
    """Every candidate is compared with every other, in both orders: many judges prefer the first that they see.

    `compare` gets two `Work` and says `"first"`, `"second"` or `"tie"`, or a number of −1 (the second is far better) to
    1. It may be async. The first round that succeeded is compared; a candidate without one has no points.

    Points: `wins` is 100 × the part of the comparisons that were won, where a tie is half. `bradley-terry` is 100 × the
    probability to win against an average opponent, which also considers the opponents: better if not all are compared.
    """

    compare: Callable[[Work, Work], Any] = field(kw_only=False)
    points: Literal["wins", "bradley-terry"] = "wins"
    both_orders: bool = True
    max_pairs: int = 500
    """If there are more pairs, a sample is compared: all candidates take part equally often, and the sample connects
    all of them. It has at least as many pairs as there are candidates."""
    seed: int = 0
    """Decides the sample, and who is first where not both orders are tried."""
    jobs: int = 4
    timeout: float | None = None
    weight: float = 1.0
    name: str = "pairwise"

    def __post_init__(self) -> None:
        check_callable(self.compare, what="compare")
        check_count(self.max_pairs, what="max_pairs")
        check_count(self.jobs, what="jobs")
        if self.points not in ("wins", "bradley-terry"):
            raise SpecError(f"points={self.points!r} is not supported", hint="give wins or bradley-terry")

    @classmethod
    def by_llm(cls, ask: Ask, *, criteria: str = CRITERIA, **options: Any) -> Pairwise:
        """A model compares. Other options are those of `Pairwise`."""
        options.setdefault("timeout", 900.0)  # for a whole comparison, with its retries
        return cls(LLMComparison(ask, criteria=criteria), **options)

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        works = {entry.candidate: work for entry in entries if (work := _choose(entry)) is not None}
        pairs = list_pairs(list(works), max_pairs=self.max_pairs, seed=self.seed)
        asked = [(works[a], works[b]) for a, b in pairs]
        if self.both_orders:
            asked += [(works[b], works[a]) for a, b in pairs]
        said = await do_all(asked, partial(self._compare_one, bench=bench), jobs=self.jobs)
        wins: dict[tuple[str, str], float] = {}
        split = dict.fromkeys(works, 0)
        for index, (a, b) in enumerate(pairs):
            value = said[index]
            if self.both_orders:
                other = -said[index + len(pairs)]
                if value * other < 0:  # it prefers a place, first or second, and says nothing about the two
                    split[a] += 1
                    split[b] += 1
                value = (value + other) / 2
            wins[a, b] = (1 + value) / 2
            wins[b, a] = (1 - value) / 2
        found = dict.fromkeys((entry.candidate for entry in entries), Points(0.0, {"note": "no artifact"}))
        return found | self._give(list(works), wins, split)

    def describe(self) -> dict[str, Any]:
        own = getattr(self.compare, "describe", None)
        return {
            "kind": "pairwise", "compare": own() if callable(own) else describe_function(self.compare),
            "points": self.points, "both_orders": self.both_orders, "max_pairs": self.max_pairs, "seed": self.seed,
        }  # fmt: skip

    async def _compare_one(self, pair: tuple[Work, Work], *, bench: Bench) -> float:
        first, second = pair
        said = await ask_judge(
            self.compare, first, second, timeout=self.timeout or bench.timeout, who=self.name,
            candidate=first.candidate, about=f"with {second.candidate!r}: ",
        )  # fmt: skip
        value = _WORDS.get(said, said) if isinstance(said, str) else said
        if not is_number(value) or not -1 <= value <= 1:
            raise JudgeError(
                f"with {second.candidate!r} it returned {said!r:.100}", candidate=first.candidate,
                hint="return 'first', 'second', 'tie', or a number from -1 to 1",
            )  # fmt: skip
        return float(value)

    def _give(
        self, names: Sequence[str], wins: Mapping[tuple[str, str], float], split: Mapping[str, int]
    ) -> dict[str, Points]:
        strengths = find_strengths(wins, names) if self.points == "bradley-terry" else {}
        found: dict[str, Points] = {}
        for name in names:
            own = [value for (winner, _), value in wins.items() if winner == name]
            if not own:
                found[name] = Points(100.0, {"note": "no other candidate to compare it with"})
                continue
            share = math.fsum(own) / len(own)
            details = {"comparisons": len(own), "won": math.fsum(own), "undecided_by_order": split[name]}
            value = strengths[name] / (strengths[name] + 1) if strengths else share
            found[name] = Points(100.0 * value, details)
        return found


def list_pairs(names: Sequence[str], *, max_pairs: int, seed: int) -> list[tuple[str, str]]:
    """The pairs to compare. All candidates form a ring, shuffled by the seed, and each meets its next neighbours, the
    nearest first, as long as whole rounds of the ring fit: so each has equally many, and the ring connects all.
    """
    ring = sorted(names)
    chance = random.Random(seed)  # noqa: S311 - a sample that can be repeated, not a secret
    chance.shuffle(ring)
    count = len(ring)
    pairs: list[tuple[str, str]] = []
    for distance in range(1, count // 2 + 1):
        # Across the whole ring each pair would be met from both sides.
        met = [(ring[n], ring[(n + distance) % count]) for n in range(count if 2 * distance < count else count // 2)]
        if pairs and len(pairs) + len(met) > max_pairs:
            break
        pairs += met
    return pairs


def _choose(entry: Entry) -> Work | None:
    works = [work for work in list_work(entry) if work.has_artifact]
    return next((work for work in works if work.attempt.ok), works[0] if works else None)
