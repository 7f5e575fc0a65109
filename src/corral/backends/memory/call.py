"""The argument of a scripted program: its arguments, input, output and files."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corral.base.files import encode
from corral.results import Denial, StreamName

if TYPE_CHECKING:
    from corral.backends.memory.files import MemoryFiles
    from corral.backends.memory.tree import FileTree

Program = Callable[["Call"], Awaitable[int]]
"""A scripted program: an async function that returns the exit code."""


class Input:
    """A program's standard input. Fed from any thread, and read in the program's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self.ended = False
        self.received = bytearray()

    def feed(self, data: bytes | None) -> None:
        """Add input; None ends it."""
        with self._lock:
            if data is None:
                self.ended = True
            elif data:
                self._pieces.append(data)
                self.received += data
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed, and the program with it
            return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            with self._lock:
                piece = self._pieces.popleft() if self._pieces else None
                if piece is None:
                    if self.ended:
                        return
                    self._ready.clear()
            if piece is not None:
                yield piece
            else:
                await self._ready.wait()

    async def read(self) -> bytes:
        """All input, up to its end."""
        return b"".join([piece async for piece in self])

    async def readline(self) -> bytes:
        """The next line, with its newline; empty at the end of input."""
        line = bytearray()
        async for piece in self:
            head, newline, rest = piece.partition(b"\n")
            line += head + newline
            if newline:
                with self._lock:
                    if rest:
                        self._pieces.appendleft(rest)
                break
        return bytes(line)


@dataclass(slots=True)
class Call:
    """One run of a program. `code` and `language` are set for a snippet of `run_code`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: Input
    files: MemoryFiles
    tree: FileTree
    feed: Callable[[StreamName, bytes], object]
    run: Callable[[Call], Awaitable[int]]
    """Run another program with the same streams: `await call.run(dataclasses.replace(call, argv=…))`."""
    spawn: Callable[[Call], None]
    """The same in the background: it may outlive this program, but not the sandbox."""
    deny: Callable[[Iterable[Denial]], object]
    """Have the sandbox tell these as refused by its network."""
    traps: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Functions to call instead of ending, by signal number."""
    pid: int = 0
    code: str | None = None
    language: str | None = None

    def out(self, text: str | bytes) -> None:
        """Print to standard output."""
        self.feed("stdout", encode(text))

    def err(self, text: str | bytes) -> None:
        """Print to standard error."""
        self.feed("stderr", encode(text))
