"""Recorded programs in the memory of this process, for every backend that does not keep records itself.

The thread that reads the program writes the record, and any number of readers in any event loop read it. It is bounded,
and does not wait for readers: one that is slower than the program finds a gap where old output was dropped.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from heapq import merge
from operator import attrgetter

from corral.base.process import AsyncProcess, Ending
from corral.errors import ExecError, InvalidCommandError, NameTakenError, NotRecordedError
from corral.results import TIMEOUT_EXIT_CODE, ExecResult, OutputChunk
from corral.sessions.record import DEFAULT_RECORD_BYTES, MAX_NOTES_BYTES, Entry, EntryKind, Recorded, RecordInfo

BACKLOG_BYTES = 4 * 1024 * 1024
"""How much a program may print before recording starts."""
_ENTRY_BYTES = 64 * 1024
_ENTRY_COST = 256
"""What an entry costs besides its bytes, so that a program that prints single letters does not cost much more."""
_BATCH = 64
_MAX_NAME = 200
_offset = attrgetter("offset")


def check_name(name: str, *, prefix: str = "") -> str:
    """The name of a recorded program, with the prefix of its kind. Raises: InvalidCommandError."""
    most = _MAX_NAME - len(prefix)
    if not isinstance(name, str) or not 1 <= len(name) <= most or not name.isprintable():
        raise InvalidCommandError(f"{name!r:.80} is not a valid name", hint=f"give 1 to {most} printable characters")
    return prefix + name


def describe_end(ending: Ending) -> bytes:
    """The last entry of a record."""
    code = TIMEOUT_EXIT_CODE if ending.reason == "timeout" else ending.exit_code
    return json.dumps({"exit_code": code, "reason": ending.reason, "signal": ending.signal}).encode()


class MemoryLog:
    """The entries of one record. Any thread may write and read."""

    def __init__(self, limit_bytes: int = DEFAULT_RECORD_BYTES) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._output: list[Entry] = []
        self._dropped = 0  # entries at the front of the list that are dropped, but not removed yet
        self._output_cost = 0
        self._notes: list[Entry] = []  # and the end: they stay when output is dropped
        self._notes_cost = 0
        self._next = 0
        self._over = False
        self._failure: BaseException | None = None
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        """The readers that wait for the next entry, each in its event loop."""

    def bounds(self) -> tuple[int, int]:
        """The offset of the oldest entry that is kept, and of the next one."""
        with self._lock:
            oldest = [*self._output[self._dropped : self._dropped + 1], *self._notes[:1]]
            return min((entry.offset for entry in oldest), default=self._next), self._next

    def add_output(self, chunk: OutputChunk) -> None:
        """Add a piece of output."""
        now = time.time()
        with self._lock:
            if self._over:
                return
            for start in range(0, len(chunk.data), _ENTRY_BYTES):
                entry = self._make(chunk.stream, chunk.data[start : start + _ENTRY_BYTES], now)
                self._output.append(entry)
                self._output_cost += len(entry.data) + _ENTRY_COST
            self._trim()
        self._tell()

    def add_note(self, data: bytes) -> int:
        """Add a note; returns its offset. Raises: ExecError if there are too many."""
        with self._lock:
            cost = len(data) + _ENTRY_COST
            if self._over:
                raise ExecError("the program has ended, and its record was deleted", op="note")
            if self._notes_cost + cost > MAX_NOTES_BYTES:
                raise ExecError("too many notes in this record", op="note", hint="forget it and start a new one")
            entry = self._make("note", data, time.time())
            self._notes.append(entry)
            self._notes_cost += cost
        self._tell()
        return entry.offset

    def notes(self) -> tuple[Entry, ...]:
        """The notes so far, and the end."""
        with self._lock:
            return tuple(self._notes)

    def finish(self, ending: Ending | BaseException) -> None:
        """The program has ended, or the whole sandbox. Only the first call counts."""
        with self._lock:
            if self._over:
                return
            if isinstance(ending, Ending):
                self._notes.append(self._make("end", describe_end(ending), time.time()))
            else:
                self._failure = ending
            self._over = True
        self._tell()

    async def entries(self, *, since: int, follow: bool) -> AsyncGenerator[Entry, None]:
        """The record from an offset on; with `follow`, until its end."""
        while True:
            news = asyncio.Event()
            reader = asyncio.get_running_loop(), news
            with self._lock:
                batch = self._read(since)
                if not batch and follow and not self._over:
                    self._waiting.add(reader)
                over = self._over or not follow
            for entry in batch:
                since = entry.next_offset
                yield entry
            if batch:
                continue
            if over:
                break
            try:
                await news.wait()
            finally:
                with self._lock:
                    self._waiting.discard(reader)
        if follow and self._failure is not None:
            raise self._failure

    def _make(self, kind: EntryKind, data: bytes, at: float) -> Entry:
        offset, self._next = self._next, self._next + len(data) + 1
        return Entry(offset, kind, data, at, self._next)

    def _trim(self) -> None:
        while self._output_cost > self._limit and self._dropped < len(self._output) - 1:
            self._output_cost -= len(self._output[self._dropped].data) + _ENTRY_COST
            self._dropped += 1
        if self._dropped > 1024 or self._dropped * 2 > len(self._output):
            del self._output[: self._dropped]
            self._dropped = 0

    def _read(self, since: int) -> list[Entry]:
        first = max(self._dropped, bisect.bisect_left(self._output, since, key=_offset))
        note = bisect.bisect_left(self._notes, since, key=_offset)
        both = merge(self._output[first : first + _BATCH], self._notes[note : note + _BATCH], key=_offset)
        return list(both)[:_BATCH]

    def _tell(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, news in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(news.set)


class MemoryRecorded(Recorded):
    """A program whose record is in the memory of this process."""

    def __init__(
        self, process: AsyncProcess, *, name: str, pty: bool, limit_bytes: int, note: bytes | None, book: RecordBook
    ) -> None:
        self._process = process
        self._name, self._pid = name, process.pid
        self._pty = pty
        self._started = time.time()
        self._book = book
        self._log = MemoryLog(limit_bytes)
        if note is not None:
            self._log.add_note(note)
        process.record(self._log.add_output, self._log.finish)

    async def write(self, data: bytes | str) -> None:
        if self._process.ended:
            raise ExecError("the program has ended", op="write")
        await self._process.write(data)

    async def close_stdin(self) -> None:
        if not self._process.ended:
            await self._process.close_stdin()

    async def signal(self, number: int) -> None:
        await self._process.signal(number)

    async def resize(self, *, rows: int, columns: int) -> None:
        await self._process.resize(rows=rows, columns=columns)

    async def note(self, data: bytes) -> int:
        return self._log.add_note(bytes(data))

    def entries(self, *, since: int = 0, follow: bool = True) -> AsyncGenerator[Entry, None]:
        return self._log.entries(since=since, follow=follow)

    async def notes(self) -> tuple[Entry, ...]:
        return self._log.notes()

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        result = await self._process.wait(timeout=timeout)
        return replace(
            result, stdout_bytes=b"", stderr_bytes=b"", output_bytes=b"", truncated=False,
            stdout_total_bytes=0, stderr_total_bytes=0,
        )  # fmt: skip

    async def kill(self) -> None:
        await self._process.aclose()

    async def end_rest(self) -> None:
        await self._process.end_rest()

    async def forget(self) -> None:
        await self.kill()
        self._book.drop(self._name)

    def describe(self) -> RecordInfo:
        """Its entry in a list."""
        first, following = self._log.bounds()
        return RecordInfo(self._name, not self._process.ended, self._started, self._pty, first, following)


class RecordBook:
    """The recorded programs of one sandbox handle, by name. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, MemoryRecorded | None] = {}

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._records

    def claim(self, name: str) -> None:
        """Reserve a name while its program is being started. Raises: NameTakenError."""
        with self._lock:
            if name in self._records:
                raise name_taken(name)
            self._records[name] = None

    def fill(self, name: str, recorded: MemoryRecorded) -> None:
        """Set the program of a reserved name."""
        with self._lock:
            self._records[name] = recorded

    def drop(self, name: str) -> None:
        """Release a name."""
        with self._lock:
            self._records.pop(name, None)

    def find(self, name: str) -> MemoryRecorded:
        """Raises: NotRecordedError."""
        with self._lock:
            recorded = self._records.get(name)
        if recorded is None:
            raise not_recorded(name)
        return recorded

    def list(self) -> tuple[RecordInfo, ...]:
        """All programs, running and ended, oldest first."""
        with self._lock:
            records = [recorded for recorded in self._records.values() if recorded is not None]
        return tuple(recorded.describe() for recorded in records)


def name_taken(name: str, *, sandbox_id: str | None = None) -> NameTakenError:
    """The error for a name that is in use."""
    text, hint = f"a recorded program named {name!r} already exists", "forget it, or use another"
    return NameTakenError(text, sandbox_id=sandbox_id, op="start_recorded", hint=hint)


def not_recorded(name: str, *, sandbox_id: str | None = None, op: str = "find_recorded") -> NotRecordedError:
    """The error for an unknown name."""
    return NotRecordedError(f"no recorded program named {name!r}", sandbox_id=sandbox_id, op=op)
