"""The connection to a container's first process. The container ends when its owner closes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import aiohttp

from corral.backends.docker.engine_api import Duplex
from corral.concurrency.waiting import cancel_all

_MAX_LINE_BYTES = 4096
_ANSWER_SECONDS = 5.0
_BROKEN = (aiohttp.ClientError, ConnectionError, RuntimeError, OSError, AssertionError)


class Control:
    """The attached stream of one container. For use in the I/O thread."""

    def __init__(self, stream: Duplex, *, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Attach. Before the container is started, so that its input never ends too early."""
        await self._stream.__aenter__()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        rest = b""
        with contextlib.suppress(*_BROKEN):
            while (message := await self._stream.read_out()) is not None:
                *lines, rest = (rest + message.data).split(b"\n")
                rest = rest[-_MAX_LINE_BYTES:]
                for line in lines:
                    waiting = self._waiting.pop(line.decode("ascii", "replace"), None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(None)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the container has stopped"))
                waiting.exception()  # the caller may have gone
        if not self._closed:
            self._closed = True
            self._on_end()
            with contextlib.suppress(*_BROKEN):
                await self._stream.close()

    async def ask(self, line: str, *, answer: str) -> bool:
        """Send a line; True if the answer came."""
        if self._closed:
            return False
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = waiting
        try:
            await self._stream.write_in(f"{line}\n".encode())
            await asyncio.wait_for(waiting, _ANSWER_SECONDS)
        except (TimeoutError, *_BROKEN):
            return False
        finally:
            self._waiting.pop(answer, None)
        return True

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        if self._reader is not None:
            await cancel_all(self._reader)
        with contextlib.suppress(*_BROKEN):
            await self._stream.close()
