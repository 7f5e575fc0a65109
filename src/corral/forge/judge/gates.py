"""Gates: hard conditions. Each checks every finished round of a candidate, and says why it does not pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from corral.errors import JudgeError, SpecError
from corral.forge.calling import call, check_callable, describe_function
from corral.forge.judge.model import Bench, Entry, Gate, GateVerdict
from corral.forge.judge.work import Work, list_work
from corral.spec import parse_size

Rounds = Literal["all", "most", "any"]
"""How many rounds must pass; `any` goes with scores that take the best of the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateBase(Gate, ABC):
    """Base class of gates that check round by round."""

    rounds: Rounds = "all"
    label: str = ""
    """Its name on the leaderboard; without one, what it looks at."""

    def __post_init__(self) -> None:
        if self.rounds not in ("all", "most", "any"):
            raise SpecError(f"rounds={self.rounds!r} is not supported", hint="give all, most or any")

    @property
    def name(self) -> str:
        return self.label or str(self.describe_more()["kind"])

    @abstractmethod
    async def objection(self, work: Work, bench: Bench) -> str | None:
        """Why one round does not pass; None if it does."""

    @abstractmethod
    def describe_more(self) -> dict[str, Any]:
        """Kind and parameters."""

    async def check(self, entry: Entry, bench: Bench) -> GateVerdict:
        works = list_work(entry)
        reasons: dict[str, list[str]] = {}
        for work in works:
            if (reason := await self.objection(work, bench)) is not None:
                reasons.setdefault(reason, []).append(str(work.round))
        failed = sum(len(rounds) for rounds in reasons.values())
        needed = {"all": len(works), "most": len(works) // 2 + 1, "any": 1}[self.rounds]
        told = [
            reason if len(rounds) == len(works) else f"round {', '.join(rounds)}: {reason}"
            for reason, rounds in reasons.items()
        ]
        return GateVerdict(self.name, len(works) - failed >= needed, "; ".join(told))

    def describe(self) -> dict[str, Any]:
        return self.describe_more() | {"rounds": self.rounds}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCode(GateBase):
    """The run ended by itself, with one of these codes. A timeout or out-of-memory kill never passes."""

    codes: tuple[int, ...] = (0,)

    async def objection(self, work: Work, bench: Bench) -> str | None:
        attempt = work.attempt
        if attempt.outcome in ("timeout", "oom"):
            return attempt.reason or attempt.outcome
        if attempt.exit_code in self.codes:
            return None
        return attempt.reason or f"exit code {attempt.exit_code}"

    def describe_more(self) -> dict[str, Any]:
        return {"kind": "exit-code", "codes": list(self.codes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPresent(GateBase):
    """The artifact is there, and files beside it that are named here."""

    also: tuple[str, ...] = ()

    async def objection(self, work: Work, bench: Bench) -> str | None:
        there = {file.path for file in work.files}
        missing = [name for name in (work.output, *self.also) if name not in there]
        return ", ".join(work.explain_lack(name) for name in missing) or None

    def describe_more(self) -> dict[str, Any]:
        return {"kind": "artifact", "also": list(self.also)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(GateBase):
    """The artifact's size in bytes (or a text such as "1MiB"), both ends included. In characters: `min_characters`."""

    min: int | str = 1
    max: int | str | None = None
    min_characters: int = 0
    """Counted without leading and trailing white space."""
    file: str | None = None

    def __post_init__(self) -> None:
        GateBase.__post_init__(self)
        object.__setattr__(self, "min", parse_size(self.min, what="min"))
        if self.max is not None:
            object.__setattr__(self, "max", parse_size(self.max, what="max"))
            if int(self.max) < int(self.min):
                raise SpecError(f"max={self.max} is less than min={self.min}", hint="nothing would pass")

    async def objection(self, work: Work, bench: Bench) -> str | None:
        name = self.file or work.output
        sizes = [file.size for file in work.files if file.path == name]
        if not sizes:
            return work.explain_lack(name)
        if sizes[0] < int(self.min):
            return f"{name} has {sizes[0]} bytes, less than {self.min}"
        if self.max is not None and sizes[0] > int(self.max):
            return f"{name} has {sizes[0]} bytes, more than {self.max}"
        if self.min_characters:
            count = len(work.read_text(self.file).strip())
            if count < self.min_characters:
                return f"{name} has {count} characters, less than {self.min_characters}"
        return None

    def describe_more(self) -> dict[str, Any]:
        return {
            "kind": "size", "min": self.min, "max": self.max, "min_characters": self.min_characters, "file": self.file,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonGate(GateBase):
    """A function, async or not: it gets a `Work` and gives True, False, or the reason why not as a text.

    An empty text passes. A round without an artifact does not pass, and the function is not called.
    An exception is the judge's failure.
    """

    function: Callable[[Work], Any] = field(kw_only=False)

    def __post_init__(self) -> None:
        GateBase.__post_init__(self)
        check_callable(self.function, what="gate")

    @property
    def name(self) -> str:
        return self.label or getattr(self.function, "__name__", "function")

    async def objection(self, work: Work, bench: Bench) -> str | None:
        if not work.has_artifact:
            return work.explain_lack()
        said = await call(self.function, work, timeout=bench.timeout, who=self.name)
        if said is None or not isinstance(said, bool | str):
            raise JudgeError(f"it returned {said!r:.100}", hint="return True, False, or the reason as a text")
        if isinstance(said, str):
            return said or None
        return None if said else "not passed"

    def describe_more(self) -> dict[str, Any]:
        return {"kind": "python", **describe_function(self.function)}
