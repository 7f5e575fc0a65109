"""A shell that stays, for the many small scripts: starting a program inside takes far longer than most of them.

One script at a time, in subshells of one `/bin/sh` that reads what to do from its input. Whoever finds it busy, in
another event loop, or with more input than fits, gets a program of its own, as without it. What a script prints ends at
a mark that is made for it alone, after whatever is hostile was written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

from corral.base.process import AsyncProcess
from corral.base.shellfiles.primitives import STDERR_LIMIT_BYTES, ScriptEnd, ScriptRun, Shell
from corral.base.shellfiles.running import Known
from corral.errors import CorralError, SandboxFileInterruptedError

_MAX_INPUT_BYTES = 32 * 1024

Open = Callable[[], Awaitable[AsyncProcess]]
"""Starts `/bin/sh` with an input, its output listened to."""


class ResidentShell:
    """See `Shell`."""

    def __init__(self, inner: Shell, open_shell: Open) -> None:
        self._inner = inner
        self._open = open_shell
        self._seat: _Seat | None = None

    async def run(
        self, script: str, args: Sequence[str] = (), *, stdin: AsyncIterable[bytes] | None = None
    ) -> ScriptRun:
        """See `Shell`."""
        small = stdin is None or (isinstance(stdin, Known) and len(stdin.data) <= _MAX_INPUT_BYTES)
        seat = self._take_seat() if small else None
        if seat is None:
            return await self._inner.run(script, args, stdin=stdin)
        data = stdin.data if isinstance(stdin, Known) else None
        try:
            await seat.begin(self._open, script, args, data)
        except BaseException:
            # The text may be on its way already: whoever cleans up next must find that it has ended.
            await asyncio.shield(asyncio.ensure_future(seat.stop()))
            raise
        return seat

    def _take_seat(self) -> _Seat | None:
        """The shell of this event loop, if it is free; a new one, if there is none."""
        here = asyncio.get_running_loop()
        seat = self._seat
        if seat is not None and seat.usable and seat.loop is here and seat.pid == os.getpid():
            return seat if seat.take() else None
        if seat is not None and seat.pid == os.getpid():
            if seat.usable and not seat.loop.is_closed():
                return None
            seat.give_up()
        self._seat = seat = _Seat(here)
        return seat if seat.take() else None


class _Seat:
    """One shell, and the one script that runs in it. See `ScriptRun`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self.usable = True
        self._taken = False
        self._process: AsyncProcess | None = None
        self._chunks: AsyncIterator[object] | None = None
        self._mark = b""
        self._code: int | None = None
        self._held = b""
        self._stderr = b""
        self._stderr_done = False

    def take(self) -> bool:
        """Whether it was free, and is ours now. In its own event loop only, so nobody comes between."""
        if self._taken:
            return False
        self._taken = True
        return True

    def give_up(self) -> None:
        """It can't be used any more."""
        self.usable = False
        if self._process is not None:
            self._process.end_tree("cancelled")

    async def begin(self, open_shell: Open, script: str, args: Sequence[str], data: bytes | None) -> None:
        """Send a script."""
        if self._process is None:
            self._process = await open_shell()
            self._chunks = aiter(self._process.output())
        self._mark = secrets.token_hex(16).encode()
        self._code, self._held, self._stderr, self._stderr_done = None, b"", b"", False
        await self._process.write(_compose(script, args, data, self._mark))

    async def stdout(self) -> AsyncIterator[bytes]:
        """See `ScriptRun`."""
        while self._code is None or not self._stderr_done:
            piece = await self._next()
            if piece:
                yield piece

    async def _next(self) -> bytes:
        """The next of the output, before its mark. Raises: SandboxFileInterruptedError when the shell has ended."""
        assert self._chunks is not None, "it was begun"
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self.usable = False
            text = "a program in the sandbox interrupted the operation"
            raise SandboxFileInterruptedError(text, op="files", hint="check its effect, then retry") from None
        stream, data = chunk.stream, chunk.data  # type: ignore[attr-defined]
        if stream == "stderr":
            self._stderr = (self._stderr + data)[-STDERR_LIMIT_BYTES - 64 :]
            said, mark, _ = self._stderr.partition(b"\n" + self._mark + b"\n")
            if mark:
                self._stderr, self._stderr_done = said, True
            return b""
        if self._code is not None:
            return b""
        return self._cut(self._held + data)

    def _cut(self, buffer: bytes) -> bytes:
        end = b"\n" + self._mark + b" "
        at = buffer.find(end)
        if at >= 0:
            number, newline, _ = buffer[at + len(end) :].partition(b"\n")
            if newline:
                self._code = int(number) if number.isdigit() else 1
                self._held = b""
                return buffer[:at]
            self._held = buffer[at:]
            return buffer[:at]
        # The beginning of the mark may be at the end of what came so far.
        keep = next((n for n in range(min(len(end), len(buffer)), 0, -1) if buffer.endswith(end[:n])), 0)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    async def end(self) -> ScriptEnd:
        """See `ScriptRun`."""
        async for _ in self.stdout():
            pass
        assert self._code is not None, "its mark was read"
        return ScriptEnd(self._code, self._stderr)

    async def stop(self) -> None:
        """See `ScriptRun`."""
        if self._code is None or not self._stderr_done:
            self.give_up()
            if self._process is not None:
                with contextlib.suppress(CorralError, TimeoutError):
                    await self._process.wait(timeout=15.0)
        self._taken = False


def _compose(script: str, args: Sequence[str], data: bytes | None, mark: bytes) -> bytes:
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in args)
    body = os.fsencode(f"(\nset -- {words}\n{script}\n)" if args else f"(\nset --\n{script}\n)")
    if data is None:
        run = body + b" </dev/null\n"
    else:
        lines = base64.encodebytes(data) or b"\n"
        run = b"{ base64 -d <<'" + mark + b"'\n" + lines + mark + b"\n} | " + body + b"\n"
    return run + b"printf '\\n" + mark + b" %s\\n' \"$?\"\nprintf '\\n" + mark + b"\\n' >&2\n"
