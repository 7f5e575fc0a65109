"""What became of an attempt: how it ended, what it cost, what it left. Plain values, written to the run's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Outcome = Literal["ok", "crashed", "timeout", "oom", "no-artifact", "refused-artifact", "infrastructure", "cancelled"]
"""`ok` is exit code 0 and an artifact. The next five are the candidate's own doing; the last two are nobody's loss."""

_KINDS: dict[str, tuple[type, ...]] = {
    "candidate": (str,), "round": (int,), "reason": (str,), "log": (str,), "log_bytes": (int,), "retries": (int,),
    "sandbox_id": (str,), "phases": (dict,),
}  # fmt: skip
OWN_FAILURES: frozenset[str] = frozenset({"crashed", "timeout", "oom", "no-artifact", "refused-artifact"})
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
    """Something that was not taken out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One candidate, once. Times are seconds; `seconds` is the run alone, by the clock of whoever started it."""

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
    """What could not be counted, or only roughly."""

    @property
    def ok(self) -> bool:
        """Whether it did what was asked."""
        return self.outcome == "ok"

    @property
    def finished(self) -> bool:
        """Whether it says something about the candidate."""
        return self.outcome not in UNFINISHED

    def to_json(self) -> dict[str, Any]:
        """For the event log."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Attempt:
        """From the event log. Raises: TypeError or ValueError for a line that nobody of us wrote."""
        values = dict(data)
        if values["outcome"] not in get_args(Outcome):
            raise ValueError(f"{values['outcome']!r} is not an outcome")
        for name, kinds in _KINDS.items():
            if not isinstance(values.get(name, kinds[0]()), kinds):
                raise TypeError(f"{name} is {values[name]!r}")
        for name in ("exit_code", "seconds", "cpu_seconds", "peak_memory_bytes"):
            if not isinstance(values.get(name), int | float | None):
                raise TypeError(f"{name} is {values[name]!r}")
        values["artifacts"] = tuple(ArtifactFile(**item) for item in data.get("artifacts", ()))
        values["refused"] = tuple(Refused(**item) for item in data.get("refused", ()))
        values["notes"] = tuple(data.get("notes", ()))
        if not all(isinstance(item.path, str) for item in (*values["artifacts"], *values["refused"])):
            raise TypeError("a path that is no text")
        return cls(**values)
