"""Detached programs: recorded programs that outlive the process that started them, by number.

Behind `corral sandbox exec --detach` and `corral sandbox logs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from corral.errors import SandboxGoneError


@dataclass(frozen=True, slots=True)
class DetachedProgram:
    """A detached program in a list."""

    number: int
    text: str
    """The command, as its caller wrote it."""
    running: bool
    exit_code: int | None
    """None while it runs, and if it ended together with its sandbox."""
    argv: tuple[str, ...] | None = None
    """None if the backend keeps only the text."""
    record_bytes: int | None = None
    """The disk use of its record. None if a service has it."""


P = TypeVar("P", bound=DetachedProgram)


def choose(programs: Sequence[P], sandbox_id: str, number: int | None) -> P:
    """The program of that number, or the latest one. Raises: SandboxGoneError."""
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
    raise SandboxGoneError(f"program {number} not found in {sandbox_id!r}", sandbox_id=sandbox_id, hint=hint)
