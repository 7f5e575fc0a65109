"""The outcome of an attempt: how it ended, what it used, its artifacts. Plain values, written to the run's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from corral.forge.events import NUMBER, check_all, check_kinds
from corral.forge.numbers import round_all

Outcome = Literal["ok", "crashed", "timeout", "oom", "no-artifact", "refused-artifact", "infrastructure", "cancelled"]
"""`ok` is exit code 0 and an artifact. Five are failures of the candidate; the last two say nothing about it."""

_KINDS: dict[str, tuple[type, ...]] = {
    "candidate": (str,), "round": (int,), "reason": (str,), "log": (str,), "log_bytes": (int,), "retries": (int,),
    "sandbox_id": (str,), "phases": (dict,), "exit_code": (int, type(None)), "seconds": NUMBER, "cpu_seconds": NUMBER,
    "peak_memory_bytes": NUMBER,
}  # fmt: skip
UNFINISHED: frozenset[str] = frozenset({"infrastructure", "cancelled"})
"""Outcomes that say nothing about the candidate: a resumed run tries them again."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """One file that was taken out. `path` is below the candidate's folder, as the candidate named it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that was not taken out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One candidate, once. Times are seconds; `seconds` is the run alone."""

    candidate: str
    round: int = 1
    outcome: Outcome
    reason: str = ""
    """Why, in words, where the outcome is not `ok`."""
    exit_code: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    artifacts: tuple[ArtifactFile, ...] = ()
    refused: tuple[Refused, ...] = ()
    log: str = ""
    """What it printed, both streams in their order; bounded, the middle is cut out."""
    log_bytes: int = 0
    """How much it printed."""
    retries: int = 0
    sandbox_id: str = ""
    notes: tuple[str, ...] = ()
    """What could not be measured, or only roughly."""

    def __post_init__(self) -> None:
        for name in ("seconds", "cpu_seconds", "phases"):
            object.__setattr__(self, name, round_all(getattr(self, name)))

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0 and an artifact."""
        return self.outcome == "ok"

    @property
    def finished(self) -> bool:
        """Whether it says something about the candidate: not cancelled, and no failure of the infrastructure."""
        return self.outcome not in UNFINISHED

    def to_json(self) -> dict[str, Any]:
        """For the event log."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Attempt:
        """From the event log. Raises: TypeError or ValueError for a malformed line."""
        values = dict(data)
        if values["outcome"] not in get_args(Outcome):
            raise ValueError(f"{values['outcome']!r} is not an outcome")
        check_kinds(values, _KINDS)
        check_all(values.get("phases", {}), int, float)
        values["artifacts"] = tuple(ArtifactFile(**item) for item in data.get("artifacts", ()))
        values["refused"] = tuple(Refused(**item) for item in data.get("refused", ()))
        values["notes"] = tuple(data.get("notes", ()))
        for item in (*values["artifacts"], *values["refused"]):
            check_kinds(asdict(item), {"path": (str,), "size": (int,), "sha256": (str,), "reason": (str,)})
        check_all(dict(enumerate(values["notes"])), str)
        return cls(**values)
