"""The settings of a contest: timeouts, how much is taken out of sandboxes, how many run at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from corral.errors import SpecError
from corral.forge.numbers import check_number
from corral.spec import Resources, check_count, parse_size

Phase = Literal["create", "place", "run", "collect", "judge"]
"""The phases of an attempt: create the sandbox, copy the files, run, collect artifacts, judge."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds for each phase of one attempt. Only `run` is the candidate's own."""

    create: float = 120.0
    place: float = 60.0
    run: float = 60.0
    collect: float = 60.0
    judge: float = 120.0

    def __post_init__(self) -> None:
        for name in ("create", "place", "run", "collect", "judge"):
            check_number(getattr(self, name), what=f"timeout {name}", kind="time", hint="give seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """How much is taken out of an attempt's sandbox. What exceeds a limit is left there and reported."""

    files: int = 1000
    file_bytes: int | str = 64 * MIB
    total_bytes: int | str = 256 * MIB
    log_bytes: int | str = MIB
    """How much of what a candidate prints is passed on and kept, for each attempt."""

    def __post_init__(self) -> None:
        for name in ("file_bytes", "total_bytes", "log_bytes"):
            object.__setattr__(self, name, parse_size(getattr(self, name), what=name))
        for name in ("files", "file_bytes", "total_bytes", "log_bytes"):
            check_count(getattr(self, name), what=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that are the same for every candidate."""

    backend: str = "embedded"
    """Only its name; the contest has the object."""
    resources: Resources = field(default_factory=lambda: Resources(cpus=1.0).as_usual())
    timeouts: Timeouts = field(default_factory=Timeouts)
    take: Take = field(default_factory=Take)
    output: str = "artifact.md"
    """The name of the file that a candidate has to write."""
    jobs: int | None = None
    """How many run at once; None: as many as processors and memory allow."""
    repeat: int = 1
    seed: int = 0
    """Shuffles the order of starts."""
    pin: bool = False
    """Give each run a processor of its own."""
    retries: int = 1
    """How often an attempt is retried if its sandbox could not be created, or failed."""
    setup: str = ""
    """Text for /bin/sh, run once in the base that every candidate starts from."""
    meter_seconds: float = 0.5
    """Seconds between measurements of a running candidate; 0: never."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("resources", Resources),
            ("timeouts", Timeouts),
            ("take", Take),
            ("setup", str),
            ("pin", bool),
        ):
            if not isinstance(getattr(self, name), kind):
                raise SpecError(
                    f"{name}={getattr(self, name)!r} is not {kind.__name__}", hint=f"give a {kind.__name__}"
                )
        hint = "give seconds, or 0 for never"
        check_number(self.meter_seconds, what="meter_seconds", kind="time", hint=hint, least=0)
        check_count(self.repeat, what="repeat")
        check_count(self.retries, what="retries", least=0)
        if self.jobs is not None:
            check_count(self.jobs, what="jobs")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise SpecError(f"seed={self.seed!r} is not a seed", hint="give a whole number")
        check_output_name(self.output)


def check_output_name(name: str) -> str:
    """A plain file name. Raises: SpecError."""
    try:
        good = isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & {*name}
        good = good and len(name.encode("utf-8", "surrogateescape")) <= 255
    except UnicodeEncodeError:  # an unpaired surrogate
        good = False
    if not good:
        raise SpecError(f"output={name!r} is not a file name", hint="such as artifact.md, without a folder")
    return name
