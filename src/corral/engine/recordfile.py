"""A record on disk: framed entries in a folder, bounded, with one writer and any number of concurrent readers.

The entries are in segments, files named after the offset of their first entry. Notes are also in the file `notes`,
which is never dropped. An incomplete frame (it is being written, or the writer was killed) is ignored.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from corral.inside.nolinks import opened

_HEADER = struct.Struct("<QdIB3x")
_KINDS = ("stdout", "stderr", "note", "end")
_SUFFIX = ".seg"
_NOTES = "notes"
MAX_DATA_BYTES = 64 * 1024 * 1024
MAX_NOTES_BYTES = 32 * 1024 * 1024
MAX_BUDGET_BYTES = 256 * 1024 * 1024
"""The most that is kept of the output of one sandbox's programs; less if its disk is smaller."""
_BATCH_BYTES = 16 * 1024
"""Read at a time, and so held in memory for each reader, for long if its client does not read."""
_MIN_SEGMENT_BYTES, _MAX_SEGMENT_BYTES = 64 * 1024, 8 * 1024 * 1024


class Frame(NamedTuple):
    """One entry."""

    offset: int
    kind: str
    data: bytes
    at: float

    @property
    def next_offset(self) -> int:
        """The offset of the next entry."""
        return self.offset + _HEADER.size + len(self.data)


class DiskBudget:
    """Limits all records of one sandbox together, since they are on the host and not in the sandbox's quota. Above the
    limit, the largest record drops its oldest part."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._total = 0
        self._counted: dict[RecordWriter, int] = {}

    def update(self, record: RecordWriter) -> None:
        """Count a record that has grown or shrunk."""
        self._count(record)
        while self._total > self.limit_bytes:
            largest = max(self._counted, key=lambda each: each.droppable_bytes)
            if not largest.droppable_bytes:
                return  # nothing is left but notes and ends
            largest.drop_oldest()
            self._count(largest)

    def takes_note(self, size: int) -> bool:
        """True if there is room for another note, which is never dropped. Half of the limit is for output."""
        kept = sum(each.stored_bytes - each.droppable_bytes for each in self._counted)
        return kept + size <= self.limit_bytes // 2

    def remove(self, record: RecordWriter) -> None:
        """Forget a deleted record."""
        self._total -= self._counted.pop(record, 0)

    def _count(self, record: RecordWriter) -> None:
        now = record.stored_bytes
        self._total += now - self._counted.get(record, 0)
        self._counted[record] = now


class _Segmented:
    """A record of which one segment at most is open."""

    _file: int | None = None

    def close(self) -> None:
        """Close the open segment."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class RecordWriter(_Segmented):
    """Used by a keeper. Never fails: entries that the host's disk has no room for are missing, as if dropped."""

    def __init__(self, folder: str, limit_bytes: int, budget: DiskBudget | None = None) -> None:
        os.makedirs(folder, mode=0o700)
        self._budget = budget or DiskBudget(MAX_BUDGET_BYTES)
        self._folder = folder
        self._limit = limit_bytes
        smaller = min(limit_bytes, self._budget.limit_bytes)
        self._segment_bytes = max(_MIN_SEGMENT_BYTES, min(smaller // 8, _MAX_SEGMENT_BYTES))
        self._segments: list[tuple[int, int]] = []  # base and size of those that are complete, oldest first
        self._total = 0
        self._base = self._size = 0
        self._notes_size = 0
        self.next_offset = 0

    @property
    def stored_bytes(self) -> int:
        """The size of all its files."""
        return self._total + self._size + self._notes_size

    @property
    def droppable_bytes(self) -> int:
        """How much of that `drop_oldest` can free."""
        return self._total + self._size

    def drop_oldest(self) -> None:
        """Delete the oldest segment of output."""
        if not self._segments and self._size:
            self._turn_over()
        if self._segments:
            self._drop_segment()

    @property
    def first_offset(self) -> int:
        """The offset of the oldest entry (a note may be older)."""
        return self._segments[0][0] if self._segments else self._base

    def append(self, kind: str, data: bytes) -> int:
        """Write an entry; returns its offset."""
        offset = self.next_offset
        frame = _HEADER.pack(offset, time.time(), len(data), _KINDS.index(kind)) + data
        self.next_offset += len(frame)
        try:
            self._write(offset, frame)
            if kind in ("note", "end"):
                self._copy(frame)
        except OSError:
            self._cut()
        self._budget.update(self)
        return offset

    def takes_note(self, size: int) -> bool:
        """True if there is room for another note, in this record and in all of the sandbox together."""
        size += _HEADER.size
        return self._notes_size + size <= MAX_NOTES_BYTES and self._budget.takes_note(size)

    def delete(self) -> None:
        """Delete the record."""
        self.close()
        self._budget.remove(self)
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(os.path.join(self._folder, name))
            os.rmdir(self._folder)

    def _write(self, offset: int, frame: bytes) -> None:
        if self._file is not None and self._size + len(frame) > self._segment_bytes:
            self._turn_over()
        if self._file is None:
            path = os.path.join(self._folder, f"{offset:020d}{_SUFFIX}")
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._base, self._size = offset, 0
        if os.write(self._file, frame) != len(frame):
            raise OSError("the disk is full")
        self._size += len(frame)

    def _copy(self, frame: bytes) -> None:
        path = os.path.join(self._folder, _NOTES)
        with opened(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)) as notes:
            # At a fixed offset: over what an earlier attempt may have left incomplete on a full disk.
            if os.pwrite(notes, frame, self._notes_size) == len(frame):
                self._notes_size += len(frame)

    def _turn_over(self) -> None:
        self.close()
        self._segments.append((self._base, self._size))
        self._total += self._size
        self._base, self._size = self.next_offset, 0
        while self._segments and self._total - self._segments[0][1] >= self._limit:
            self._drop_segment()

    def _drop_segment(self) -> None:
        base, size = self._segments.pop(0)
        self._total -= size
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, f"{base:020d}{_SUFFIX}"))

    def _cut(self) -> None:
        """An entry did not fit on the disk: remove its written part, and continue in another segment with the next."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            self._turn_over()


class RecordReader(_Segmented):
    """Reads a record from an offset on, while it grows and its oldest parts are dropped."""

    def __init__(self, folder: Path, since: int) -> None:
        self._folder = folder
        self.offset = since
        self._base = 0
        self._notes_position = 0
        """How far the notes were read in place of dropped entries."""

    def read(self) -> list[Frame]:
        """The next entries; empty if there are no new ones yet. Raises: FileNotFoundError if it was deleted."""
        while True:
            if self._file is None:
                self._open()
            # Before reading: of a segment that is complete by now, all of it is then read.
            later = [base for base in self._bases() if self._file is None or base > self._base]
            frames = self._take(self._file) if self._file is not None else []
            if frames:
                self.offset = frames[-1].next_offset
                return frames
            if not later:
                return []
            # On to the next segment. If entries before it were dropped, their notes are left.
            self.close()
            notes = self._next_notes(later[0]) if self.offset < later[0] else []
            self.offset = notes[-1].next_offset if notes else max(self.offset, later[0])
            if notes:
                return notes

    def _next_notes(self, before: int) -> list[Frame]:
        """Some of the notes between our offset and another: all of them may be many megabytes."""
        try:
            file = os.open(self._folder / _NOTES, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        with opened(file):
            while True:
                size = _frame_size(os.pread(file, _HEADER.size, self._notes_position))
                frames = parse(os.pread(file, max(_BATCH_BYTES, size), self._notes_position))
                passed = [frame for frame in frames if frame.offset < before]
                self._notes_position += sum(_HEADER.size + len(frame.data) for frame in passed)
                found = [frame for frame in passed if frame.offset >= self.offset]
                if found or not passed:
                    return found

    def notes(self, most_bytes: int = -1) -> list[Frame]:
        """All notes, or those in the first bytes, and the end. Empty if the record is deleted."""
        try:
            with (self._folder / _NOTES).open("rb") as file:
                return parse(file.read(most_bytes))
        except FileNotFoundError:
            return []

    def _bases(self) -> list[int]:
        return sorted(int(name.removesuffix(_SUFFIX)) for name in os.listdir(self._folder) if name.endswith(_SUFFIX))

    def _open(self) -> None:
        """The last segment that begins at the offset or before it, if there is one."""
        older = [base for base in self._bases() if base <= self.offset]
        if older:
            with contextlib.suppress(FileNotFoundError):  # dropped at this moment: the next one is read instead
                self._file = os.open(self._folder / f"{older[-1]:020d}{_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
                self._base = older[-1]

    def _take(self, file: int) -> list[Frame]:
        position = self.offset - self._base
        header = os.pread(file, _HEADER.size, position)
        if len(header) == _HEADER.size and _HEADER.unpack(header)[0] != self.offset:
            # Not the offset of an entry: the next entry after it.
            whole = parse(os.pread(file, os.fstat(file).st_size, 0))
            return [frame for frame in whole if frame.offset >= self.offset]
        return parse(os.pread(file, max(_BATCH_BYTES, _frame_size(header)), position))


def _frame_size(header: bytes) -> int:
    if len(header) < _HEADER.size:
        return 0
    _, _, length, kind = _HEADER.unpack(header)
    return _HEADER.size + length if length <= MAX_DATA_BYTES and kind < len(_KINDS) else 0


def parse(content: bytes) -> list[Frame]:
    """The complete frames at the beginning of some bytes, up to the first malformed one."""
    frames: list[Frame] = []
    position = 0
    while size := _frame_size(content[position : position + _HEADER.size]):
        if position + size > len(content):
            break
        offset, at, _, kind = _HEADER.unpack_from(content, position)
        if frames and offset < frames[-1].next_offset:
            break
        frames.append(Frame(offset, _KINDS[kind], content[position + _HEADER.size : position + size], at))
        position += size
    return frames
