"""Events over socket.io: version 5 of its protocol on version 4 of engine.io, over websockets alone.

That is all that Daytona's clients use, and it is small: a text frame begins with engine.io's digit (0 open,
1 close, 2 ping, 3 pong, 4 message), a message goes on with socket.io's (0 connect, 1 disconnect, 2 event, 4 refused).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from corral.concurrency.waiting import cancel_all
from corral.server.auth import Admission, Doorkeeper
from corral.server.fairness import Budget, Meter
from corral.server.faults import Fault
from corral.server.framewatch import watch_frames
from corral.server.routing import ADMITTED, Identity
from corral.server.sockets import OpenSockets, cut_off

PING_SECONDS, PONG_SECONDS = 25.0, 20.0
HELLO_SECONDS = 20.0
FRAME_SECONDS = 10.0
_QUEUE = 1000
_LISTENER_BYTES = 64 * 1024
"""The memory of a listener whose client reads its events; what waits for a slower client is counted."""
_LONGEST_IN = 64 * 1024
_encode = msgspec.json.Encoder().encode


class _Hello(msgspec.Struct):
    token: str


@dataclass(slots=True, eq=False)
class _Listener:
    identity: Identity
    transport: asyncio.Transport | None
    base_url: str
    meter: Meter
    queue: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(_QUEUE))
    waiting_bytes: int = 0

    def put(self, frame: str) -> bool:
        """Queue a frame; False if too much waits already."""
        if self.queue.full() or not self.count(sys.getsizeof(frame)):
            return False
        self.queue.put_nowait(frame)
        return True

    def count(self, more: int) -> bool:
        """Count what waits; False if it is too much."""
        self.waiting_bytes += more
        return self.meter.set(self.waiting_bytes)


class EventHub:
    """The listeners, and publishing events to them."""

    def __init__(self, door: Doorkeeper, admission: Admission, sockets: OpenSockets, budget: Budget) -> None:
        self._door = door
        self._budget = budget
        self._anywhere = f"http://{secrets.token_hex(16)}.invalid"
        """A placeholder for the base URL of a listener, so that an event is encoded only once for all of them."""
        self._admission = admission
        self._listeners: set[_Listener] = set()
        self._sockets = sockets

    def __len__(self) -> int:
        return len(self._listeners)

    def publish(self, organisation_id: str, name: str, describe: Callable[[str], Any]) -> None:
        """Send an event to all listeners of an organisation. Never waits: a listener that does not keep up is cut off.

        Args:
            organisation_id: The owner of the event.
            name: The name of the event.
            describe: Returns the event for a listener's base URL. Not called if there are no listeners.
        """
        whole: str | None = None
        frames: dict[str, str] = {}
        for listener in list(self._listeners):
            if listener.identity.organisation_id != organisation_id or not self._door.keyring.is_valid(
                listener.identity
            ):
                continue
            frame = frames.get(listener.base_url)
            if frame is None:
                whole = whole or "42" + _encode([name, describe(self._anywhere)]).decode()
                frame = frames[listener.base_url] = whole.replace(self._anywhere, listener.base_url)
            if not listener.put(frame):
                self._listeners.discard(listener)
                cut_off(listener.transport)  # it does not read, so it can't be told

    async def serve(self, request: web.Request, *, base_url: str) -> web.StreamResponse:
        """One connection, to its end; `base_url` is the one that this client uses."""
        if request.query.get("EIO") != "4" or request.query.get("transport") != "websocket":
            raise Fault(400, "only engine.io 4 over websockets is supported")
        socket = web.WebSocketResponse(max_msg_size=_LONGEST_IN, timeout=5.0, compress=False, writer_limit=0)
        watch_frames(request, seconds=FRAME_SECONDS)
        await self._sockets.open(socket, request)
        try:
            hello = {
                "sid": secrets.token_urlsafe(15),
                "upgrades": [],
                "pingInterval": int(PING_SECONDS * 1000),
                "pingTimeout": int(PONG_SECONDS * 1000),
                "maxPayload": _LONGEST_IN,
            }
            await socket.send_str("0" + _encode(hello).decode())
            async with asyncio.timeout(HELLO_SECONDS):
                identity = await self._greet(socket, request.remote)
            if identity is not None:
                request[ADMITTED] = identity.key_id
                async with self._admission.admitted(identity):
                    with self._budget.account(identity.key_id) as account:
                        await account.reserve(_LISTENER_BYTES)
                        meter = Meter(account, free_bytes=_LISTENER_BYTES)
                        await self._converse(socket, _Listener(identity, request.transport, base_url, meter))
        except (TimeoutError, ConnectionError):
            pass  # the client said nothing in time, or has disconnected
        except Fault as fault:  # its key has ended, or has too many listeners
            with contextlib.suppress(ConnectionError):
                await socket.close(code=1008, message=fault.message.encode()[:120])
        finally:
            with contextlib.suppress(ConnectionError):
                await socket.close()
        return socket

    async def _greet(self, socket: web.WebSocketResponse, address: str | None) -> Identity | None:
        """Wait for the connect packet with a key in it; None if it was rejected or never came."""
        while True:
            message = await socket.receive()
            if message.type is not WSMsgType.TEXT:
                return None
            text: str = message.data
            if text.startswith("40"):
                try:
                    identity = self._read_key(text[2:], address)
                except Fault as fault:
                    await socket.send_str("44" + _encode({"message": fault.message}).decode())
                    return None
                await socket.send_str("40" + _encode({"sid": secrets.token_urlsafe(15)}).decode())
                return identity
            if text == "1":
                return None

    def _read_key(self, text: str, address: str | None) -> Identity:
        try:
            token = msgspec.json.decode(text, type=_Hello).token
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            token = None
        identity = self._door.admit(token, address=address)
        if "read" not in identity.scopes:
            raise Fault(403, "the API key lacks the scope 'read'")
        return identity

    async def _converse(self, socket: web.WebSocketResponse, listener: _Listener) -> None:
        self._listeners.add(listener)
        received = asyncio.Event()
        tasks = [
            asyncio.create_task(self._receive(socket, received)),
            asyncio.create_task(self._send(socket, listener)),
            asyncio.create_task(self._ping(socket, received)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._listeners.discard(listener)
            await cancel_all(*tasks)

    async def _receive(self, socket: web.WebSocketResponse, received: asyncio.Event) -> None:
        async for message in socket:
            if message.type is not WSMsgType.TEXT or message.data in ("1", "41"):
                return
            received.set()
            if message.data == "2":
                await socket.send_str("3")

    async def _send(self, socket: web.WebSocketResponse, listener: _Listener) -> None:
        while True:
            frame = await listener.queue.get()
            await socket.send_str(frame)
            listener.count(-sys.getsizeof(frame))

    async def _ping(self, socket: web.WebSocketResponse, received: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            received.clear()
            async with asyncio.timeout(PONG_SECONDS):  # includes sending: a client that does not read counts as gone
                await socket.send_str("2")
                await received.wait()
