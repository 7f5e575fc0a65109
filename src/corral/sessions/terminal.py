"""Named terminals: a program on a pseudo terminal, whose output is recorded from its first byte."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

from corral.base.command import with_bash
from corral.errors import ExecError, NameTakenError, NotRecordedError
from corral.protocol import Command, TerminalOptions
from corral.results import ExecResult
from corral.sessions.record import DEFAULT_RECORD_BYTES, Recorded, RecordInfo
from corral.sessions.records import check_name

if TYPE_CHECKING:
    from corral.client.sandbox import AsyncSandbox

prefix = "pty:"
"""The prefix of terminals' names as recorded programs."""


@dataclass(frozen=True, slots=True)
class TerminalInfo:
    """A terminal in a list."""

    name: str
    rows: int
    columns: int
    cwd: str | None
    """The requested working folder; None is the sandbox's own."""
    env: dict[str, str]
    started: float
    running: bool
    exit_code: int | None = None
    reason: str | None = None


class Terminal:
    """A recorded program on a terminal. It outlives this handle, and this process if the backend supports it."""

    def __init__(self, recorded: Recorded, box: AsyncSandbox) -> None:
        self._recorded = recorded
        self._box = box

    @classmethod
    async def open(
        cls,
        box: AsyncSandbox,
        name: str,
        command: Command | None = None,
        *,
        limit_bytes: int = DEFAULT_RECORD_BYTES,
        **options: Unpack[TerminalOptions],
    ) -> Self:
        """Start a login shell, or a command, on a new terminal.

        Raises:
            NameTakenError: a terminal of that name already exists.
            InvalidCommandError, WorkdirError: as `exec`.
        """
        cwd, env = options.get("cwd"), dict(options.get("env") or {})
        size = {"rows": options.get("rows", 24), "columns": options.get("columns", 80)}
        options["env"] = {"TERM": "xterm-256color", **env}
        about = {**size, "cwd": None if cwd is None else str(cwd), "env": env}
        try:
            recorded = await box.start_recorded(
                with_bash("-l", "-i") if command is None else command,
                name=check_name(name, prefix=prefix),
                pty=True,
                limit_bytes=limit_bytes,
                note=json.dumps({"terminal": about}).encode(),
                **options,
            )
        except NameTakenError as error:
            raise NameTakenError(f"a terminal named {name!r} already exists", op="open_pty") from error
        return cls(recorded, box)

    @classmethod
    async def attach(cls, box: AsyncSandbox, name: str) -> Self:
        """A handle to an open terminal, also of another process. Raises: NotRecordedError."""
        try:
            return cls(await box.find_recorded(prefix + name), box)
        except NotRecordedError as error:
            raise NotRecordedError(f"terminal {name!r:.200} not found", op="find_pty") from error

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return self._recorded.name.removeprefix(prefix)

    @property
    def pid(self) -> int:
        """The program's process id inside."""
        return self._recorded.pid

    async def output(self, *, from_start: bool = True) -> AsyncIterator[bytes]:
        """The terminal's output, from its beginning or from now on, until the program ends. For any number of readers.

        Raises:
            SandboxGoneError: the sandbox was deleted meanwhile.
        """
        since = 0
        if not from_start:
            since = (await self._describe()).next_offset
        async for entry in self._recorded.entries(since=since):
            if entry.kind == "stdout":
                yield entry.data

    async def write(self, data: bytes | str) -> None:
        """Send input. Raises: ExecError if the program has ended."""
        await self._recorded.write(data)

    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the size and notify the program. Raises: ExecError if it has ended."""
        await self._recorded.resize(rows=rows, columns=columns)
        with contextlib.suppress(ExecError):  # the size is set; recording it may fail
            await self._recorded.note(json.dumps({"terminal": {"rows": rows, "columns": columns}}).encode())

    async def info(self, found: RecordInfo | None = None) -> TerminalInfo:
        """Its size, how it was opened, and whether and how it has ended. With an entry of a list, without another
        request.

        Raises:
            NotRecordedError: after `delete`.
        """
        about: dict[str, Any] = {"rows": 24, "columns": 80, "cwd": None, "env": {}}
        end: dict[str, Any] = {}
        for entry in await self._recorded.notes():
            if entry.kind == "note":
                about.update(entry.content.get("terminal", {}))
            elif entry.kind == "end":
                end = entry.content
        found = found or await self._describe()
        return TerminalInfo(
            name=self.name,
            rows=about["rows"],
            columns=about["columns"],
            cwd=about["cwd"],
            env=about["env"],
            started=found.started,
            running=found.running,
            exit_code=end.get("exit_code"),
            reason=end.get("reason"),
        )

    async def _describe(self) -> RecordInfo:
        for info in await self._box.list_recorded():
            if info.name == self._recorded.name:
                return info
        raise NotRecordedError(f"terminal {self.name!r} not found: it was closed", op="info")

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end; the result has the exit code and the reason. Raises: TimeoutError, SandboxGoneError."""
        return await self._recorded.wait(timeout=timeout)

    async def kill(self) -> None:
        """Kill the program with its process tree; its output is kept. Idempotent."""
        await self._recorded.kill()
        await self._recorded.end_rest()  # also if its shell has ended and left processes behind

    async def delete(self) -> None:
        """Kill it, and delete its output. Idempotent."""
        await self._recorded.forget()
