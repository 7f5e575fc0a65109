"""Scripts inside, for `corral.base.shellfiles`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

from corral.backends.daytona.loop import get_loop
from corral.base.process import AsyncProcess
from corral.base.shellfiles.primitives import STDERR_LIMIT_BYTES, ScriptEnd
from corral.errors import CorralError
from corral.protocol import SpawnRequest
from corral.spec import USER

_END_SECONDS = 10.0

Spawn = Callable[[SpawnRequest], Awaitable[AsyncProcess]]


class Run:
    """See `ScriptRun`."""

    def __init__(self, process: AsyncProcess, stdin: AsyncIterable[bytes] | None) -> None:
        self._process = process
        self._asked = False
        self._feeding = asyncio.ensure_future(self._feed(stdin)) if stdin is not None else None

    async def _feed(self, stdin: AsyncIterable[bytes]) -> None:
        with contextlib.suppress(CorralError):  # it has ended, or wants no more
            source = aiter(stdin)
            try:
                async for piece in source:
                    await self._process.write(piece)
            finally:
                close = getattr(source, "aclose", None)
                if close is not None:  # a generator may hold something open
                    await close()
                await self._process.close_stdin()

    async def stdout(self) -> AsyncIterator[bytes]:
        """See `ScriptRun`."""
        self._asked = True
        output = self._process.output()
        async with contextlib.aclosing(output):  # type: ignore[type-var]  # an async generator, whatever it says
            async for chunk in output:
                if chunk.stream == "stdout":
                    yield chunk.data

    async def end(self) -> ScriptEnd:
        """See `ScriptRun`."""
        if not self._asked:
            async for _ in self.stdout():
                pass
        result = await self._process.wait()
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        return ScriptEnd(result.exit_code, result.stderr_bytes)

    async def stop(self) -> None:
        """See `ScriptRun`."""
        if self._feeding is not None:
            self._feeding.cancel()
        self._process.end_tree("cancelled")  # at once: whoever waits may be cancelled while waiting
        if self._feeding is not None:
            await asyncio.gather(self._feeding, return_exceptions=True)
        await self._process.aclose()


class AgentShell:
    """See `Shell`."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn

    async def run(self, script: str, args: Sequence[str] = (), *, stdin: AsyncIterable[bytes] | None = None) -> Run:
        """See `Shell`."""
        request = SpawnRequest(
            argv=("/bin/sh", "-c", script, "sh", *args),
            env={"LC_ALL": "C"},
            cwd="/",
            user=USER,
            timeout=None,
            stdin=stdin is not None,
            output_limit_bytes=STDERR_LIMIT_BYTES,
            listened=True,
        )
        spawning = asyncio.ensure_future(self._spawn(request))
        try:
            process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            # Whoever cleans up next must find that it has ended, or it makes again what was just removed.
            await asyncio.shield(asyncio.ensure_future(_undo(spawning)))
            raise
        return Run(process, stdin)


async def _undo(spawning: asyncio.Future[AsyncProcess]) -> None:
    """Let a script begin, and give up."""
    await asyncio.wait([spawning], timeout=_END_SECONDS)
    if not spawning.done():
        spawning.cancel()  # nothing inside answers: it is ended as soon as something does
    elif not spawning.cancelled() and spawning.exception() is None:
        await get_loop().finish(_let_end(spawning.result()))


async def _let_end(process: AsyncProcess) -> None:
    """Nobody waits for it: its input ends, so that it gives up by itself and leaves nothing unfinished."""
    with contextlib.suppress(CorralError, TimeoutError):
        await process.close_stdin()
        await process.wait(timeout=_END_SECONDS)
    await process.aclose()
