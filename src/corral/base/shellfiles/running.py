"""Runs the scripts of one sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

from corral.base.exchange import Exchange, exchanging
from corral.base.process import AsyncProcess
from corral.errors import CorralError, SandboxFileError
from corral.protocol import SpawnRequest
from corral.results import ExecResult

_MAX_ANSWER_BYTES = 1024 * 1024
_STDERR_LIMIT_BYTES = 1024 * 1024

Spawn = Callable[[SpawnRequest], Awaitable[AsyncProcess]]
"""Starts a program inside; see `corral.protocol.SandboxPrimitives.spawn`."""


class Runner:
    """Runs `/bin/sh -c script sh *args` as `user`, in the root folder, with LC_ALL=C.

    Arguments are paths, numbers and words, never content: that goes in by `stdin`, and by nothing else. `guard` raises
    what an operation on a sandbox that is closed or has ended must raise.
    """

    def __init__(self, spawn: Spawn, *, user: str, guard: Callable[[], None]) -> None:
        self._spawn = spawn
        self._user = user
        self._guard = guard

    @contextlib.asynccontextmanager
    async def open(
        self, script: str, args: Sequence[str], *, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[Exchange]:
        """A running script, which has ended when the block has."""
        self._guard()
        request = SpawnRequest(
            argv=("/bin/sh", "-c", script, "sh", *args), env={"LC_ALL": "C"}, cwd="/", user=self._user, timeout=None,
            stdin=stdin is not None, output_limit_bytes=_STDERR_LIMIT_BYTES, listened=True,
        )  # fmt: skip
        async with exchanging(self._spawn(request), stdin) as run:
            yield run

    async def finish(
        self, script: str, args: Sequence[str], *, stdin: AsyncIterable[bytes] | None = None
    ) -> tuple[bytes, ExecResult]:
        """Run a script to its end: what it printed, and how it ended.

        Raises:
            SandboxFileError: it printed far too much.
        """
        async with self.open(script, args, stdin=stdin) as run:
            output = bytearray()
            async for piece in run.output:
                output += piece
                if len(output) > _MAX_ANSWER_BYTES:
                    raise SandboxFileError("the sandbox's reply is too large", op="files")
            return bytes(output), await run.process.wait()

    async def forget(self, script: str, args: Sequence[str]) -> None:
        """Run a script whose failure changes nothing any more."""
        with contextlib.suppress(CorralError):
            await self.finish(script, args)
