"""Recorded programs of a detached sandbox: its keeper runs them, and we read their records from its folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import cast

from corral.backends.embedded import seam
from corral.backends.embedded.process import PEAK_NOTE, REST_SECONDS, START_SECONDS, read_reason
from corral.backends.embedded.seam import exec_error, mapped
from corral.base.process import Clear, as_bytes, check_signal, no_terminal, stdin_closed
from corral.concurrency.waiting import breathe, in_time, still_running
from corral.engine import wire
from corral.engine.errors import GoneError
from corral.engine.recordfile import Frame, RecordReader
from corral.errors import CorralError, EngineFaultError, ExecError, NotRecordedError, SandboxGoneError
from corral.inside.nolinks import opened
from corral.inside.starting import set_window
from corral.results import ExecResult, Usage
from corral.sessions.record import Entry, EntryKind, Recorded, RecordInfo
from corral.sessions.records import name_taken, not_recorded

Ask = Callable[[wire.Message], Awaitable[tuple[wire.Message, list[int]]]]
"""Sends a request to the keeper; returns its answer, and descriptors that the caller closes."""


class EmbeddedRecorded(Recorded):
    """A program whose record its keeper writes."""

    def __init__(
        self, ask: Ask, folder: Path, about: wire.Message, *, sandbox_id: str, clear: Clear | None = None
    ) -> None:
        self._ask = ask
        self._clear = clear
        self._number = int(about["number"])
        self._name = str(about["name"])
        self._pid = int(about["pid"])
        self._pty = bool(about["pty"])
        self._folder = folder / "records" / str(self._number)
        self._sandbox_id = sandbox_id

    async def write(self, data: bytes | str) -> None:
        if not await seam.write_stdin(await self._input("write"), as_bytes(data)):
            raise stdin_closed(self._sandbox_id)

    async def close_stdin(self) -> None:
        if self._pty:
            with contextlib.suppress(ExecError):
                await self.write(b"\x04")
        else:
            await self._do("close_stdin")

    async def signal(self, number: int) -> None:
        check_signal(number, sandbox_id=self._sandbox_id)
        await self._do("signal", number_of_signal=int(number))

    async def resize(self, *, rows: int, columns: int) -> None:
        if not self._pty:
            raise no_terminal(self._sandbox_id)
        with opened(await self._input("resize")) as descriptor:
            try:
                set_window(descriptor, rows, columns)
            except OSError as error:
                raise no_terminal(self._sandbox_id) from error

    async def note(self, data: bytes) -> int:
        return int((await self._do("note", data=bytes(data).decode("latin-1")))["offset"])

    async def entries(self, *, since: int = 0, follow: bool = True) -> AsyncGenerator[Entry, None]:
        reader = RecordReader(self._folder, since)
        running = True
        try:
            while True:
                try:
                    frames = reader.read()
                except FileNotFoundError:
                    raise await self._missing() from None
                for entry in map(_entry, frames):
                    yield entry
                    if entry.kind == "end":
                        return
                if frames:
                    await breathe()  # a long record must not block this event loop
                elif follow and running:
                    running = bool((await self._do("listen", since=reader.offset)).get("running", True))
                    await breathe()  # all followers are woken by the same entry
                else:
                    return  # also if `since` is beyond the end
        finally:
            reader.close()

    async def notes(self) -> tuple[Entry, ...]:
        frames = await asyncio.to_thread(RecordReader(self._folder, 0).notes)  # there may be 32 MiB of them
        return tuple(map(_entry, frames))

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        async with in_time(timeout, still_running):
            result = _read_end((await self._do("wait"))["end"])
        clear, self._clear = self._clear, None
        if clear is not None:
            with contextlib.suppress(CorralError):  # the sandbox is gone or paused: how the program ended is known
                await clear()
        return result

    async def kill(self) -> None:
        try:
            await self._do("kill")
            await self.wait()
        except (NotRecordedError, SandboxGoneError):
            return  # it is deleted already

    async def end_rest(self) -> None:
        with contextlib.suppress(NotRecordedError, SandboxGoneError, TimeoutError):
            async with asyncio.timeout(REST_SECONDS):  # init may not answer
                await self._do("end_rest")

    async def forget(self) -> None:
        await self.kill()
        with contextlib.suppress(NotRecordedError, SandboxGoneError):
            await self._do("forget")

    async def _input(self, operation: str) -> int:
        with mapped(sandbox_id=self._sandbox_id, op=operation):
            answer, descriptors = await self._ask({"op": "record", "do": "stdin", "number": self._number})
        if len(descriptors) != 1:
            wire.close_all(descriptors)
            check_answer(answer, name=self._name, sandbox_id=self._sandbox_id, op=operation)
            raise stdin_closed(self._sandbox_id)
        return descriptors[0]

    async def _do(self, operation: str, **details: object) -> wire.Message:
        about = {"do": operation, "number": self._number, **details}
        return await _request(self._ask, about, name=self._name, sandbox_id=self._sandbox_id, op=operation)

    async def _missing(self) -> Exception:
        """The error for a record without a folder: it was forgotten, or the sandbox is gone."""
        try:
            await self._do("find")
        except (NotRecordedError, SandboxGoneError) as error:
            return error
        return EngineFaultError("a record is missing", sandbox_id=self._sandbox_id, op="entries")


async def start(
    ask: Ask, folder: Path, program: wire.Message, *, name: str, limit_bytes: int, note: bytes | None, sandbox_id: str,
    clear: Clear | None,
) -> EmbeddedRecorded:  # fmt: skip
    """Start a program; `wait` calls `clear` after its end. Raises: NameTakenError; as `exec`; SandboxGoneError."""
    message: wire.Message = {
        "op": "record",
        "do": "start",
        "name": name,
        "program": program,
        "pty": program["pty"],
        "limit": limit_bytes,
        "note": None if note is None else note.decode("latin-1"),
    }
    with mapped(sandbox_id=sandbox_id, op="start_recorded"):
        try:
            async with asyncio.timeout(START_SECONDS):
                answer, descriptors = await ask(message)
        except TimeoutError as error:
            raise GoneError("the program did not start before the timeout") from error
    wire.close_all(descriptors)
    if "error" in answer and answer["error"] not in ("name_taken", "too_many", "refused"):
        raise exec_error(answer, cwd=str(program["cwd"]), sandbox_id=sandbox_id)
    about = check_answer(answer, name=name, sandbox_id=sandbox_id, op="start_recorded")
    return EmbeddedRecorded(ask, folder, about, sandbox_id=sandbox_id, clear=clear)


async def find(ask: Ask, folder: Path, name: str, *, sandbox_id: str) -> EmbeddedRecorded:
    """A recorded program by name. Raises: NotRecordedError, SandboxGoneError."""
    about = await _request(ask, {"do": "find", "name": name}, name=name, sandbox_id=sandbox_id, op="find_recorded")
    return EmbeddedRecorded(ask, folder, about, sandbox_id=sandbox_id)


async def list_all(ask: Ask, *, sandbox_id: str) -> list[RecordInfo]:
    """All recorded programs, oldest first. Raises: SandboxGoneError."""
    found: list[RecordInfo] = []
    after = 0
    while True:
        about = {"do": "list", "after": after}
        page = (await _request(ask, about, name="", sandbox_id=sandbox_id, op="list_recorded"))["records"]
        if not page:
            return found
        for about in page:
            after = int(about["number"])
            found.append(
                RecordInfo(
                    name=str(about["name"]),
                    running=bool(about["running"]),
                    started=float(about["started"]),
                    pty=bool(about["pty"]),
                    first_offset=int(about["first_offset"]),
                    next_offset=int(about["next_offset"]),
                )
            )


def _entry(frame: Frame) -> Entry:
    return Entry(frame.offset, cast("EntryKind", frame.kind), frame.data, frame.at, frame.next_offset)


async def _request(ask: Ask, about: wire.Message, *, name: str, sandbox_id: str, op: str) -> wire.Message:
    """Returns the keeper's answer to a request about records. Raises: as `check_answer`; SandboxGoneError."""
    with mapped(sandbox_id=sandbox_id, op=op):
        answer, descriptors = await ask({"op": "record", **about})
    wire.close_all(descriptors)
    return check_answer(answer, name=name, sandbox_id=sandbox_id, op=op)


def check_answer(answer: wire.Message, *, name: str, sandbox_id: str, op: str) -> wire.Message:
    """Returns a keeper's answer. Raises: its error, if it is a refusal."""
    code, text = answer.get("error"), str(answer.get("text", ""))
    if code is None:
        return answer
    if code == "not_recorded":
        raise not_recorded(name, sandbox_id=sandbox_id, op=op)
    if code == "name_taken":
        raise name_taken(name, sandbox_id=sandbox_id)
    raise ExecError(text, sandbox_id=sandbox_id, op=op)


def _read_end(about: wire.Message) -> ExecResult:
    try:
        reason = read_reason(about["reason"])
    except ValueError as error:
        raise EngineFaultError(str(error), op="wait") from error
    usage = Usage(
        wall_seconds=float(about.get("wall_seconds", 0.0)),
        cpu_seconds=about.get("cpu_seconds"),
        peak_memory_bytes=about.get("peak_memory_bytes") or None,
        notes=(PEAK_NOTE,),
    )
    return ExecResult(
        int(about["exit_code"]), reason, usage, signal=about.get("signal"), limit=about.get("limit") or None
    )
