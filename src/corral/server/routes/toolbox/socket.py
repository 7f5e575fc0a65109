"""Websockets: always reading, so pings are answered; small frames; back pressure; a close code at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import WSMsgType, web

from corral.concurrency.waiting import cancel_all
from corral.server.fairness import Meter
from corral.server.faults import Fault, bad_request
from corral.server.framewatch import FrameWatch, watch_frames
from corral.server.routing import ApiCall
from corral.server.sockets import close_socket, cut_off

NORMAL, REFUSED, FAILED, OUT_OF_TIME = 1000, 1008, 1011, 4008
_MAX_REASON_BYTES = 123
_CLOSE_SECONDS = 5.0
_INBOX_BYTES = 256 * 1024
_INBOX_FRAMES = 1024
_LAST_WORDS_SECONDS = 2.0
_BACKLOG_BYTES = 120 * 1024
"""The memory for a client that does not read, besides the socket itself: a piece of a record, and buffers."""

Answer = TypeVar("Answer")
OnMessage = Callable[[bytes], Awaitable[None]]


class ClientLeftError(Exception):
    """The client has closed the websocket, or the connection broke."""


class Socket:
    """One websocket of one call. After an error, `dispatch` closes it with code 1011."""

    def __init__(self, call: ApiCall, *, protocols: Sequence[str] = (), longest_bytes: int | None = None) -> None:
        """Raises: Fault, 400, if the request is not an upgrade. Created before anything is started for it."""
        limits = call.server.settings.limits
        self._call = call
        self._limits = limits
        self._frame_bytes = limits.frame_bytes
        self._frames: FrameWatch | None = None
        self._backlog = Meter(call.account)
        longest = longest_bytes or limits.frame_in_bytes
        self.response = web.WebSocketResponse(
            timeout=_CLOSE_SECONDS, protocols=protocols, compress=False, max_msg_size=longest, writer_limit=0
        )
        if not self.response.can_prepare(call.request):
            raise bad_request("a websocket upgrade is required")

    async def open(self) -> None:
        """Answer the upgrade. Raises: Fault, 503, the server is stopping."""
        self._frames = watch_frames(self._call.request, seconds=self._limits.frame_seconds, account=self._call.account)
        await self._call.server.sockets.open(self.response, self._call.request)

    async def send(self, data: bytes, *, mark: bytes = b"") -> None:
        """Send binary frames; each begins with the mark. Waits while the client does not read.

        Raises:
            ClientLeftError
        """
        room = self._frame_bytes - len(mark)
        for offset in range(0, len(data), room):
            await self._sending(self.response.send_bytes(mark + data[offset : offset + room]))

    async def send_json(self, value: object) -> None:
        """A text frame. Raises: ClientLeftError."""
        await self._sending(self.response.send_str(msgspec.json.encode(value).decode()))

    async def _sending(self, sending: Coroutine[Any, Any, None]) -> None:
        self._charge_backlog()
        try:
            await sending
        except (ConnectionError, RuntimeError) as error:  # aiohttp's words for a socket that is closing or closed
            raise ClientLeftError from error

    def _charge_backlog(self) -> None:
        """Count the memory for a client that does not read. If the key has no more, cut the client off."""
        transport = self._call.request.transport
        if not isinstance(transport, asyncio.Transport):
            return
        if not self._backlog.set(_BACKLOG_BYTES if transport.get_write_buffer_size() > 0 else 0):
            cut_off(transport)  # no close frame: it would wait behind all that the client does not read

    async def converse(self, work: Coroutine[Any, Any, Answer], *, on_message: OnMessage | None = None) -> Answer:
        """Run `work`, and read from the client meanwhile; `on_message` gets what it sends, else it is dropped.

        Raises:
            ClientLeftError: the client disconnected first; `work` was cancelled.
            Fault: 404, the sandbox ended first.
        """
        working = asyncio.ensure_future(work)
        reading = asyncio.ensure_future(self._read(on_message) if on_message is None else self._listen(on_message))
        gone = asyncio.ensure_future(self._call.sandbox.gone.wait())
        tasks: tuple[asyncio.Future[Any], ...] = (working, reading, gone)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if reading.done():
                reading.result()
                raise ClientLeftError
            raise Fault(404, "sandbox not found: it is gone")
        except asyncio.CancelledError:
            # Most likely the connection broke. What the client has sent before is still passed on.
            if on_message is not None and not self._call.sandbox.gone.is_set() and not self._call.visit.key_ended:
                await asyncio.wait((reading,), timeout=_LAST_WORDS_SECONDS)
            raise
        finally:
            await cancel_all(*tasks)

    async def receive(self, *, timeout: float) -> bytes | None:
        """The next frame; None after the timeout. Raises: ClientLeftError."""
        try:
            message = await self.response.receive(timeout=timeout)
        except TimeoutError:
            return None
        data = _content(message.type, message.data)
        if data is None:
            raise ClientLeftError
        self._count_handled(len(data))
        return data

    def _count_handled(self, *sizes: int) -> None:
        """Stop counting messages of these sizes."""
        if self._frames is not None:
            self._frames.handled(sizes)

    async def _listen(self, on_message: OnMessage) -> None:
        """Read ahead of a slow listener, so that pings are read as well; only a flood of input stops the reading."""
        inbox: deque[bytes] = deque()
        changed = asyncio.Condition()

        async def take(data: bytes) -> None:
            async with changed:
                await changed.wait_for(lambda: sum(map(len, inbox)) < _INBOX_BYTES and len(inbox) < _INBOX_FRAMES)
                inbox.append(data)
                changed.notify_all()

        async def pass_on() -> None:
            while True:
                async with changed:
                    await changed.wait_for(lambda: bool(inbox) or reading.done())
                    sizes, data = [len(message) for message in inbox], b"".join(inbox)
                    inbox.clear()
                    changed.notify_all()
                if not sizes:
                    return
                await on_message(data)
                self._count_handled(*sizes)

        reading = asyncio.ensure_future(self._read(take))
        passing = asyncio.ensure_future(pass_on())
        try:
            await asyncio.wait((passing, reading), return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                # The client has disconnected; what it sent before is still passed on.
                async with changed:
                    changed.notify_all()
                await asyncio.wait((passing,), timeout=_LAST_WORDS_SECONDS)
            if passing.done():
                passing.result()
        finally:
            await cancel_all(passing, reading)

    async def _read(self, on_message: OnMessage | None) -> None:
        while True:
            message = await self.response.receive()
            data = _content(message.type, message.data)
            if data is None:
                return
            if on_message is None:
                self._count_handled(len(data))
            else:
                await on_message(data)

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close the websocket, and wait a little for the client's close frame."""
        cut = reason.encode()[:_MAX_REASON_BYTES].decode("utf-8", "ignore")
        await close_socket(
            self.response,
            self._call.request,
            code=code,
            reason=cut.encode(),
            patience=self._limits.request_seconds,
        )


def _content(kind: WSMsgType, data: Any) -> bytes | None:
    if kind is WSMsgType.TEXT:
        return str(data).encode("utf-8", "surrogatepass")
    return bytes(data) if kind is WSMsgType.BINARY else None
