"""SessionsBase: what every sandbox has of recorded programs, shell sessions and terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from corral.base.docstrings import Documented
from corral.base.process import ProcessBase
from corral.protocol import AsyncSandbox, Command, PathLike
from corral.sessions.record import DEFAULT_RECORD_BYTES, CanRecord, CanSession, CanTerminal, Recorded, RecordInfo
from corral.sessions.records import BACKLOG_BYTES, MemoryRecorded, RecordBook, check_limit, check_name
from corral.sessions.session import ShellSession
from corral.sessions.session import prefix as session_prefix
from corral.sessions.terminal import Terminal
from corral.sessions.terminal import prefix as terminal_prefix

if TYPE_CHECKING:
    from corral.sessions.session import Box


class SessionsBase(Documented, promises=(CanRecord, CanSession, CanTerminal)):
    """A part of `SandboxBase`. A backend whose sandboxes outlive this process overrides the three of `CanRecord`."""

    _records: RecordBook

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
        """Start one. A `note` is its record's first entry, there as soon as the record is."""
        check_limit(limit_bytes)
        self._records.claim(check_name(name))
        try:
            process = await cast("AsyncSandbox", self).start(
                command,
                cwd=cwd,
                env=env,
                user=user,
                timeout=timeout,
                pty=pty,
                rows=rows,
                columns=columns,
                output_limit_bytes=BACKLOG_BYTES,
            )
        except BaseException:
            self._records.drop(name)
            raise
        recorded = MemoryRecorded(
            cast("ProcessBase", process), name=name, pty=pty, limit_bytes=limit_bytes, note=note, book=self._records
        )
        self._records.fill(name, recorded)
        return recorded

    async def find_recorded(self, name: str) -> Recorded:
        """A handle to one, running or ended. Raises: NotRecordedError when there is none."""
        return self._records.find(name)

    async def list_recorded(self) -> Sequence[RecordInfo]:
        """All that are not forgotten."""
        return self._records.list()

    # Sessions and terminals: see `CanSession` and `CanTerminal`.

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
        return await ShellSession.open(self._as_box(), name, cwd=cwd, env=env, user=user, limit_bytes=limit_bytes)

    async def find_session(self, name: str) -> ShellSession:
        """One that was opened before, of a detached sandbox also by another process. See `ShellSession.attach`."""
        return await ShellSession.attach(self._as_box(), name)

    async def list_sessions(self) -> Sequence[RecordInfo]:
        """All that were not deleted."""
        return await self._list_with(session_prefix)

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
        return await Terminal.open(
            self._as_box(), name, command, cwd=cwd, env=env, user=user, rows=rows, columns=columns,
            limit_bytes=limit_bytes,
        )  # fmt: skip

    async def find_pty(self, name: str) -> Terminal:
        """One that was opened before. See `Terminal.attach`."""
        return await Terminal.attach(self._as_box(), name)

    async def list_ptys(self) -> Sequence[RecordInfo]:
        """All that were not deleted."""
        return await self._list_with(terminal_prefix)

    async def _list_with(self, prefix: str) -> tuple[RecordInfo, ...]:
        return tuple(
            replace(info, name=info.name.removeprefix(prefix))
            for info in await self.list_recorded()
            if info.name.startswith(prefix)
        )

    def _as_box(self) -> Box:
        return cast("Box", self)
