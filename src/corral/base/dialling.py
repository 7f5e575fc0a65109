"""What backends share about connections to ports of a sandbox."""

from __future__ import annotations

import asyncio
import errno
import socket

from corral.errors import HostExhaustedError, PortClosedError
from corral.inside.nolinks import on_error

_CONNECT_SECONDS = 10.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def port_closed(port: int, *, sandbox_id: str) -> PortClosedError:
    """The error for a port where nothing listens."""
    hint = "start a server in the sandbox, on 127.0.0.1, localhost or 0.0.0.0"
    return PortClosedError(
        f"nothing listens on port {port} in the sandbox", sandbox_id=sandbox_id, op="dial", hint=hint
    )


def no_room(port: int, number: int, *, sandbox_id: str) -> HostExhaustedError | None:
    """The error if this number means that there are no sockets or no memory left; else None."""
    if number not in _NO_ROOM:
        return None
    text = f"no connection to port {port}: no sockets or no memory left"
    return HostExhaustedError(text, sandbox_id=sandbox_id, op="dial", hint="end what uses them, and try again")


async def dial_loopback(port: int, *, sandbox_id: str) -> socket.socket:
    """A connection to a port of this machine's own loopback. Raises: PortClosedError, HostExhaustedError."""
    loop = asyncio.get_running_loop()
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setblocking(False)
            with on_error(made.close):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await loop.sock_connect(made, (address, port))
                return made
        except OSError as error:  # also a timeout
            if (shortage := no_room(port, error.errno or 0, sandbox_id=sandbox_id)) is not None:
                raise shortage from error
    raise port_closed(port, sandbox_id=sandbox_id)
