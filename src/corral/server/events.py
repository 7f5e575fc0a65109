"""Events over socket.io: version 5 of its protocol on version 4 of engine.io, over websockets alone.

That is all that clients of this wire speak, and it is small: a text frame begins with engine.io's digit (0 open,
1 close, 2 ping, 3 pong, 4 message), a message goes on with socket.io's (0 connect, 1 disconnect, 2 event, 4 refused).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from corral.server.auth import Doorkeeper
from corral.server.faults import Fault
from corral.server.routing import Identity

PING_SECONDS, PONG_SECONDS = 25.0, 20.0
HELLO_SECONDS = 20.0
_QUEUE = 1000
_LONGEST_IN = 64 * 1024
_encode = msgspec.json.Encoder().encode


class _Hello(msgspec.Struct):
    token: str


@dataclass(slots=True, eq=False)
class _Listener:
    organisation_id: str
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(_QUEUE))
    """None: it is too slow, and is cut off."""


class EventHub:
    """Who listens, and to whose events."""

    def __init__(self, door: Doorkeeper) -> None:
        self._door = door
        self._listeners: set[_Listener] = set()
        self._sockets: set[web.WebSocketResponse] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def listens(self, organisation_id: str) -> bool:
        """Whether anybody would hear."""
        return any(listener.organisation_id == organisation_id for listener in self._listeners)

    def publish(self, organisation_id: str, name: str, payload: Any) -> None:
        """Tell all who listen for this organisation. Never waits: a listener that does not keep up is cut off."""
        frame = "42" + _encode([name, payload]).decode()
        for listener in list(self._listeners):
            if listener.organisation_id == organisation_id:
                try:
                    listener.queue.put_nowait(frame)
                except asyncio.QueueFull:
                    self._listeners.discard(listener)
                    while not listener.queue.empty():
                        listener.queue.get_nowait()
                    listener.queue.put_nowait(None)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One connection, to its end."""
        if request.query.get("EIO") != "4" or request.query.get("transport") != "websocket":
            raise Fault(400, "only engine.io 4 over websockets is spoken here")
        socket = web.WebSocketResponse(max_msg_size=_LONGEST_IN, timeout=5.0)
        await socket.prepare(request)
        self._sockets.add(socket)
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
                await self._converse(socket, identity)
        except (TimeoutError, ConnectionError):
            pass  # whoever says nothing in time, or is gone, is let go
        finally:
            self._sockets.discard(socket)
            with contextlib.suppress(ConnectionError):
                await socket.close()
        return socket

    async def _greet(self, socket: web.WebSocketResponse, address: str | None) -> Identity | None:
        """Wait for the connect packet with a key in it; None if it was refused or never came."""
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
            raise Fault(403, "this key may not read")
        return identity

    async def _converse(self, socket: web.WebSocketResponse, identity: Identity) -> None:
        listener = _Listener(identity.organisation_id)
        self._listeners.add(listener)
        heard = asyncio.Event()
        tasks = [
            asyncio.create_task(self._hear(socket, heard)),
            asyncio.create_task(self._tell(socket, listener)),
            asyncio.create_task(self._ping(socket, heard, identity)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._listeners.discard(listener)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, socket: web.WebSocketResponse, heard: asyncio.Event) -> None:
        async for message in socket:
            if message.type is not WSMsgType.TEXT or message.data in ("1", "41"):
                return
            heard.set()
            if message.data == "2":
                await socket.send_str("3")

    async def _tell(self, socket: web.WebSocketResponse, listener: _Listener) -> None:
        while (frame := await listener.queue.get()) is not None:
            await socket.send_str(frame)

    async def _ping(self, socket: web.WebSocketResponse, heard: asyncio.Event, identity: Identity) -> None:
        while self._door.keyring.is_valid(identity):
            await asyncio.sleep(PING_SECONDS)
            heard.clear()
            await socket.send_str("2")
            async with asyncio.timeout(PONG_SECONDS):
                await heard.wait()

    async def close(self) -> None:
        """Say goodbye to all."""
        await asyncio.gather(
            *(socket.close(code=1001, message=b"the server stops") for socket in list(self._sockets)),
            return_exceptions=True,
        )
