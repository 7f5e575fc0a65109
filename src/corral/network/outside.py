"""The way out: to an address that was judged, or through the proxy that the host itself uses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urlsplit

from corral.inside.nolinks import on_error
from corral.network.heads import MalformedHeadError, find_end, read_answer
from corral.network.judge import LookupFailedError, NoSuchNameError, Permit, Resolver
from corral.network.limits import Meter
from corral.network.rules import Address, read_address
from corral.network.settings import Upstream
from corral.network.stream import FAST_CONNECTIONS, SocketStream, bound_buffers

CONNECT_SECONDS: Final = 20.0
_NEXT_SECONDS: Final = 5.0
"""How long an address is tried while there is another."""
_PROXY_SECONDS: Final = 30.0
_MAX_PROXY_ANSWER_BYTES: Final = 16 * 1024
HTTP_PORT: Final = 80


class UnreachableError(Exception):
    """What is permitted could not be reached."""


@dataclass(slots=True)
class Way:
    """A connection to the outside."""

    stream: SocketStream
    address: Address | None
    """The address that was judged and is connected; None if the host's proxy chose one."""
    by_proxy: ProxyPlace | None = None
    """The host's proxy, if it is to be asked for each request by its whole address."""


@dataclass(frozen=True, slots=True)
class ProxyPlace:
    """Where the host's proxy listens."""

    host: str
    port: int
    login: str | None
    """The value of Proxy-Authorization."""


class Outside:
    """For one policy."""

    def __init__(self, upstream: Upstream, resolver: Resolver, meter: Meter) -> None:
        self._http = _read_proxy(upstream.http)
        self._https = _read_proxy(upstream.https)
        self._no_proxy = [text.strip().lower() for text in upstream.no_proxy if text.strip()]
        self._resolver = resolver
        self._meter = meter

    def by_proxy(self, host: str, port: int | None) -> bool:
        """True if the host reaches that host through its proxy; without a port, if it may."""
        if port is None:
            return bool(self._http or self._https) and not self._is_direct(host, port)
        return self._proxy_for(port) is not None and not self._is_direct(host, port)

    async def connect(self, permit: Permit) -> Way:
        """Connect to what was permitted. Raises: UnreachableError."""
        proxy = None if permit.addresses else self._proxy_for(permit.port)
        if proxy is None:
            sock, address = await self._connect_any(permit.addresses, permit.port)
            return Way(SocketStream(sock, meter=self._meter), address)
        sock, _ = await self._connect_any(await self._find(proxy.host), proxy.port)
        stream = SocketStream(sock, meter=self._meter)
        if permit.port == HTTP_PORT:
            return Way(stream, None, by_proxy=proxy)
        with on_error(stream.close):
            await _ask_proxy(stream, proxy, str(permit.target))
        return Way(stream, None)

    def _proxy_for(self, port: int) -> ProxyPlace | None:
        return self._http if port == HTTP_PORT else self._https

    async def _find(self, host: str) -> tuple[Address, ...]:
        """The addresses of the proxy, which the operator chose: they are not judged."""
        address = read_address(host)
        if address is not None:
            return (address,)
        try:
            return tuple(await self._resolver.look_up(host))
        except (NoSuchNameError, LookupFailedError):
            raise UnreachableError("the host's proxy has no address") from None

    async def _connect_any(self, addresses: tuple[Address, ...], port: int) -> tuple[socket.socket, Address]:
        for index, address in enumerate(addresses):
            last = index == len(addresses) - 1
            with contextlib.suppress(OSError, TimeoutError):
                seconds = CONNECT_SECONDS if last else _NEXT_SECONDS
                return await _connect(address, port, seconds, fast=self._meter.connections <= FAST_CONNECTIONS), address
        raise UnreachableError("no address answers")

    def _is_direct(self, host: str, port: int | None) -> bool:
        address = read_address(host)
        for entry in self._no_proxy:
            pattern, colon, number = entry.rpartition(":")
            if colon and number.isdigit() and ":" not in pattern.strip("[]"):
                if port is not None and int(number) != port:
                    continue
            else:
                pattern = entry
            if _matches(pattern.strip("[]"), host, address):
                return True
        return False


def _matches(pattern: str, host: str, address: Address | None) -> bool:
    if pattern == "*":
        return True
    if address is not None:
        with contextlib.suppress(ValueError):
            network = ip_network(pattern, strict=False)
            return network.version == address.version and address in network
        return False
    plain = pattern.removeprefix("*").lstrip(".")
    return bool(plain) and (host == plain or host.endswith("." + plain))


def _read_proxy(url: str) -> ProxyPlace | None:
    if not url:
        return None
    parts = urlsplit(url)
    login = None
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(words.encode()).decode("ascii")
    return ProxyPlace(parts.hostname or "", parts.port or HTTP_PORT, login)


async def _connect(address: Address, port: int, seconds: float, *, fast: bool) -> socket.socket:
    """Connect to exactly this address."""
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    with on_error(sock.close):
        if not fast:
            bound_buffers(sock)
        sock.setblocking(False)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    return sock


async def _ask_proxy(stream: SocketStream, proxy: ProxyPlace, authority: str) -> None:
    """Have the host's proxy connect us. Raises: UnreachableError."""
    login = f"Proxy-Authorization: {proxy.login}\r\n" if proxy.login is not None else ""
    try:
        async with asyncio.timeout(_PROXY_SECONDS):
            await stream.send(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{login}\r\n".encode("ascii"))
            while (end := find_end(stream.ahead)) < 0:
                if len(stream.ahead) > _MAX_PROXY_ANSWER_BYTES or not await stream.fill():
                    raise UnreachableError("the host's proxy did not answer")
            head = read_answer(bytes(stream.ahead[:end]))
    except (OSError, TimeoutError, MalformedHeadError):
        raise UnreachableError("the host's proxy did not answer") from None
    if not 200 <= head.status < 300:
        raise UnreachableError(f"the host's proxy answered {head.status}")
    del stream.ahead[:end]


def parse_address(text: str) -> Address:
    """An address as the kernel shows it. Raises: ValueError."""
    return ip_address(text.partition("%")[0])
