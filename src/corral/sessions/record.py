"""Recorded programs: their output is kept, and any number may listen, from the beginning, also those who come later.

Shell sessions, terminals and interpreters stand on this. `SandboxBase` gives every backend records in the memory of
this process; a backend whose sandboxes outlive us keeps them where they outlive us as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from corral.protocol import Command, PathLike
from corral.results import ExecResult

if TYPE_CHECKING:
    from corral.sessions.session import ShellSession
    from corral.sessions.terminal import Terminal

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


class Recorded(Protocol):
    """A program with a record. It outlives the handle, and where the backend can, this process."""

    @property
    def name(self) -> str:
        """Its name in the sandbox."""

    @property
    def pid(self) -> int:
        """Its number inside."""

    async def write(self, data: bytes | str) -> None:
        """Feed its standard input or terminal. Raises: ExecError when it has closed it or ended."""

    async def close_stdin(self) -> None:
        """End of input."""

    async def signal(self, number: int) -> None:
        """Signal its process group. A program that has ended is left alone."""

    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the terminal's size. Raises: ExecError when it has none."""

    async def note(self, data: bytes) -> int:
        """Write an entry of one's own into the record, in order with the output; gives its offset.

        Raises:
            ExecError: too long, or there are too many (`MAX_NOTES_BYTES`).
        """

    def entries(self, *, since: int = 0, follow: bool = True) -> AsyncIterator[Entry]:
        """The record from an offset on; with `follow`, until the program has ended and all has been told.

        Raises:
            SandboxGoneError: the sandbox ended meanwhile.
        """

    async def notes(self) -> tuple[Entry, ...]:
        """The notes until now, and the end if it has come, without going over the output. Raises: SandboxGoneError."""

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end; the output is in the record alone. Raises: TimeoutError, SandboxGoneError."""

    async def kill(self) -> None:
        """End it with all that it started. Idempotent."""

    async def end_rest(self) -> None:
        """End what a program that has ended left running, in whatever session. One that runs is left alone."""

    async def forget(self) -> None:
        """End it, and delete its record. What it left running before, when it ended, runs on."""


@runtime_checkable
class CanRecord(Protocol):
    """The power to run recorded programs. Every sandbox built on `SandboxBase` has it."""

    async def start_recorded(
        self,
        command: Command,
        *,
        name: str,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        note: bytes | None = None,
    ) -> Recorded:
        """Start one. A `note` is its record's first entry, there as soon as the record is.

        Raises: as `exec`; NameTakenError when there is one of that name.
        """

    async def find_recorded(self, name: str) -> Recorded:
        """A handle to one, running or ended. Raises: NotRecordedError when there is none."""

    async def list_recorded(self) -> Sequence[RecordInfo]:
        """All that are not forgotten."""


@runtime_checkable
class CanSession(Protocol):
    """Shells that stay, and run command after command. Every sandbox built on `SandboxBase` has them."""

    async def open_session(
        self,
        name: str,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
    ) -> ShellSession:
        """Start a shell; of its output, `limit_bytes` are kept. See `ShellSession.open`."""

    async def find_session(self, name: str) -> ShellSession:
        """One that was opened before, of a detached sandbox also by another process. See `ShellSession.attach`."""

    async def list_sessions(self) -> Sequence[RecordInfo]:
        """All that were not deleted."""


@runtime_checkable
class CanTerminal(Protocol):
    """Terminals that stay, and that anybody may watch. Every sandbox with the power `pty` has them."""

    async def open_pty(
        self,
        name: str,
        command: Command | None = None,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        rows: int = 24,
        columns: int = 80,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
    ) -> Terminal:
        """Start a login shell, or a command, on a new terminal. See `Terminal.open`."""

    async def find_pty(self, name: str) -> Terminal:
        """One that was opened before. See `Terminal.attach`."""

    async def list_ptys(self) -> Sequence[RecordInfo]:
        """All that were not deleted."""
