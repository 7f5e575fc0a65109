"""Recorded programs: their output is kept, and any number may listen, from the beginning, also those who come later.

Shell sessions, terminals and interpreters stand on this. `AsyncSandbox` keeps records in the memory of this process;
a backend whose sandboxes outlive us keeps them where they outlive us as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from corral.results import ExecResult

EntryKind = Literal["stdout", "stderr", "note", "end"]

DEFAULT_RECORD_BYTES = 16 * 1024 * 1024
"""How much output of a record is kept. Of a longer one, the oldest output is dropped; its notes stay."""
MAX_NOTES_BYTES = 32 * 1024 * 1024
"""So many bytes of notes are kept of a record; more are refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of a record. A terminal's output is all stdout; `note` is what a client wrote into the record.

    `end` is the last of a record: a JSON object with `exit_code`, `reason` and `signal`.
    """

    offset: int
    """Where it begins in the record; offsets grow and are never used again, so a gap shows that something was lost."""
    kind: EntryKind
    data: bytes
    at: float
    """When it came, as Unix time."""
    next_offset: int
    """Where to go on reading."""


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """What a list says of a recorded program."""

    name: str
    running: bool
    started: float
    pty: bool
    first_offset: int
    """The oldest entry that is still there."""
    next_offset: int
    """Where the next entry will begin: to listen from now on."""


class Recorded(ABC):
    """A program with a record. It outlives the handle, and where the backend can, this process."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in the sandbox."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its number inside."""

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Feed its standard input or terminal. Raises: ExecError when it has closed it or ended."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """End of input."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Signal its process group. A program that has ended is left alone."""

    @abstractmethod
    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the terminal's size. Raises: ExecError when it has none."""

    @abstractmethod
    async def note(self, data: bytes) -> int:
        """Write an entry of one's own into the record, in order with the output; gives its offset.

        Raises:
            ExecError: too long, or there are too many (`MAX_NOTES_BYTES`).
        """

    @abstractmethod
    def entries(self, *, since: int = 0, follow: bool = True) -> AsyncGenerator[Entry, None]:
        """The record from an offset on; with `follow`, until the program has ended and all has been told.

        Raises:
            SandboxGoneError: the sandbox ended meanwhile.
        """

    @abstractmethod
    async def notes(self) -> tuple[Entry, ...]:
        """The notes until now, and the end if it has come, without going over the output. Raises: SandboxGoneError."""

    @abstractmethod
    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end; the output is in the record alone. Raises: TimeoutError, SandboxGoneError."""

    @abstractmethod
    async def kill(self) -> None:
        """End it with all that it started. Idempotent."""

    @abstractmethod
    async def end_rest(self) -> None:
        """End what a program that has ended left running, in whatever session. One that runs is left alone."""

    @abstractmethod
    async def forget(self) -> None:
        """End it, and delete its record. What it left running before, when it ended, runs on."""
