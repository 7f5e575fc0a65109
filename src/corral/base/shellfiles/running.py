"""Running scripts: to their end, as a stream, and never longer than whoever asked is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence

from corral.base.shellfiles.primitives import Guard, ScriptEnd, ScriptRun, Shell
from corral.errors import CorralError, SandboxFileError

SPOOL_BYTES = 1024 * 1024
"""A stream that ends within so much is handled as content of a known size."""
_MAX_ANSWER_BYTES = 1024 * 1024


class Runner:
    """Runs the scripts of one sandbox."""

    def __init__(self, shell: Shell, guard: Guard) -> None:
        self._shell = shell
        self._guard = guard

    @contextlib.asynccontextmanager
    async def open(
        self, script: str, args: Sequence[str], *, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[ScriptRun]:
        """A script, for as long as the block lasts."""
        self._guard()
        run = await self._shell.run(script, args, stdin=stdin)
        try:
            yield run
        finally:
            await asyncio.shield(asyncio.ensure_future(run.stop()))

    async def finish(
        self,
        script: str,
        args: Sequence[str],
        *,
        stdin: AsyncIterable[bytes] | None = None,
    ) -> tuple[bytes, ScriptEnd]:
        """Run one to its end; what it printed.

        Raises:
            SandboxFileError: it printed far too much.
        """
        self._guard()
        run = await self._shell.run(script, args, stdin=stdin)
        try:
            output = bytearray()
            async for piece in run.stdout():
                output += piece
                if len(output) > _MAX_ANSWER_BYTES:
                    raise SandboxFileError("the sandbox's reply is too large", op="files")
            return bytes(output), await run.end()
        finally:
            await asyncio.shield(asyncio.ensure_future(run.stop()))

    async def forget(self, script: str, args: Sequence[str]) -> None:
        """Run one whose failure changes nothing any more."""
        with contextlib.suppress(CorralError):
            await self.finish(script, args)


class Known:
    """Content as a stream."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for offset in range(0, len(self.data), SPOOL_BYTES):
            yield self.data[offset : offset + SPOOL_BYTES]


class measured:  # noqa: N801 - reads like the function it stands for
    """A stream that counts, and keeps the error that it ended with for whoever gave it."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream
        self.total = 0
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                self.total += len(piece)
                yield piece
        except Exception as error:
            self.error = error
            raise
