"""What judges get, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from corral.client.sandbox import AsyncSandbox
from corral.forge.artifacts import MAX_BYTES, read_artifact
from corral.forge.events import NUMBER, check_all, check_kinds
from corral.forge.numbers import round_all
from corral.forge.outcome import Attempt
from corral.forge.settings import Settings

_KINDS: dict[str, tuple[type, ...]] = {
    "candidate": (str,), "rank": (int, type(None)), "total": (int, float), "tied": (bool,), "disqualified": (bool,),
    "reason": (str,), "gates": (list,), "scores": (dict,), "seconds": (dict,), "cpu_seconds": NUMBER,
    "peak_memory_bytes": NUMBER,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a judge gets of one candidate: its attempts, and the folders of their artifacts on the host."""

    candidate: str
    objective: str
    settings: Settings
    attempts: tuple[Attempt, ...]
    """By round; only finished attempts, at least one."""
    folders: Mapping[int, Path]
    """Round → folder with the artifacts that were taken out. Its content is hostile."""

    def main_file(self, attempt: Attempt) -> Path | None:
        """The path of the artifact; None if the attempt has no artifact."""
        if any(file.path == self.settings.output for file in attempt.artifacts):
            return self.folders[attempt.round] / self.settings.output
        return None

    def read_text(self, attempt: Attempt, *, max_bytes: int = MAX_BYTES) -> str:
        """The artifact as text, at most `max_bytes`; empty without an artifact. No link is followed."""
        if self.main_file(attempt) is None:
            return ""
        content, _ = read_artifact(self.folders[attempt.round], self.settings.output, max_bytes=max_bytes)
        return content.decode("utf-8", "replace")


class Bench(Protocol):
    """Fresh sandboxes for a judge, like those of the contest."""

    def open(self, files: Path | None = None) -> AbstractAsyncContextManager[AsyncSandbox]:
        """A fresh sandbox, with the folder's content under `artifact/` of its workdir."""

    @property
    def timeout(self) -> float:
        """Seconds for one command."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a candidate passed a gate. One that fails a gate is disqualified, regardless of its scores."""

    gate: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one candidate by one score: 0 to 100, with details."""

    points: float
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", round_all(self.points))


class Gate(Protocol):
    """A hard condition."""

    @property
    def name(self) -> str:
        """Its name on the leaderboard."""

    async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
        """Check one candidate. An exception is the judge's failure, never the candidate's."""

    def describe(self) -> dict[str, Any]:
        """For `run.json`: kind and parameters."""


class Score(Protocol):
    """A weighted score. It sees all entries at once, so it may compare them."""

    @property
    def name(self) -> str:
        """Its name on the leaderboard."""

    @property
    def weight(self) -> float:
        """Its part in the total; weights are divided by their sum."""

    async def rate(self, entries: Sequence[Entry], bench: Bench) -> Mapping[str, Points]:
        """Points for each candidate, by id. One that is not in the answer gets 0."""

    def describe(self) -> dict[str, Any]:
        """For `run.json`: kind and parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A candidate's place in the ranking."""

    candidate: str
    rank: int | None
    """1 is the best; the same number twice is a tie. None: not ranked, and `reason` says why."""
    total: float = 0.0
    tied: bool = False
    disqualified: bool = False
    reason: str = ""
    gates: tuple[GateVerdict, ...] = ()
    scores: dict[str, Points] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the runs: `median`, and with several rounds `low` and `high`, the median's 95 % interval."""
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("total", "seconds", "cpu_seconds"):
            object.__setattr__(self, name, round_all(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """For the event log and the result."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Standing:
        """From the event log. Raises: TypeError, ValueError, KeyError or AttributeError for a malformed line."""
        values = dict(data)
        check_kinds(values, _KINDS)
        check_all(values.get("seconds", {}), int, float)
        values["gates"] = tuple(GateVerdict(**gate) for gate in data.get("gates", ()))
        values["scores"] = {name: Points(**points) for name, points in data.get("scores", {}).items()}
        for gate in values["gates"]:
            check_kinds(asdict(gate), {"gate": (str,), "passed": (bool,), "reason": (str,)})
        for points in values["scores"].values():
            check_kinds(asdict(points), {"points": (int, float), "details": (dict,)})
        return cls(**values)
