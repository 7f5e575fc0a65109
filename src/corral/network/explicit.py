"""The same listener as a proxy for programs that want one: CONNECT and whole addresses of HTTP, and SOCKS5.

`Doors` is what it asks of the connection that it serves.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from corral.network.checking import make_target, read_target, split_url
from corral.network.exchange import HEAD_SECONDS, exchange, receive_request
from corral.network.heads import MalformedHeadError, RequestHead
from corral.network.judge import LookupFailedError, NoSuchNameError, RefusedError, Target
from corral.network.outside import HTTP_PORT, UnreachableError
from corral.network.passage import Passage
from corral.network.pump import relay
from corral.network.stream import SocketStream, part, wait_for_any

SOCKS: Final = 5
_NO_LOGIN, _NO_METHOD = 0, 0xFF
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SUCCEEDED, _NOT_ALLOWED, _HOST_UNREACHABLE, _REFUSED, _BAD_COMMAND, _BAD_ADDRESS = 0, 2, 4, 5, 7, 8


@dataclass(frozen=True, slots=True)
class Doors:
    """What leads on from here."""

    open: Callable[[Target], Awaitable[Passage]]
    """Judge, and connect; the connection of before is closed.

    Raises: RefusedError (written down already), NoSuchNameError, LookupFailedError, UnreachableError."""
    deny: Callable[[str, int | None, str], None]
    """Write down what was refused: host, port, rule."""
    unlisted: Callable[[], str]
    """The rule for what is not listed."""
    allowed: Callable[[], str]
    """What is permitted, for a reader."""


async def serve(client: SocketStream, doors: Doors) -> None:
    """Serve one connection to the proxy. Raises: as `Passage.run`; EOFError."""
    async with asyncio.timeout(HEAD_SECONDS):
        if not client.ahead and not await client.fill():
            return
    if client.ahead[0] == SOCKS:
        await _serve_socks(client, doors)
    else:
        await _serve_http(client, doors)


async def _serve_http(client: SocketStream, doors: Doors) -> None:
    passage: Passage | None = None
    asked: Target | None = None
    first = True
    while True:
        if passage is not None and client not in await wait_for_any(client, passage.server):
            passage = None  # the server has had enough; the next request is for another connection
        try:
            head = await receive_request(client, first=first)
        except MalformedHeadError as error:
            doors.deny("?", None, "protocol")
            await _say(client, 400, f"bad request: {error}")
            return
        if head is None:
            return
        first = False
        if head.method == "CONNECT":
            await _serve_connect(client, head, doors)
            return
        target = await _read_whole(client, head, doors)
        if target is None:
            return
        if passage is None or asked != target:
            passage, asked = await _open(client, target, doors), target
            if passage is None:
                return
        try:
            sent = passage.make_request(head)
        except RefusedError as error:
            doors.deny(error.host or target.host, target.port, error.rule)
            await _say_blocked(client, target, error.rule, doors)
            return
        outcome = await exchange(client, passage.server, head, sent)
        if outcome == "raw":
            await relay(client, passage.server)
            return
        if outcome == "close":
            await part(client)
            return


async def _read_whole(client: SocketStream, head: RequestHead, doors: Doors) -> Target | None:
    """Where a request goes that has a whole address; None if it was answered already."""
    if head.target.startswith("/") or head.target == "*":
        await _say(client, 400, "this is a proxy: ask it for a whole address, such as http://example.org/")
        return None
    try:
        authority, _ = split_url(head.target)
    except MalformedHeadError as error:
        doors.deny("?", None, "protocol")
        await _say(client, 400, f"bad request: {error}")
        return None
    target = read_target(authority, port=HTTP_PORT)
    if target is None:
        doors.deny(authority, None, doors.unlisted())
        await _say(client, 403, f"network: blocked {authority!r}, which is not the name of a host")
    return target


async def _serve_connect(client: SocketStream, head: RequestHead, doors: Doors) -> None:
    target = read_target(head.target)
    if target is None:
        doors.deny(head.target, None, doors.unlisted())
        await _say(client, 403, f"network: blocked {head.target!r}, which is not a host with a port")
        return
    if head.is_chunked or head.content_length:
        doors.deny(target.host, target.port, "protocol")
        await _say(client, 400, "bad request: CONNECT has no body")
        return
    passage = await _open(client, target, doors)
    if passage is not None:
        await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await passage.run()


async def _open(client: SocketStream, target: Target, doors: Doors) -> Passage | None:
    """A way to a target; None if the client was told why there is none."""
    try:
        return await doors.open(target)
    except RefusedError as error:
        await _say_blocked(client, target, error.rule, doors)
    except NoSuchNameError:
        await _say(client, 502, f"{target.host}: there is no such name")
    except LookupFailedError:
        await _say(client, 504, f"{target.host}: the name could not be looked up")
    except UnreachableError as error:
        await _say(client, 502, f"{target} could not be reached: {error}")
    return None


async def _say_blocked(client: SocketStream, target: Target, rule: str, doors: Doors) -> None:
    await _say(client, 403, f"network: blocked {target} ({rule}); allowed are {doors.allowed()}")


_REASONS: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 504: "Gateway Timeout"}


async def _say(client: SocketStream, status: int, text: str) -> None:
    """Answer a request ourselves, and close."""
    body = text.encode("ascii", "replace") + b"\n"
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    await client.send(head.encode("ascii") + b"Connection: close\r\n\r\n" + body)
    await part(client)


async def _serve_socks(client: SocketStream, doors: Doors) -> None:
    async with asyncio.timeout(HEAD_SECONDS):
        _, methods = await client.take(2)
        if _NO_LOGIN not in await client.take(methods):
            await client.send(bytes((SOCKS, _NO_METHOD)))
            return
        await client.send(bytes((SOCKS, _NO_LOGIN)))
        version, command, _, kind = await client.take(4)
        host = await _read_socks_host(client, kind)
        (port,) = struct.unpack("!H", await client.take(2)) if host is not None else (0,)
    if version != SOCKS or host is None:
        await _answer_socks(client, _BAD_ADDRESS)
        return
    if command != _CONNECT:
        doors.deny(host, port or None, "protocol")
        await _answer_socks(client, _BAD_COMMAND)
        return
    target = make_target(host, port) if port else None
    if target is None:
        doors.deny(host, port or None, doors.unlisted())
        await _answer_socks(client, _NOT_ALLOWED)
        return
    try:
        passage = await doors.open(target)
    except RefusedError:
        await _answer_socks(client, _NOT_ALLOWED)
    except (NoSuchNameError, LookupFailedError):
        await _answer_socks(client, _HOST_UNREACHABLE)
    except UnreachableError:
        await _answer_socks(client, _REFUSED)
    else:
        await _answer_socks(client, _SUCCEEDED)
        await passage.run()


async def _read_socks_host(client: SocketStream, kind: int) -> str | None:
    if kind == _IPV4:
        return str(ip_address(await client.take(4)))
    if kind == _IPV6:
        return str(ip_address(await client.take(16)))
    if kind == _NAME:
        (size,) = await client.take(1)
        return (await client.take(size)).decode("latin-1")
    return None


async def _answer_socks(client: SocketStream, code: int) -> None:
    await client.send(bytes((SOCKS, code, 0, _IPV4)) + bytes(4) + bytes(2))
    if code != _SUCCEEDED:
        await part(client)
