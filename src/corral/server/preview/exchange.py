"""One request passed on to a program in a sandbox, and its response passed back, each in pieces.

Whoever does not read makes the other wait; nothing is kept but one piece in each direction. What goes wrong before the
response has begun is a `Fault`; after that the connection is cut, so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import hdrs, web

from corral.concurrency.relaying import watch_for_death
from corral.concurrency.waiting import cancel_all
from corral.server.faults import Fault
from corral.server.preview.heads import (
    Head,
    MalformedError,
    Route,
    request_fields,
    response_fields,
    write_request,
)
from corral.server.preview.redirects import keep_below
from corral.server.preview.upstream import Upstream
from corral.server.sockets import cut_off

HEAD_SECONDS = 600.0
"""For the program to begin its response: some answer only when there is something new."""
STALL_SECONDS = 300.0
"""For a client to read some of a response, or the program some of a request."""
_INBOX_BYTES = 64 * 1024
SANDBOXED = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"
"""The policy of pages that share an origin with the API: the browser treats them as an origin of their own."""


class Answer(web.StreamResponse):
    """A program's response, with its own headers and no other."""

    def __init__(self, head: Head, fields: list[tuple[str, str]], *, upgrade: bool = False) -> None:
        super().__init__(status=head.status, reason=head.reason)
        for name, value in fields:
            self.headers.add(name, value)
        self._is_typed = hdrs.CONTENT_TYPE in self.headers
        if upgrade:
            self._length_check = False
            self.headers[hdrs.CONNECTION], self.headers[hdrs.UPGRADE] = "Upgrade", "websocket"
            self.force_close()
        elif head.length is not None:
            self.content_length = head.length

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        if not self._is_typed:
            self.headers.pop(hdrs.CONTENT_TYPE, None)  # aiohttp adds one, and browsers would not look at the content


class Exchange:
    """One of them."""

    def __init__(self, request: web.Request, *, target: str, route: Route, ours: frozenset[str], port: int) -> None:
        self._request = request
        self._target = target
        self._route = route
        self._ours = ours
        self._port = port
        self.is_websocket = is_upgrade(request) and request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        if is_upgrade(request) and (request.method != "GET" or request.body_exists):
            raise Fault(400, "only a GET request without a body can be upgraded")

    @property
    def _shared(self) -> bool:
        """Whether the preview shares its origin with the API."""
        return bool(self._route.prefix)

    def _head(self) -> bytes:
        request = self._request
        codings = request.headers.getall(hdrs.TRANSFER_ENCODING, [])
        if codings and [each.lower() for each in codings] != ["chunked"]:
            raise Fault(400, "the Transfer-Encoding of the request is not 'chunked' alone")
        length = None
        if request.body_exists:
            length = -1 if request.content_length is None else request.content_length
        elif request.method in ("POST", "PUT", "PATCH"):
            length = 0
        raw = [(name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in request.raw_headers]
        fields = request_fields(
            raw, route=self._route, ours=self._ours, all_cookies=self._shared, length=length,
            websocket=self.is_websocket,
        )  # fmt: skip
        try:
            return write_request(request.method, self._target, fields)
        except MalformedError as error:
            raise Fault(400, str(error)) from None

    async def run(self, connection: socket.socket) -> web.StreamResponse:
        """Pass the request on, and the response back. Raises: Fault, 502 or 504."""
        watch_for_death(connection)
        upstream = Upstream(connection)
        head_bytes = self._head()
        sending: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                await upstream.send(head_bytes)
                sending = asyncio.create_task(self._send_body(upstream))
                head = await upstream.head()
            if head.status == 101 and not self._is_switch(head):
                raise MalformedError("it switched to a protocol that was not asked for")
            answer = Answer(head, self._fields(head), upgrade=head.status == 101)
        except TimeoutError:
            await _end(sending)
            raise Fault(504, f"the program on port {self._port} did not respond") from None
        except (MalformedError, OSError) as error:
            await _end(sending)
            reason = str(error) if isinstance(error, MalformedError) else "it closed the connection"
            raise Fault(502, f"no valid response from the program on port {self._port}: {reason}") from None
        except BaseException:
            await _end(sending)
            raise
        try:
            if head.status == 101:
                return await self._tunnel(upstream, answer)
            return await self._respond(upstream, head, answer, sending)
        finally:
            await _end(sending)

    def _fields(self, head: Head) -> list[tuple[str, str]]:
        """What the client gets of a head. Raises: MalformedError."""
        fields = response_fields(head, shared_origin=self._shared)
        way = self._route
        if not self._shared:
            if way.host_is_secret and not head.get("referrer-policy"):
                fields.append(("Referrer-Policy", "same-origin"))  # browsers tell other sites the host, by default
            return fields
        kept = [
            (name, keep_below(way.prefix, value, target=self._target, scheme=way.scheme, host=way.host))
            if name.lower() == "location" else (name, value)
            for name, value in fields
        ]  # fmt: skip
        return [*kept, ("Content-Security-Policy", SANDBOXED), ("Referrer-Policy", "no-referrer")]

    def _is_switch(self, head: Head) -> bool:
        return self.is_websocket and [value.lower() for value in head.get("upgrade")] == ["websocket"]

    async def _send_body(self, upstream: Upstream) -> None:
        """Send the body as it comes. If the client's part breaks, the program's side is told by a closed connection."""
        content, chunked = self._request.content, self._request.content_length is None
        try:
            async for piece in content.iter_any():
                async with asyncio.timeout(STALL_SECONDS):
                    if chunked:
                        piece = b"%x\r\n%b\r\n" % (len(piece), piece)  # noqa: PLW2901 - the same, framed
                    await upstream.send(piece)
            if chunked and self._request.body_exists:
                await upstream.send(b"0\r\n\r\n")
        except OSError:
            pass  # the program wants no more of it; it may still respond
        except Exception:  # noqa: BLE001 - whatever aiohttp says of a malformed or broken body
            upstream.give_up()

    async def _respond(
        self, upstream: Upstream, head: Head, answer: Answer, sending: asyncio.Task[None] | None
    ) -> web.StreamResponse:
        request = self._request
        if is_upgrade(request) or (sending is not None and not sending.done() and request.body_exists):
            answer.force_close()  # what still comes must not be taken for another request
        await answer.prepare(request)
        try:
            async for piece in upstream.body(head, method=request.method):
                async with asyncio.timeout(STALL_SECONDS):
                    await answer.write(piece)
            await answer.write_eof()
        except TimeoutError:
            cut_off(request.transport)
        except (MalformedError, ConnectionError):
            if request.transport is not None:
                if answer.chunked or head.length is not None or request.version >= (1, 1):
                    request.transport.close()  # without the end that was announced
                else:
                    cut_off(request.transport)
        return answer

    async def _tunnel(self, upstream: Upstream, answer: Answer) -> web.StreamResponse:
        """Bytes both ways, until one side has ended."""
        request = self._request
        await answer.prepare(request)
        inbox = Inbox(request.protocol)
        request.protocol.set_parser(inbox)  # type: ignore[arg-type] # it is fed as aiohttp's own parser of frames is
        tasks = [
            asyncio.ensure_future(self._to_client(upstream, answer)),
            asyncio.ensure_future(_to_program(inbox, upstream)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(*tasks)
            if request.transport is not None:
                request.transport.close()
        return answer

    async def _to_client(self, upstream: Upstream, answer: Answer) -> None:
        try:
            async for piece in upstream.rest():
                async with asyncio.timeout(STALL_SECONDS):
                    await answer.write(piece)
        except TimeoutError:
            cut_off(self._request.transport)
        except OSError:
            pass  # one of them has closed


def is_upgrade(request: web.Request) -> bool:
    """Whether aiohttp takes what comes after this request for another protocol."""
    return bool(request._message.upgrade)  # noqa: SLF001 - the only way to know


async def _to_program(inbox: Inbox, upstream: Upstream) -> None:
    with contextlib.suppress(OSError):
        async for piece in inbox.pieces():
            await upstream.send(piece)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await cancel_all(task)


class Inbox:
    """What a client sends after an upgrade. aiohttp feeds it as it would its parser of websocket frames."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._held = bytearray()
        self._came = asyncio.Event()
        self._ended = False
        self._paused = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Called by aiohttp."""
        self._held += data
        self._came.set()
        if len(self._held) >= _INBOX_BYTES and not self._paused:
            self._paused = True
            self._protocol.pause_reading()
        return False, b""

    def feed_eof(self) -> None:
        """Called by aiohttp."""
        self._ended = True
        self._came.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What has come, until the client has closed the connection."""
        while True:
            await self._came.wait()
            self._came.clear()
            piece, self._held = bytes(self._held), bytearray()
            if piece:
                yield piece
            if self._paused and not self._held:
                self._paused = False
                self._protocol.resume_reading()
            if self._ended and not self._held:
                return
