"""One file operation as a process inside: content goes in by its standard input, the answer comes by its output."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable

from corral.base.process import AsyncProcess
from corral.concurrency.closing import close_iterator
from corral.concurrency.waiting import cancel_all
from corral.errors import CorralError
from corral.inside.nolinks import on_error

SPOOL_BYTES = 1024 * 1024
"""A stream that ends within so much is handled as content of a known size."""
_END_SECONDS = 10.0


class Exchange:
    """A process that is fed content, if there is any, while its answer is read."""

    def __init__(self, process: AsyncProcess, content: AsyncIterable[bytes] | None) -> None:
        self.process = process
        self.output = self._read()
        """What it prints, piece by piece. A reader that stops reading makes it wait."""
        self._feeding = asyncio.ensure_future(self._feed(content)) if content is not None else None

    async def _feed(self, content: AsyncIterable[bytes]) -> None:
        """Write all and close its input. If the stream fails, it is closed there: the process notices what is missing.

        The stream's error is kept by `measured`.
        """
        with contextlib.suppress(Exception):  # the process has ended, or takes no more
            source = aiter(content)
            try:
                async for piece in source:
                    if piece:
                        await self.process.write(piece)
            finally:
                await close_iterator(source)
                await self.process.close_stdin()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self.process.output()) as output:
            async for chunk in output:
                if chunk.stream == "stdout":
                    yield chunk.data

    async def stop(self, *, gently: bool) -> None:
        """End it, and wait. `gently`: by SIGTERM and the end of its input, so that it leaves nothing unfinished."""
        with on_error(self.process.end_tree, "cancelled"):  # of a program that is gone, nothing else may come
            if gently:
                with contextlib.suppress(CorralError):
                    await self.process.signal(signal.SIGTERM)
            else:
                self.process.end_tree("cancelled")  # at once: this call may itself be cancelled while it waits
            if self._feeding is not None:
                await cancel_all(self._feeding)
            with contextlib.suppress(CorralError, TimeoutError):
                await self.process.close_stdin()
                await self.process.wait(timeout=_END_SECONDS)
        await self.process.aclose()


@contextlib.asynccontextmanager
async def exchanging(
    spawn: Awaitable[AsyncProcess], content: AsyncIterable[bytes] | None, *, gently: bool = False
) -> AsyncIterator[Exchange]:
    """Start a process, which has ended when the block has; see `Exchange.stop` for `gently`.

    Raises: what `spawn` raises.
    """
    spawning = asyncio.ensure_future(spawn)
    try:
        process = await asyncio.shield(spawning)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_give_up(spawning, gently=gently)))
        raise
    exchange = Exchange(process, content)
    try:
        yield exchange
    finally:
        await asyncio.shield(asyncio.ensure_future(exchange.stop(gently=gently)))


async def _give_up(spawning: asyncio.Future[AsyncProcess], *, gently: bool) -> None:
    """End a process that is just starting: the caller may remove what it would then create."""
    await asyncio.wait([spawning], timeout=_END_SECONDS)
    if not spawning.done():
        spawning.cancel()  # nothing inside answers: it is ended as soon as something does
    elif not spawning.cancelled() and spawning.exception() is None:
        await Exchange(spawning.result(), None).stop(gently=gently)


class Known:
    """Content as a stream."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for offset in range(0, len(self.data), SPOOL_BYTES):
            yield self.data[offset : offset + SPOOL_BYTES]


class measured:  # noqa: N801 - reads like the function it stands for
    """A stream that counts its bytes, and keeps the error that it failed with."""

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
