"""One request of HTTP/1 and its answer, between a client inside and a server outside."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import Any, Final, Literal

from corral.network.bodies import Body, CountedBody, measure_answer, measure_request
from corral.network.heads import (
    MAX_ANSWER_HEAD_BYTES,
    MAX_REQUEST_HEAD_BYTES,
    AnswerHead,
    MalformedHeadError,
    RequestHead,
    find_end,
    may_be_request,
    read_answer,
    read_request,
)
from corral.network.pump import pump
from corral.network.stream import SocketStream, Stream

HEAD_SECONDS: Final = 60.0
"""In which a head must be whole, once it has begun."""
LEFT_SECONDS: Final = 30.0
"""A client that has ended its side may wait so long for its answer."""
_LOOSE_END: Final = re.compile(rb"(?<!\r)\n")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNWATCHED_UPGRADES: Final = ("h2", "http", "tls")
"""After a change to one of these, other hosts could be asked for unseen. Servers answer without it as well."""

Outcome = Literal["again", "close", "raw"]


async def receive_request(client: Stream, *, first: bool = False) -> RequestHead | None:
    """The next request; None if there is none. `first`: time runs before its first byte, too.

    Raises: MalformedHeadError, TimeoutError, OSError, SpentError.
    """
    if not first:
        while not client.ahead:
            if not await client.fill():
                return None
    async with asyncio.timeout(HEAD_SECONDS):
        data = await _receive_head(client, MAX_REQUEST_HEAD_BYTES, strip=True)
    return None if data is None else read_request(data)


async def _receive_head(stream: Stream, most: int, *, strip: bool = False) -> bytes | None:
    """A head with its empty line, None if the stream ends before it begins. Raises: MalformedHeadError, OSError."""
    looked = 0
    while True:
        if strip and stream.ahead.startswith((b"\r", b"\n")):  # empty lines before a request, as old clients send them
            while stream.ahead.startswith(b"\r\n"):
                del stream.ahead[:2]
            looked = 0
            if stream.ahead[:1] == b"\n" or (stream.ahead[:1] == b"\r" and len(stream.ahead) > 1):
                raise MalformedHeadError("a line end that is not one")
        end = find_end(stream.ahead, looked)
        if 0 < end <= most:
            data = bytes(stream.ahead[:end])
            del stream.ahead[:end]
            return data
        if end > most or len(stream.ahead) > most:
            raise MalformedHeadError("a head that is too long")
        if strip and (_LOOSE_END.search(stream.ahead, max(0, looked - 1)) or not may_be_request(stream.ahead)):
            raise MalformedHeadError("not a request of HTTP/1.1")  # at once: the end that we wait for may never come
        looked = len(stream.ahead)
        if not await stream.fill():
            if stream.ahead:
                raise MalformedHeadError("a head that is not whole")
            return None


def prepare(head: RequestHead) -> RequestHead:
    """The head as it may be forwarded: without what only concerns the connection to us, or would lead out of sight."""
    head = head.without("expect", "proxy-connection", "proxy-authorization")
    wanted = (head.upgrade or "").lower().split(",")  # the server chooses one of them
    if any(protocol.strip().startswith(_UNWATCHED_UPGRADES) for protocol in wanted):
        options = [option.strip() for value in head.values("connection") for option in value.split(",")]
        kept = [option for option in options if option and option.lower() not in ("upgrade", "http2-settings")]
        head = head.without("upgrade", "http2-settings", "connection")
        if kept:
            head = head.adding("Connection", ", ".join(kept))
    return head


async def exchange(client: Stream, server: Stream, asked: RequestHead, sent: RequestHead) -> Outcome:
    """Send a request, its body, and its answer. `asked` is the head that the client sent, `sent` what the server gets.

    `raw`: both have changed to another protocol. Raises: MalformedHeadError, OSError, SpentError.
    """
    await server.send(sent.to_bytes())
    body = measure_request(asked)
    if asked.values("expect") and asked.minor == 1 and not body.done:
        # We say it ourselves: a server that answers without having read the body might take it for a request.
        await client.send(_CONTINUE)
    sending = asyncio.ensure_future(_send_body(client, server, body))
    answering = asyncio.ensure_future(_pass_answer(client, server, sent, sending))
    gone = None
    try:
        await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()  # however fast the server was: what it has answered was no request
        if not answering.done():
            gone = asyncio.ensure_future(_wait_until_gone(client))
            await asyncio.wait([gone, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionAbortedError
        outcome = answering.result()
        if not body.done:
            return "close"  # it was answered before all of it was sent
        return outcome if asked.keeps_alive or outcome == "raw" else "close"
    finally:
        await _cancel(*filter(None, (sending, answering, gone)))


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _send_body(client: Stream, server: Stream, body: Body) -> None:
    """Send a request's body. If one of them ends too early, the server sees the end. Raises: MalformedHeadError."""
    try:
        whole = await pump(client, server, body)
    except OSError:
        whole = False
    if not whole:
        with contextlib.suppress(OSError):
            await server.end()


async def _wait_until_gone(client: Stream) -> None:
    """Return some time after the client has ended its side: most that do so no longer wait for an answer."""
    if not isinstance(client, SocketStream):
        await asyncio.Event().wait()
        return
    await client.readable()
    with contextlib.suppress(OSError):
        if client.ahead or client.socket.recv(1, socket.MSG_PEEK):
            await asyncio.Event().wait()  # its next request
        await asyncio.sleep(LEFT_SECONDS)


async def _pass_answer(client: Stream, server: Stream, sent: RequestHead, sending: asyncio.Future[None]) -> Outcome:
    while True:
        data = await _receive_head(server, MAX_ANSWER_HEAD_BYTES)
        if data is None:
            return "close"
        head = read_answer(data)
        if head.status == 101:
            return await _change_protocol(client, data, head, sent, sending)
        if head.status >= 200:
            break
        if head.status != 100:
            await client.send(data)
    measure = measure_answer(head, method=sent.method)
    await client.send(data)
    if measure is None or not (isinstance(measure, CountedBody) and measure.done):
        await pump(server, client, measure)
    whole = measure is not None and measure.done
    return "again" if whole and head.keeps_alive else "close"


async def _change_protocol(
    client: Stream, data: bytes, head: AnswerHead, sent: RequestHead, sending: asyncio.Future[None]
) -> Outcome:
    if sent.upgrade is None:
        raise MalformedHeadError("a change of protocol that was not asked for")
    await asyncio.wait([sending])  # a request of this kind has no body
    await client.send(data)
    return "raw"
