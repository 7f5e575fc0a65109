"""Recorded programs: their output is kept, and can be read from its beginning by any number of readers, at any time.

Shell sessions, terminals and interpreters are built on this. `AsyncSandbox` keeps records in the memory of this
process; a backend whose sandboxes outlive the process stores them so that they outlive it, too.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

from corral.results import ExecResult

EntryKind = Literal["stdout", "stderr", "note", "end"]

DEFAULT_RECORD_BYTES = 16 * 1024 * 1024
"""How much output a record keeps. Beyond that, the oldest output is dropped; notes stay."""
MAX_NOTES_BYTES = 32 * 1024 * 1024
"""How many bytes of notes a record keeps; more are refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of a record: output (a terminal's is all stdout), a `note` that a client wrote, or the `end`.

    `end` is the last entry: a JSON object with `exit_code`, `reason` and `signal`.
    """

    offset: int
    """Where it begins in the record. Offsets only grow, so a gap means that output was dropped."""
    kind: EntryKind
    data: bytes
    at: float
    """When it was recorded, as Unix time."""
    next_offset: int
    """Where to continue reading."""

    @property
    def content(self) -> dict[str, Any]:
        """The JSON object of a note or of the end; empty if it is none, since another version may have written it."""
        try:
            found = json.loads(self.data)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A recorded program in a list."""

    name: str
    running: bool
    started: float
    pty: bool
    first_offset: int
    """The offset of the oldest entry that is kept."""
    next_offset: int
    """Where the next entry will begin: to read from now on."""


class Recorded(ABC):
    """A program with a record. It outlives this handle, and this process if the backend supports it."""

    _name: str
    _pid: int

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return self._name

    @property
    def pid(self) -> int:
        """Its process id inside."""
        return self._pid

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Write to its stdin or terminal. Raises: ExecError if it has closed its stdin, or has ended."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close its stdin. On a terminal: send the end-of-file character."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Signal its process group. Does nothing if the program has ended."""

    @abstractmethod
    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the terminal's size. Raises: ExecError if it has no terminal."""

    @abstractmethod
    async def note(self, data: bytes) -> int:
        """Add a note to the record, in order with the output; returns its offset.

        Raises:
            ExecError: it is too long, or there are too many (`MAX_NOTES_BYTES`).
        """

    @abstractmethod
    def entries(self, *, since: int = 0, follow: bool = True) -> AsyncGenerator[Entry, None]:
        """The record from an offset on; with `follow`, until its end. Raises: SandboxGoneError."""

    @abstractmethod
    async def notes(self) -> tuple[Entry, ...]:
        """The notes so far, and the end if the program has ended, without the output. Raises: SandboxGoneError."""

    @abstractmethod
    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end. The result has no output: read the record. Raises: TimeoutError, SandboxGoneError."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it with its process tree. Idempotent."""

    @abstractmethod
    async def end_rest(self) -> None:
        """Kill processes that an ended program left running, in any session. Does nothing while it runs."""

    @abstractmethod
    async def forget(self) -> None:
        """Kill it, and delete its record. Processes that an ended program left running are not killed."""
