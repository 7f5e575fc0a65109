"""Netlink: requests to the kernel's network, written by hand. Each is sent and its answer read before the next."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

ROUTE: Final = 0
NETFILTER: Final = 12
REQUEST, ACK, CREATE, EXCLUSIVE, APPEND = 0x1, 0x4, 0x400, 0x200, 0x800
_ERROR: Final = 2
_NESTED: Final = 0x8000
_SECONDS: Final = 5.0
_HEADER: Final = struct.Struct("=IHHII")


def attribute(kind: int, content: bytes) -> bytes:
    """One attribute, padded."""
    return struct.pack("=HH", 4 + len(content), kind) + content + bytes(-len(content) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute made of others."""
    return attribute(kind | _NESTED, b"".join(attributes))


def message(kind: int, flags: int, body: bytes) -> bytes:
    """A request."""
    return _HEADER.pack(_HEADER.size + len(body), kind, REQUEST | flags, 0, 0) + body


def exchange(protocol: int, messages: bytes, *, answers: int) -> None:
    """Send messages as one, and wait for so many acknowledgements.

    Raises:
        OSError: the kernel refuses one of them, or does not know this protocol.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(_SECONDS)
        sock.bind((0, 0))
        sock.send(messages)
        while answers > 0:
            answers -= _count_acknowledgements(sock.recv(65536))


def _count_acknowledgements(data: bytes) -> int:
    count = offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if kind == _ERROR:
            (negative,) = struct.unpack_from("=i", data, offset + _HEADER.size)
            if negative:
                raise OSError(-negative, os.strerror(-negative), "netlink")
            count += 1
        offset += max((length + 3) & ~3, _HEADER.size)
    return count
