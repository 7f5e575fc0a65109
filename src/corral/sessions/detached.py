"""Detached programs: recorded programs that outlive the process that started them, by number.

Behind `corral sandbox exec --detach` and `corral sandbox logs`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from corral.errors import SandboxGoneError
from corral.protocol import Command


@dataclass(frozen=True, slots=True)
class DetachedProgram:
    """What a list says of a detached program."""

    number: int
    text: str
    """The command, as its caller wrote it."""
    running: bool
    exit_code: int | None
    """None while it runs, and if it ended together with its sandbox."""
    argv: tuple[str, ...] | None = None
    """None if the backend keeps the text alone."""
    record_bytes: int | None = None
    """How much of the disk its record takes. None if a service has it."""


P = TypeVar("P", bound=DetachedProgram)


@runtime_checkable
class RunsDetached(Protocol):
    """A backend that keeps the records of programs after the client that started them has gone."""

    async def start_detached(
        self, sandbox_id: str, command: Command, *, cwd: str | None, env: Mapping[str, str], user: str | None,
        timeout: float | None,
    ) -> int:  # fmt: skip
        """Start a program; gives its number. It has no input. Raises: as `exec`."""

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        """Those that run or have run, oldest first. Raises: SandboxGoneError."""

    def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        """What the program of that number has printed (None: the one started last); with `follow`, until it ends.

        Raises:
            SandboxGoneError: there is no such program.
        """


def choose(programs: Sequence[P], sandbox_id: str, number: int | None) -> P:
    """The program of that number, or the one that was started last. Raises: SandboxGoneError."""
    if not programs:
        raise SandboxGoneError(
            f"no background program found in {sandbox_id!r}",
            sandbox_id=sandbox_id,
            hint=f"`corral sandbox exec -d {sandbox_id} -- …` starts one",
        )
    for program in programs:
        if program.number == number:
            return program
    if number is None:
        return programs[-1]
    hint = f"`corral sandbox logs {sandbox_id} --list` lists the programs"
    raise SandboxGoneError(f"there is no program {number} in {sandbox_id!r}", sandbox_id=sandbox_id, hint=hint)
