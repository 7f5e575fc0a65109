"""Dream Foundry's rubric: a list of events for a community, by gates and three weighted scores.

Gates: an artifact, of more than 10 characters, with the fields title, date and url, of at least 3 events, and exit code
0. Points: 0.2 × success + 0.6 × quality + 0.2 × speed. `EventRules` holds the dates, the number of events and the
limit for speed.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corral.errors import SpecError
from corral.forge.judge.eventlist import MAX_CHARACTERS, FoundEvent, find_events
from corral.forge.judge.gates import ArtifactPresent, ExitCode, GateBase, Size
from corral.forge.judge.judge import Judge
from corral.forge.judge.measures import Speed, Success
from corral.forge.judge.model import Bench, Points
from corral.forge.judge.rounds import RoundScore
from corral.forge.judge.work import Work, make_printable
from corral.forge.numbers import check_number, is_number

SUCCESS_WEIGHT, QUALITY_WEIGHT, SPEED_WEIGHT = 0.2, 0.6, 0.2
MORE_THAN_CHARACTERS = 10
_MAX_LISTED = 20
_READ_BYTES = 4 * MAX_CHARACTERS
_WITHOUT_HACKATHON = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRules:
    """The parameters of the rubric."""

    window: tuple[datetime.date, datetime.date] | None = None
    """First and last day, both included; None: any day."""
    min_events: int = 3
    target_events: int = 5
    """The number of valid events that gives all points."""
    hackathon_required: bool = True
    """Without a hackathon a list has 20 points less. It is not a gate."""
    speed_limit: float = 60.0
    """Seconds at which speed has no points left."""

    def __post_init__(self) -> None:
        if self.min_events < 1 or self.target_events < self.min_events:
            raise SpecError(
                "min_events and target_events contradict each other", hint="give 1 <= min_events <= target_events"
            )
        if self.window is not None and self.window[0] > self.window[1]:
            raise SpecError("the window ends before it begins", hint="give (first day, last day)")
        check_number(self.speed_limit, what="speed_limit", kind="limit", hint="give seconds above 0")

    @property
    def year(self) -> int:
        """The year of dates without one."""
        return self.window[0].year if self.window else datetime.datetime.now(datetime.UTC).year

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"window": [day.isoformat() for day in self.window] if self.window else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """What was found in an artifact. The lists have the titles of the first 20 events."""

    passed: bool
    """Enough events with all fields, and a hackathon if one is required."""
    total_events: int
    valid_events: int
    """With title, date and a good url, within the window, and not twice."""
    complete_events: int
    """With title, date and url, valid or not."""
    hackathon_found: bool
    missing_fields: tuple[str, ...] = ()
    outside_window: tuple[str, ...] = ()
    bad_urls: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    score: float = 0.0
    """0 to 100: 70 × valid ÷ all + 30 × valid ÷ target, without a required hackathon 20 less."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The points of one candidate. One that fails a gate has a total of 0."""

    candidate_id: str
    success: bool
    produced_output: bool
    error_occurred: bool
    error_message: str | None
    quality: QualityResult | None
    quality_score: float
    runtime_seconds: float
    speed_score: float
    total_score: float


def assess_quality(text: str, rules: EventRules | None = None) -> QualityResult:
    """Assess an artifact. For any text it takes bounded time and raises nothing."""
    rules = rules or EventRules()
    events = find_events(text, year=rules.year)
    seen: set[tuple[str, datetime.date | None]] = set()
    found: dict[str, list[str]] = {"missing_fields": [], "outside_window": [], "bad_urls": [], "duplicates": []}
    valid = 0
    for event in events:
        fault = _find_fault(event, rules, seen)
        seen.add((event.title.casefold(), event.date))
        if fault is None:
            valid += 1
        elif len(found[fault]) < _MAX_LISTED:
            found[fault].append(_name(event))
    complete = sum(not event.missing for event in events)
    hackathon = any("hackathon" in event.text.casefold() for event in events if not event.missing)
    fits = hackathon or not rules.hackathon_required
    points = 70 * valid / max(len(events), 1) + 30 * min(valid, rules.target_events) / rules.target_events
    score = points if fits else max(points - _WITHOUT_HACKATHON, 0.0)
    return QualityResult(
        passed=complete >= rules.min_events and fits, total_events=len(events), valid_events=valid,
        complete_events=complete, hackathon_found=hackathon, score=score,
        **{name: tuple(names) for name, names in found.items()},
    )  # fmt: skip


def score_candidate(
    candidate_id: str,
    produced_output: bool,  # noqa: FBT001 - Dream Foundry's signature
    error_occurred: bool,  # noqa: FBT001
    artifact_content: str | None,
    runtime_seconds: float,
    error_message: str | None = None,
    *,
    rules: EventRules | None = None,
) -> ScoreResult:
    """Gates and points of one candidate, from plain values."""
    rules = rules or EventRules()
    text = artifact_content or ""
    quality = assess_quality(text, rules) if produced_output and text.strip() else None
    success = produced_output and not error_occurred and quality is not None and not _objections(text, quality, rules)
    speed = 100 * max(0.0, 1 - max(runtime_seconds, 0.0) / rules.speed_limit) if is_number(runtime_seconds) else 0.0
    quality_score = quality.score if quality is not None else 0.0
    total = SUCCESS_WEIGHT * 100 + QUALITY_WEIGHT * quality_score + SPEED_WEIGHT * speed
    return ScoreResult(
        candidate_id=candidate_id, success=success, produced_output=produced_output, error_occurred=error_occurred,
        error_message=error_message, quality=quality, quality_score=quality_score, runtime_seconds=runtime_seconds,
        speed_score=speed if success else 0.0, total_score=total if success else 0.0,
    )  # fmt: skip


def recorded_rubric(rules: EventRules | None = None) -> Judge:
    """The rubric as a judge for a contest."""
    rules = rules or EventRules()
    return Judge(
        gates=(ExitCode(), ArtifactPresent(), Size(min_characters=MORE_THAN_CHARACTERS + 1), EventGate(rules=rules)),
        scores=(
            Success(weight=SUCCESS_WEIGHT),
            EventQuality(rules=rules, weight=QUALITY_WEIGHT),
            Speed(limit=rules.speed_limit, weight=SPEED_WEIGHT),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGate(GateBase):
    """Enough events, and the required fields."""

    rules: EventRules

    async def objection(self, work: Work, bench: Bench) -> str | None:
        if not work.has_artifact:
            return work.explain_lack()
        text = work.read_text(max_bytes=_READ_BYTES)
        quality = await asyncio.to_thread(assess_quality, text, self.rules)
        return ", ".join(_objections(text, quality, self.rules)) or None

    def describe_more(self) -> dict[str, Any]:
        return {"kind": "events", "rules": self.rules.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuality(RoundScore):
    """The quality of a list of events."""

    rules: EventRules
    name: str = "quality"

    async def rate_rounds(self, works: Sequence[Work], bench: Bench) -> list[Points]:
        found = [
            await asyncio.to_thread(assess_quality, work.read_text(max_bytes=_READ_BYTES), self.rules) for work in works
        ]
        return [Points(quality.score, quality.to_json()) for quality in found]

    def describe(self) -> dict[str, Any]:
        return {"kind": "events", "rules": self.rules.to_json(), "over": self.over}


def _objections(text: str, quality: QualityResult, rules: EventRules) -> list[str]:
    """Which of the gates about the artifact it does not pass."""
    found: list[str] = []
    if len(text.strip()) <= MORE_THAN_CHARACTERS:
        found.append(f"not more than {MORE_THAN_CHARACTERS} characters")
    if quality.total_events < rules.min_events:
        found.append(f"{quality.total_events} events, less than {rules.min_events}")
    elif quality.complete_events < rules.min_events:
        found.append(f"only {quality.complete_events} events have a title, a date and a url")
    return found


def _find_fault(event: FoundEvent, rules: EventRules, seen: set[tuple[str, datetime.date | None]]) -> str | None:
    if event.missing:
        return "missing_fields"
    if not event.url_is_good:
        return "bad_urls"
    if rules.window is not None and event.date is not None and not rules.window[0] <= event.date <= rules.window[1]:
        return "outside_window"
    return "duplicates" if (event.title.casefold(), event.date) in seen else None


def _name(event: FoundEvent) -> str:
    lacks = f" (no {', '.join(event.missing)})" if event.missing else ""
    return make_printable(event.title or event.url or event.text.partition("\n")[0], limit=100) + lacks
