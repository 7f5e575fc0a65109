"""Reading some lines of a file of any size, keeping only those; and the limits of searches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from corral.base.files import AsyncFiles
from corral.concurrency.waiting import in_time
from corral.errors import PolicyError, SandboxFileError, SandboxNotFolderError
from corral.tools.render import MAX_LINE_CHARS

MAX_EDIT_BYTES = 16 * 1024 * 1024
"""Larger files are not edited by line, since the whole content is held in memory."""
_COUNTED_BYTES = 64 * 1024 * 1024
"""Lines are counted up to this position in a file."""
SNIFFED_BYTES = 8192
"""A file with a NUL among its first bytes is not text; this many are checked."""
_KEPT_LINE_BYTES = MAX_LINE_CHARS * 8
JUDGED_FILES = 100_000
"""Rules are not applied to more files than this."""
SEARCH_SECONDS = 120.0
"""A search that takes longer is stopped: with some patterns a regular expression never ends."""


def limit_search() -> AbstractAsyncContextManager[None]:
    """Stop the block after `SEARCH_SECONDS`. Raises: SandboxFileError, then."""
    return in_time(
        SEARCH_SECONDS,
        lambda seconds: SandboxFileError(
            f"the search took longer than {seconds:g} seconds",
            op="search",
            hint="use a simpler pattern or a narrower path",
        ),
    )


async def find_hidden_files(
    files: AsyncFiles, root: str, *, hidden: bool, shows: Callable[[str], bool]
) -> tuple[str, ...]:
    """The files below a real path that a search may not show, and so must not search.

    If they were searched and left out afterwards, their matches would still count towards the limit, and the number of
    the others would tell what is in them.

    Raises:
        PolicyError: there are too many files to apply the rules to.
        SandboxFileError: the path can't be read.
    """
    try:
        found = await files.glob("**", path=root, hidden=hidden, limit=JUDGED_FILES)
    except SandboxNotFolderError:
        return () if shows(root) else (root,)
    if found.truncated:
        raise PolicyError(
            f"there are more than {JUDGED_FILES} files below {root}, too many to apply rules to", op="grep"
        )  # fmt: skip
    return tuple(info.path for info in found.files if info.kind == "file" and not shows(info.path))


@dataclass(slots=True)
class Window:
    """The lines that were read. `total` is None if the file is too long to be counted.

    Bytes that are not UTF-8 are surrogates in `lines`, so that hashes of lines are right.
    """

    lines: list[str] = field(default_factory=list)
    total: int | None = None
    beyond: dict[int, int] = field(default_factory=dict)
    """Index in `lines` of a line that was cut → how many of its bytes are missing."""
    binary: bool = False
    beginning: bytes = b""
    size: int = 0
    """In bytes; only for a file that is not text."""

    @property
    def cut(self) -> bool:
        """True if a line was cut."""
        return bool(self.beyond)


async def read_window(files: AsyncFiles, path: str, *, offset: int, limit: int, max_chars: int) -> Window:
    """The lines after `offset`, at most `limit`, and no more than fit into `max_chars`.

    Line ends are removed, and very long lines are cut. Raises: as `read_stream`.
    """
    reader = _Reader(offset, offset + limit, max_chars)
    async for piece in files.read_stream(path):
        if not reader.window.beginning:
            reader.window.beginning = piece[:SNIFFED_BYTES]
            if b"\0" in reader.window.beginning:
                reader.window.binary = True
                reader.window.size = (await files.stat(path)).size
                return reader.window
        reader.take(piece)
        if reader.seen > _COUNTED_BYTES and reader.full:
            return reader.window
    reader.finish()
    return reader.window


class _Reader:
    def __init__(self, first: int, end: int, max_chars: int) -> None:
        self.window = Window()
        self.seen = 0
        self._first = first
        self._end = end
        self._room = max_chars
        self._number = 0
        self._line = bytearray()
        self._open = False

    @property
    def full(self) -> bool:
        """True if no more lines are to be kept."""
        return self._number >= self._end or self._room < 0

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the file."""
        self.seen += len(piece)
        if self.full:
            # From here on lines are only counted.
            self._number += piece.count(b"\n")
            self._open = not piece.endswith(b"\n")
            return
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._add(piece[start:end])
            self._close()
            start = end + 1
        if start < len(piece):
            self._add(piece[start:])

    def _add(self, data: bytes) -> None:
        self._open = True
        if self._first <= self._number < self._end:
            room = _KEPT_LINE_BYTES - len(self._line)
            self._line += data[:room]
            if len(data) > room:
                place = len(self.window.lines)
                self.window.beyond[place] = self.window.beyond.get(place, 0) + len(data) - room

    def _close(self) -> None:
        if self._first <= self._number < self._end and self._room >= 0:
            text = self._line.decode("utf-8", "surrogateescape").removesuffix("\r")
            self._room -= len(text)
            self.window.lines.append(text)
        self._line.clear()
        self._number += 1
        self._open = False

    def finish(self) -> None:
        """Take the last line, at the end of the file."""
        if self._open:
            self._close()
        self.window.total = self._number
