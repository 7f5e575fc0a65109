"""Ports of a sandbox as addresses of this machine: what `expose` returns.

A listener accepts, dials the port inside for each connection, and passes bytes on; so a server may be started after its
port is exposed, and be restarted. All of them run on one thread of their own: a caller that blocks its event loop, for
example by opening the URL, does not block them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from corral.client.peers import may_connect
from corral.concurrency.portal import PerProcess, Portal
from corral.concurrency.relaying import relay
from corral.concurrency.waiting import cancel_all
from corral.errors import CorralError, PortClosedError, SandboxGoneError, SpecError
from corral.inside.nolinks import on_error
from corral.spec import check_count

Dial = Callable[[int], Awaitable[socket.socket]]

MAX_CONNECTIONS = 256
"""Of one exposed port, at the same time; more wait in the kernel's queue."""
_ADDRESS_ATTEMPTS = 16
_BREATH_SECONDS = 0.05
_OF_SANDBOXES = int(ipaddress.IPv4Address("127.77.0.1"))
"""Where programs in a sandbox find their way out: in case this one runs in a sandbox as well."""
_FIRST_WORD_SECONDS = 2.0
_HINTS = {
    errno.EADDRNOTAVAIL: "use an address of this machine",
    errno.EACCES: "ports below 1024 need root: choose another one",
    errno.EPERM: "ports below 1024 need root: choose another one",
}
_REQUEST_LINE = re.compile(rb"[A-Z]{3,10} /[^\r\n]*(?:\r?\n|$)")

log = logging.getLogger("corral.sandbox")

get_portal = PerProcess(lambda: Portal("corral-forward")).get


def check_port(port: object, *, what: str = "port") -> int:
    """Raises: SpecError if it is not a TCP port."""
    check_count(port, what=what)
    assert isinstance(port, int)
    if port > 65535:
        raise SpecError(f"{what}={port!r} is not a port", hint="use 1 to 65535")
    return port


class Forwards:
    """The exposed ports of one handle. For any thread and event loop."""

    def __init__(self) -> None:
        self._made_by = os.getpid()
        self._open: dict[tuple[int, int | None, str | None], Forward] = {}

    async def open(self, forward: Forward) -> str:
        """Listen; returns the URL. The same request again returns the same URL. Raises: SpecError."""
        return await get_portal().arun(self._begin(forward))

    async def _begin(self, forward: Forward) -> str:
        known = self._open.get(forward.wanted)
        if known is not None and not known.ended:
            return known.url
        forward.begin()
        self._open[forward.wanted] = forward
        return forward.url

    def close_soon(self) -> Awaitable[None] | None:
        """Begin to close all of them, in any thread; awaiting the result waits for the end."""
        if not self._open or self._made_by != os.getpid():
            return None  # in a forked child they belong to the parent
        return asyncio.wrap_future(get_portal().begin(self._close()))

    async def _close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        await asyncio.gather(*(forward.close() for forward in opened))


class Forward:
    """One exposed port. For the portal's thread."""

    def __init__(
        self, port: int, dial: Dial, *, local_port: int | None, address: str | None, sandbox_id: str,
        wait_until_gone: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Raises: SpecError for an invalid port or address."""
        self.port = check_port(port)
        if local_port is not None:
            check_port(local_port, what="local_port")
        self.wanted = (port, local_port, _check_address(address))
        self._dial = dial
        self._sandbox_id = sandbox_id
        self._wait_until_gone = wait_until_gone
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._told: set[int | None] = set()
        self.url = ""

    @property
    def ended(self) -> bool:
        """True if it does not listen any more: the sandbox has ended."""
        return self._listener is None

    def begin(self) -> None:
        """Listen. Raises: SpecError if the address or the port can't be had."""
        _, local_port, address = self.wanted
        self._listener = listener = _listen(self.port, local_port=local_port, address=address)
        host, port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._accept_more()
        self._keep(self._watch())

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop listening, and close every connection. Idempotent."""
        self._stop()
        await cancel_all(*self._tasks - {asyncio.current_task()})

    def _stop(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _watch(self) -> None:
        """Close it when the sandbox has ended, if the backend can tell; else the next connection finds out."""
        with contextlib.suppress(CorralError):
            await self._wait_until_gone()
            self._keep(self.close())

    def _accept_more(self) -> None:
        if self._listener is not None and self._connections < MAX_CONNECTIONS:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # A callback, since a cancelled `sock_accept` may lose a connection that it has just accepted.
        if self._listener is None:
            return
        loop = asyncio.get_running_loop()
        try:
            connection, peer = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: connections may end meanwhile
            loop.remove_reader(self._listener)
            loop.call_later(_BREATH_SECONDS, self._accept_more)
            return
        connection.setblocking(False)
        self._connections += 1
        if self._connections == MAX_CONNECTIONS:
            loop.remove_reader(self._listener)
        self._keep(self._serve(connection, peer)).add_done_callback(lambda _: self._forget(connection))

    def _forget(self, connection: socket.socket) -> None:
        connection.close()  # also of a task that was cancelled before it began
        self._connections -= 1
        self._accept_more()

    async def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        if self.wanted[2] is None and not self._is_permitted(connection, peer):
            return
        try:
            inside = await self._dial(self.port)
        except PortClosedError as error:
            await _say_closed(connection, error)
            return
        except SandboxGoneError:
            self._keep(self.close())
            return
        except (CorralError, OSError) as error:
            log.warning("port %d of sandbox %s: %s", self.port, self._sandbox_id, error)
            return
        with inside, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await relay(connection, inside)

    def _is_permitted(self, connection: socket.socket, peer: tuple[str, int]) -> bool:
        permitted, user = may_connect(connection.getsockname(), peer)
        if not permitted and user not in self._told:
            self._told.add(user)
            log.warning(
                "port %d of sandbox %s: a connection of user %s was closed; give address= to let other users in",
                self.port, self._sandbox_id, "?" if user is None else user,
            )  # fmt: skip
        return permitted


async def _say_closed(connection: socket.socket, error: PortClosedError) -> None:
    """Tell a browser that nothing listens yet; other protocols get the end of the connection."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_FIRST_WORD_SECONDS):
            if not _REQUEST_LINE.match(await loop.sock_recv(connection, 4096)):
                return
            text = f"{error}\n".encode()
            head = (
                "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            )
            await loop.sock_sendall(connection, head.encode() + text)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 65536):  # closed with bytes unread, the answer could be lost
                pass


def _check_address(address: str | None) -> str | None:
    if address is None:
        return None
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise SpecError(
            f"address={address!r} is not an address", hint="give an IP address of this machine, such as 127.0.0.1"
        ) from None


def _listen(port: int, *, local_port: int | None, address: str | None) -> socket.socket:
    """A listener: by default on a loopback address that nothing else uses, so that no two pages share cookies."""
    failure: OSError | None = None
    for candidate in _candidates(port, local_port=local_port, address=address):
        listener = socket.socket(socket.AF_INET6 if ":" in candidate[0] else socket.AF_INET, socket.SOCK_STREAM)
        with on_error(listener.close):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(candidate)
                listener.listen(128)
            except OSError as error:
                listener.close()
                failure = error
                continue
            listener.setblocking(False)
            return listener
    assert failure is not None
    text = f"can't listen on port {local_port or port} of {address or 'a loopback address'}: {failure.strerror}"
    hint = _HINTS.get(failure.errno or 0, "choose another port")
    raise SpecError(text, op="expose", hint=hint) from failure


def _candidates(port: int, *, local_port: int | None, address: str | None) -> list[tuple[str, int]]:
    if address is not None:
        # An address that was chosen keeps the port of the sandbox only if it was chosen too, or is free.
        return [(address, local_port)] if local_port else [(address, port), (address, 0)]
    own = [random_loopback() for _ in range(_ADDRESS_ATTEMPTS)]
    if local_port is not None:
        return [*((each, local_port) for each in own), ("127.0.0.1", local_port)]
    # Another port where that one needs a privilege; 127.0.0.1 on systems that have no other loopback address.
    return [*((each, port) for each in own), *((each, 0) for each in own[:1]), ("127.0.0.1", 0)]


def random_loopback() -> str:
    """An address of 127.64.0.0/10, where nothing usually listens."""
    while (address := (127 << 24) + (64 << 16) + 1 + secrets.randbelow((1 << 22) - 2)) == _OF_SANDBOXES:
        pass
    return str(ipaddress.IPv4Address(address))
