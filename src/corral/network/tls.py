"""TLS over a stream, at either end of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from corral.network.stream import READ_BYTES, Bytes, Stream

HANDSHAKE_SECONDS: Final = 30.0
_PIECE_BYTES: Final = 64 * 1024


class TlsStream(Stream):
    """What is in the clear of a TLS connection over another stream, which this one closes."""

    def __init__(self, below: Stream, context: ssl.SSLContext, *, to: str | None) -> None:
        """`to` is the server's name, if we are the client; None if we are the server."""
        super().__init__()
        self._below = below
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=to is None, server_hostname=to)
        self._sending = asyncio.Lock()
        self._feeding: asyncio.Task[bytes] | None = None
        self._ended = False
        self.answered = False
        """True if the other side has seen something of us."""

    async def shake_hands(self) -> None:
        """Raises: ssl.SSLError, also for the other side's end in the middle of it; OSError, TimeoutError."""
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._feed()
                except ssl.SSLError:
                    with contextlib.suppress(OSError):
                        await self._flush()  # the alert that says why
                    raise
                else:
                    break
            await self._flush()

    async def _receive(self, most: int) -> bytes:
        while not self._ended:
            try:
                data = self._tls.read(most)
            except ssl.SSLWantReadError:
                await self._flush()  # an answer to a change of keys
                await self._feed()
                continue
            except ssl.SSLEOFError:
                data = b""  # many servers close without a word
            except ssl.SSLError as error:
                raise ConnectionAbortedError("TLS failed") from error
            self._ended = not data
            return data
        return b""

    async def readable(self) -> None:
        """As in `Stream`."""
        while not self.ahead and not self._ended:
            try:
                self.ahead += self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError:
                return  # whoever receives is told
            else:
                self._ended = not self.ahead

    async def send(self, data: Bytes) -> None:
        """As in `Stream`."""
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            try:
                self._tls.write(view[start : start + _PIECE_BYTES])
            except ssl.SSLError as error:
                raise ConnectionAbortedError("TLS failed") from error
            await self._flush()

    async def end(self) -> None:
        """As in `Stream`."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()  # says that no more comes, and then wants to hear the same
        await self._flush()
        await self._below.end()

    def close(self) -> None:
        """As in `Stream`."""
        self._forget()
        self._below.close()

    def reset(self) -> None:
        """As in `Stream`."""
        self._forget()
        self._below.reset()

    def _forget(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None

    async def _feed(self) -> None:
        # A task of its own: if the one that waits is cancelled, what arrives meanwhile is kept.
        if self._feeding is None:
            self._feeding = asyncio.ensure_future(self._below.receive())
            self._feeding.add_done_callback(_look_at)
        data = await asyncio.shield(self._feeding)
        self._feeding = None
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            while data := self._out.read():
                self.answered = True
                await self._below.send(data)


def _look_at(task: asyncio.Task[bytes]) -> None:
    """Nobody may be left to see its error."""
    if not task.cancelled():
        task.exception()
