"""Connections to ports of a sandbox: begun by init inside, checked and finished by the host."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Final

from corral.engine.errors import ProtocolError, RefusedError

LOOPBACK: Final = {False: "127.0.0.1", True: "::1"}
_SO_NETNS_COOKIE: Final = 71
"""Linux 5.14; Python has no name for it."""


def begin_dial(port: object, *, six: bool) -> socket.socket:
    """Inside: begin to connect to a port of the loopback; never waits.

    Raises:
        RefusedError: the kernel refused it; `errno` says why.
    """
    if type(port) is not int or not 1 <= port <= 65535:
        raise RefusedError(f"{port!r} is not a port", code="dial", errno=errno.EINVAL)
    made: socket.socket | None = None
    try:
        made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        number = made.connect_ex((LOOPBACK[six], port))
    except OSError as error:
        number = error.errno or errno.EIO
    if made is None or number not in (0, errno.EINPROGRESS):
        if made is not None:
            made.close()
        raise RefusedError(os.strerror(number), code="dial", errno=number)
    return made


class DialledSocket(socket.socket):
    """A connection that init began. Init may still have the same open file, and could make it blocking: so every call
    says that it must not block, whatever the file's own flag says."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        return super().recv(bufsize, flags | socket.MSG_DONTWAIT)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, nbytes, flags | socket.MSG_DONTWAIT)

    def send(self, data: Any, flags: int = 0, /) -> int:
        return super().send(data, flags | socket.MSG_DONTWAIT)

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None, /) -> int:
        return super().sendmsg(buffers, ancdata, flags | socket.MSG_DONTWAIT, address)


def take_dialled(descriptor: int) -> DialledSocket:
    """The host's handle of a connection that init has begun, of which nothing is believed.

    Raises:
        ProtocolError: it is not a TCP socket, or one of the host's own network.
    """
    try:
        taken = DialledSocket(fileno=descriptor)
    except OSError as error:
        os.close(descriptor)
        raise ProtocolError("a descriptor is not a socket") from error
    try:
        if taken.family not in (socket.AF_INET, socket.AF_INET6) or taken.type != socket.SOCK_STREAM:
            raise ProtocolError("a descriptor is not a TCP socket")
        if taken.proto != socket.IPPROTO_TCP or taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ProtocolError("a descriptor is not a TCP connection")
        _refuse_own_network(taken)
        taken.setblocking(False)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        taken.close()
        raise
    return taken


def check_dialled(taken: socket.socket, port: int, *, six: bool) -> int:
    """What has become of the connection: 0, or the error's number. Raises: ProtocolError if it leads elsewhere."""
    number = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        return number
    try:
        peer = taken.getpeername()
    except OSError as error:
        return error.errno or errno.ENOTCONN
    if peer[:2] != (LOOPBACK[six], port):
        raise ProtocolError("a connection leads to another address than asked for")
    return 0


def _refuse_own_network(taken: socket.socket) -> None:
    with socket.socket(taken.family, socket.SOCK_STREAM) as own:
        cookies = [_network_cookie(each) for each in (own, taken)]
    if cookies[0] is not None and cookies[0] == cookies[1]:
        raise ProtocolError("a connection belongs to the host's own network")


def _network_cookie(sock: socket.socket) -> int | None:
    """What tells network namespaces apart; None before Linux 5.14."""
    try:
        (cookie,) = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    except OSError:
        return None
    return int(cookie)
