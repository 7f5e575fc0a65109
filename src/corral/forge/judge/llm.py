"""A model as judge, through a callable of the user from prompt to text; no vendor's package is needed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from corral.errors import JudgeError, SpecError
from corral.forge.calling import call, check_callable, describe_function, do_all, hash_text
from corral.forge.judge.model import Bench, Points
from corral.forge.judge.prompt import MAX_CHARACTERS, ask_points, ask_winner, find_answer, has_points, has_winner, show
from corral.forge.judge.rounds import RoundScore
from corral.forge.judge.work import Work, make_printable
from corral.forge.statistics import find_median
from corral.spec import check_count, check_timeout

Ask = Callable[[str], str] | Callable[[str], Awaitable[str]]
"""Prompt → text, async or not. It is called from several threads or tasks at a time."""

CRITERIA = "How well it does what was asked: right, complete, clear, and nothing that was not asked for."
_MAX_REASON_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMScore(RoundScore):
    """A model gives the points, blind: the prompt does not name the candidate.

    With `times` it is asked that often, and the median counts.
    """

    ask: Ask = field(kw_only=False)
    criteria: str = CRITERIA
    """What counts, in words. The prompt always has the objective."""
    times: int = 1
    retries: int = 2
    timeout: float = 120.0
    pause: float = 1.0
    """Seconds before it is asked again after an error, doubled each time. After a bad answer there is no pause."""
    jobs: int = 4
    max_characters: int = MAX_CHARACTERS
    """A longer artifact is shown without its middle."""
    name: str = "llm"

    def __post_init__(self) -> None:
        RoundScore.__post_init__(self)
        check_count(self.times, what="times")
        check_count(self.jobs, what="jobs")
        _check(self)

    async def rate_rounds(self, works: Sequence[Work], bench: Bench) -> list[Points]:
        shown = [await asyncio.to_thread(show, work, max_characters=self.max_characters) for work in works]
        questions = [(work, text) for work, text in zip(works, shown, strict=True) for _ in range(self.times)]
        answers = await do_all(questions, self._ask_one, jobs=self.jobs)
        return [_join(answers[index * self.times : (index + 1) * self.times]) for index in range(len(works))]

    async def _ask_one(self, question: tuple[Work, str]) -> dict[str, Any]:
        work, shown = question
        make_prompt = partial(ask_points, objective=work.objective, criteria=self.criteria, shown=shown)
        return await _ask(self, make_prompt, has_points, candidate=work.candidate)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "llm", **describe_function(self.ask), "criteria": self.criteria, "times": self.times,
            "max_characters": self.max_characters, "over": self.over,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMComparison:
    """A model says which of two is better. For `Pairwise`."""

    ask: Ask = field(kw_only=False)
    criteria: str = CRITERIA
    retries: int = 2
    timeout: float = 120.0
    pause: float = 1.0
    max_characters: int = MAX_CHARACTERS // 2

    def __post_init__(self) -> None:
        _check(self)

    async def __call__(self, first: Work, second: Work) -> str:
        """`first`, `second` or `tie`."""
        one = await asyncio.to_thread(show, first, max_characters=self.max_characters)
        two = await asyncio.to_thread(show, second, max_characters=self.max_characters)
        make_prompt = partial(ask_winner, objective=first.objective, criteria=self.criteria, first=one, second=two)
        found = await _ask(self, make_prompt, has_winner, candidate=first.candidate)
        return {"a": "first", "b": "second"}.get(str(found["winner"]).strip().lower(), "tie")

    def describe(self) -> dict[str, Any]:
        """For `run.json`: kind and parameters."""
        return {
            "kind": "llm", **describe_function(self.ask), "criteria": self.criteria,
            "criteria_sha256": hash_text(self.criteria), "max_characters": self.max_characters,
        }  # fmt: skip


def _check(judge: LLMScore | LLMComparison) -> None:
    check_callable(judge.ask, what="ask")
    check_timeout(judge.timeout, what="timeout", error=SpecError)
    check_count(judge.retries, what="retries", least=0)
    check_count(judge.max_characters, what="max_characters", least=100)


async def _ask(
    judge: LLMScore | LLMComparison, make_prompt: Callable[..., str], good: Callable[[dict[str, Any]], bool], *,
    candidate: str,
) -> dict[str, Any]:  # fmt: skip
    """A good answer. Each try has a new prompt, so an id or a fence that leaked is useless.

    Raises:
        JudgeError: no good answer in all tries.
    """
    trouble: Exception | None = None
    why = ""
    for turn in range(judge.retries + 1):
        answer_id = secrets.token_hex(8)
        try:
            text = await call(judge.ask, make_prompt(answer_id=answer_id), timeout=judge.timeout, who="the model")
        except Exception as error:  # noqa: BLE001 - a client of a model may raise anything: a rate limit, a lost connection
            trouble, why = error, f"{type(error).__name__}: {str(error)[:300]}"
            if turn < judge.retries:
                await asyncio.sleep(judge.pause * 2**turn)
            continue
        if not isinstance(text, str):
            raise JudgeError(f"the model's callable returned {text!r:.100}", candidate=candidate, hint="return a text")
        if (found := find_answer(text, answer_id=answer_id, good=good)) is not None:
            return found
        trouble, why = None, f"not the answer that was asked for: {make_printable(text, limit=200)!r}"
    raise JudgeError(
        f"the model gave no usable answer in {judge.retries + 1} tries; the last: {why}", candidate=candidate,
        hint="try the callable alone, or give it more retries",
    ) from trouble  # fmt: skip


def _join(answers: Sequence[dict[str, Any]]) -> Points:
    values = [float(answer["points"]) for answer in answers]
    middle = find_median(values)
    nearest = min(answers, key=lambda answer: abs(float(answer["points"]) - middle))
    reason = make_printable(str(nearest.get("reason", "")), limit=_MAX_REASON_CHARACTERS)
    return Points(middle, {"reason": reason} | ({"answers": values} if len(values) > 1 else {}))
