"""Connections to the ports of a sandbox."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from corral.backends.embedded import seam
from corral.base.dialling import no_room, port_closed
from corral.engine import wire
from corral.engine.client import check
from corral.engine.dialling import DialledSocket, check_dialled, take_dialled
from corral.engine.errors import ProtocolError, RefusedError
from corral.errors import CapabilityError, SandboxError
from corral.inside.nolinks import on_error

_INIT_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
_CLOSED = frozenset((
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.ETIMEDOUT
))  # fmt: skip
"""Errors of a port where nothing listens; those in the middle, of a kernel or a sandbox without IPv6."""

Ask = Callable[[wire.Message], Awaitable[socket.socket]]


async def dial(ask: Ask, port: int, *, sandbox_id: str) -> socket.socket:
    """A connection to 127.0.0.1 inside; to ::1 if nothing listens there, as servers on `localhost` may do.

    Raises:
        PortClosedError: nothing listens on either of them.
        EngineError: as `seam.ask`; ProtocolError if what init passes is not such a connection.
    """
    for six in (False, True):
        number, connection = await _dial(ask, port, six=six, sandbox_id=sandbox_id)
        if connection is not None:
            return connection
        if number not in _CLOSED:
            break
    if (shortage := no_room(port, number, sandbox_id=sandbox_id)) is not None:
        raise shortage
    if number not in _CLOSED:
        text = f"no connection to port {port}: {errno.errorcode.get(number, number)}"
        raise SandboxError(text, sandbox_id=sandbox_id, op="dial")
    raise port_closed(port, sandbox_id=sandbox_id)


async def _dial(ask: Ask, port: int, *, six: bool, sandbox_id: str) -> tuple[int, DialledSocket | None]:
    with await ask({"op": "dial", "port": port, "six": six}) as reply:
        message, descriptors = await seam.receive_within(reply, _INIT_SECONDS)
    try:
        try:
            check(message)
        except RefusedError as refusal:
            if refusal.code == "unknown":
                raise CapabilityError(
                    "this sandbox was started by an earlier release, which can't connect to its ports",
                    sandbox_id=sandbox_id, op="dial", hint="stop it and start it again",
                ) from refusal  # fmt: skip
            if refusal.code != "dial":
                raise
            return refusal.errno or errno.EIO, None
        if len(descriptors) != 1:
            raise ProtocolError("a connection without its descriptor")
        taken = take_dialled(descriptors.pop())
    finally:
        wire.close_all(descriptors)
    with on_error(taken.close):
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await seam.wait_writable(taken.fileno())
        except TimeoutError:
            number = errno.ETIMEDOUT  # its queue of connections is full, and nobody takes one
        else:
            number = check_dialled(taken, port, six=six)
        if number == 0:
            return 0, taken
    taken.close()
    return number, None
