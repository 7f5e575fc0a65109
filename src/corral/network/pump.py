"""Moves bytes from one side of a connection to the other, with little work for each and little memory held.

Between two sockets, callbacks of the loop move large pieces through one buffer that all connections share. Only what a
slow receiver does not take is kept, and then nothing more is read from its sender.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from corral.network.stream import SocketStream, SpentError, Stream

LARGEST_PIECE: Final = 256 * 1024
"""What is read at once, and so the most that is kept for one direction."""
_SMALLEST_PIECE: Final = 16 * 1024
_FIRST_PIECE: Final = 64 * 1024
HALF_OPEN_SECONDS: Final = 300.0
"""How long one side may be silent when the other has ended."""
_AT_ONCE: Final = 4
"""So many pieces, before others have their turn."""

_buffer = bytearray(LARGEST_PIECE)
_view = memoryview(_buffer)


class Measure(Protocol):
    """Looks at what passes, and knows where it ends."""

    done: bool
    """True: nothing more belongs to it."""

    def take(self, piece: memoryview) -> int:
        """How many of the next bytes belong to it; fewer than all only if it is done then. May raise what it likes."""


async def pump(source: Stream, sink: Stream, measure: Measure | None = None) -> bool:
    """Move bytes until the end of `source`, or of `measure`; bytes after that stay ahead in `source`.

    True if it was the end of `measure`. Raises: OSError, SpentError, and what `measure` raises.
    """
    while source.ahead and not (measure and measure.done):
        piece = await source.receive()
        await sink.send(_measured(source, piece, measure))
    if measure is not None and measure.done:
        return True
    if isinstance(source, SocketStream) and isinstance(sink, SocketStream):
        return await _SocketPump(source, sink, measure).run()
    while piece := await source.receive():
        await sink.send(_measured(source, piece, measure))
        if measure is not None and measure.done:
            return True
    return False


def _measured(source: Stream, piece: bytes, measure: Measure | None) -> bytes:
    if measure is None:
        return piece
    size = measure.take(memoryview(piece))
    if size < len(piece):
        source.ahead[:0] = piece[size:]
    return piece[:size]


async def relay(
    client: Stream, server: Stream, *, watch: Measure | None = None, down: asyncio.Future[None] | None = None
) -> None:
    """Move bytes both ways until both have ended, or one has failed. `watch` looks at what the client sends.

    `down`: what already moves the server's bytes. Raises: as `pump`.
    """
    up = asyncio.ensure_future(pump_to_end(client, server, watch))
    down = down or asyncio.ensure_future(pump_to_end(server, client))
    try:
        done, left = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        while left:
            before = _passed(client, server)
            done, left = await asyncio.wait(left, timeout=HALF_OPEN_SECONDS)
            for task in done:
                task.result()
            if left and before == _passed(client, server):
                return  # whoever has not ended may never do so
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def pump_to_end(source: Stream, sink: Stream, watch: Measure | None = None) -> None:
    """Move bytes one way until their end, and pass that on. Raises: as `pump`."""
    await pump(source, sink, watch)
    await sink.end()


def _passed(*streams: Stream) -> int:
    return sum(stream.passed for stream in streams if isinstance(stream, SocketStream))


class _SocketPump:
    def __init__(self, source: SocketStream, sink: SocketStream, measure: Measure | None) -> None:
        self._source, self._sink, self._measure = source, sink, measure
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[bool] = self._loop.create_future()
        self._piece = _FIRST_PIECE
        self._rest = memoryview(b"")
        self._ended: bool | None = None
        self._pause: asyncio.TimerHandle | None = None

    async def run(self) -> bool:
        self._loop.add_reader(self._source.socket, self._read)
        try:
            return await self._over
        finally:
            if self._pause is not None:
                self._pause.cancel()
            if self._source.socket.fileno() >= 0:
                self._loop.remove_reader(self._source.socket)
            if self._sink.socket.fileno() >= 0:
                self._loop.remove_writer(self._sink.socket)

    def _read(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                if not self._move():
                    return
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends this connection and no other
            self._end_with(error)

    def _move(self) -> bool:
        """Move one piece; False if nothing more can be moved at the moment."""
        size = self._source.socket.recv_into(_buffer, self._piece)
        if size == 0:
            self._end(by_measure=False)
            return False
        self._source.passed += size
        full = size == self._piece
        pause = self._source.meter.count_in(size) if self._source.meter is not None else 0.0
        if self._measure is not None:
            used = self._measure.take(_view[:size])
            if used < size:
                self._source.ahead += _view[used:size]
                size = used
            if self._measure.done:
                self._ended = True
        if self._sink.meter is not None:
            pause = max(pause, self._sink.meter.count_out(size))
        meter = self._source.meter or self._sink.meter
        if meter is not None and meter.is_spent:
            raise SpentError
        if not self._pass_on(size):
            return False
        if self._ended is not None:
            self._end(by_measure=self._ended)
            return False
        if full:
            self._piece = min(LARGEST_PIECE, self._piece * 2)
        if pause:
            self._loop.remove_reader(self._source.socket)
            self._pause = self._loop.call_later(pause, self._resume)
        return not pause

    def _pass_on(self, size: int) -> bool:
        """Send the first bytes of the buffer; False if not all were taken, and what is left is kept."""
        try:
            sent = self._sink.socket.send(_view[:size]) if size else 0
        except BlockingIOError:
            sent = 0
        if sent == size:
            return True
        self._rest = memoryview(bytes(_view[sent:size]))  # a copy: the buffer is everybody's
        self._piece = max(_SMALLEST_PIECE, self._piece // 2)
        self._loop.remove_reader(self._source.socket)
        self._loop.add_writer(self._sink.socket, self._write)
        return False

    def _write(self) -> None:
        try:
            sent = self._sink.socket.send(self._rest)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - as in _read
            self._end_with(error)
            return
        self._rest = self._rest[sent:]
        if self._rest:
            return
        self._rest = memoryview(b"")
        self._loop.remove_writer(self._sink.socket)
        if self._ended is not None:
            self._end(by_measure=self._ended)
        else:
            self._resume()

    def _resume(self) -> None:
        if not self._over.done():
            self._loop.add_reader(self._source.socket, self._read)

    def _end(self, *, by_measure: bool) -> None:
        self._loop.remove_reader(self._source.socket)
        if not self._over.done():
            self._over.set_result(by_measure)

    def _end_with(self, error: Exception) -> None:
        if self._source.socket.fileno() >= 0:
            self._loop.remove_reader(self._source.socket)
        if not self._over.done():
            self._over.set_exception(error)
