"""A `Shell` for backends whose programs are `AsyncProcess`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

from corral.base.process import AsyncProcess
from corral.base.shellfiles.primitives import STDERR_LIMIT_BYTES, ScriptEnd
from corral.errors import CorralError
from corral.protocol import SpawnRequest

_STOP_SECONDS = 15.0


class ProcessRun:
    """See `ScriptRun`."""

    def __init__(self, process: AsyncProcess, stdin: AsyncIterable[bytes] | None) -> None:
        self._process = process
        self._feeding = asyncio.ensure_future(_feed(process, stdin)) if stdin is not None else None

    async def stdout(self) -> AsyncIterator[bytes]:
        """See `ScriptRun`."""
        async for chunk in self._process.output():
            if chunk.stream == "stdout":
                yield chunk.data

    async def end(self) -> ScriptEnd:
        """See `ScriptRun`."""
        result = await self._process.wait()
        return ScriptEnd(result.exit_code, result.stderr_bytes)

    async def stop(self) -> None:
        """See `ScriptRun`."""
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        if not self._process.ended:
            self._process.end_tree("cancelled")
            with contextlib.suppress(CorralError, TimeoutError):
                await self._process.wait(timeout=_STOP_SECONDS)


class ProcessShell:
    """See `Shell`. `spawn` starts a program as the sandbox does; `user` is its word for the code's user."""

    def __init__(self, spawn: Callable[[SpawnRequest], Awaitable[AsyncProcess]], *, user: str) -> None:
        self._spawn = spawn
        self._user = user

    async def run(
        self, script: str, args: Sequence[str] = (), *, stdin: AsyncIterable[bytes] | None = None
    ) -> ProcessRun:
        """See `Shell`."""
        request = SpawnRequest(
            argv=("/bin/sh", "-c", script, "sh", *args),
            env={"LC_ALL": "C"},
            cwd="/",
            user=self._user,
            timeout=None,
            stdin=stdin is not None,
            output_limit_bytes=STDERR_LIMIT_BYTES,
            listened=True,
        )
        starting = asyncio.ensure_future(self._spawn(request))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Whoever cleans up next must find that it has ended, or it makes what was just removed.
            await asyncio.shield(asyncio.ensure_future(_undo(starting)))
            raise
        return ProcessRun(process, stdin)


async def _undo(starting: asyncio.Future[AsyncProcess]) -> None:
    """Let a program begin, and end it."""
    with contextlib.suppress(CorralError, TimeoutError, asyncio.CancelledError):
        process = await starting
        process.end_tree("cancelled")
        await process.wait(timeout=_STOP_SECONDS)


async def _feed(process: AsyncProcess, stdin: AsyncIterable[bytes]) -> None:
    """Feed all, then end the input; also when the stream fails, whose error is kept by whoever made it."""
    try:
        async for piece in stdin:
            if piece:
                await process.write(piece)
    except asyncio.CancelledError:
        raise
    except Exception:  # noqa: BLE001 - the script sees that its input was cut short, and says so
        pass
    with contextlib.suppress(CorralError):
        await process.close_stdin()
