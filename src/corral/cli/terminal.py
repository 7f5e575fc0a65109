"""Connects this terminal to a program inside: raw while it runs, and always restored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping

from corral.base.process import AsyncProcess
from corral.cli.clean import TerminalGuard
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.inside.writing import write_all
from corral.protocol import Command
from corral.results import ExecResult

_CHUNK_BYTES = 16 * 1024
# What a program may have left switched on: colours, a hidden cursor, mouse and focus reports, bracketed paste,
# application keys and character sets.
_CALM = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>\x1b(B\x0f"
_FIRST_SCREEN = b"\x1b[?1049l"


def is_terminal() -> bool:
    """True if stdin and stdout are a terminal."""
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns = rows = 0
    return rows or 24, columns or 80  # a terminal without a set size reports 0


@contextlib.contextmanager
def raw(guard: TerminalGuard) -> Iterator[None]:
    """Raw mode: every key goes to the program, Ctrl-C too."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        # Only from the alternate screen: on the main screen the same sequence would move the cursor.
        write_all(1, (_FIRST_SCREEN if guard.second_screen else b"") + _CALM)
        # FLUSH drops unread input: a program could have made the terminal answer a query, and the
        # answer must not be typed into the host's shell.
        termios.tcsetattr(0, termios.TCSAFLUSH, before)


async def lend(
    box: AsyncSandbox, command: Command, *, env: Mapping[str, str] | None = None, cwd: str | None = None,
    user: str | None = None, timeout: float | None = None,
) -> ExecResult:  # fmt: skip
    """Run a program in a terminal inside, connected to this one. Raises: as `start`."""
    rows, columns = size()
    names = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    process = await box.start(
        command, pty=True, rows=rows, columns=columns, env={**names, **(env or {})}, cwd=cwd, user=user,
        timeout=timeout, output_limit_bytes=64 * 1024,
    )  # fmt: skip
    try:
        sys.stdout.flush()
        guard = TerminalGuard()
        with raw(guard):
            return await _Loan(process, guard).run()
    finally:
        await process.aclose()


class _Loan:
    """One program connected to this terminal."""

    def __init__(self, process: AsyncProcess, guard: TerminalGuard) -> None:
        self._process = process
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> ExecResult:
        """Pass input and output on until the program ends; returns its result."""
        main = asyncio.current_task()
        assert main is not None
        self._loop.add_reader(0, self._read)
        self._loop.add_signal_handler(signal.SIGWINCH, self._follow_size)
        self._loop.add_signal_handler(signal.SIGCONT, self._come_back)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, main.cancel)
        typing = self._loop.create_task(self._type())
        try:
            async for chunk in self._process.output():
                write_all(1, self._guard.clean(chunk.data))
            return await self._process.wait()
        finally:
            self._loop.remove_reader(0)
            for number in (signal.SIGWINCH, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
            typing.cancel()
            await asyncio.gather(typing, *self._tasks, return_exceptions=True)

    def _read(self) -> None:
        try:
            data = os.read(0, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # One piece at a time: while the program does not read, the input waits in the kernel.
        self._loop.remove_reader(0)
        self._keys.put_nowait(data)

    async def _type(self) -> None:
        with contextlib.suppress(CorralError):  # the program has ended, which ends its output too
            while data := await self._keys.get():
                await self._process.write(data)
                self._loop.add_reader(0, self._read)
            await self._process.signal(signal.SIGHUP)  # the window was closed

    def _follow_size(self) -> None:
        task = self._loop.create_task(self._resize())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resize(self) -> None:
        rows, columns = size()
        with contextlib.suppress(CorralError, OSError):  # it has ended meanwhile
            await self._process.resize(rows=rows, columns=columns)

    def _come_back(self) -> None:
        """Set raw mode again after a stop, since the shell has changed the terminal's settings."""
        tty.setraw(0)
        self._follow_size()
