"""The first message of a TLS client: which server it asks for. Pure; fed with bytes as they come, in any pieces."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

HANDSHAKE, APPLICATION_DATA = 22, 23
_CHANGE_CIPHER, _ALERT = 20, 21
_LAST_VERSION: Final = 15
"""The highest first byte of a record's version that a server takes for one."""
_CLIENT_HELLO: Final = 1
_MAX_RECORD_BYTES: Final = 16 * 1024
MAX_HELLO_BYTES: Final = 64 * 1024
_SERVER_NAME, _ALPN, _EARLY_DATA = 0, 16, 42
_RECORD_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4


class MalformedError(Exception):
    """Not what a TLS client sends."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What matters of it."""

    server_name: str | None
    """As it was sent; None if there was none."""
    protocols: tuple[str, ...] = ()
    """ALPN: `h2`, `http/1.1`."""
    early_data: bool = False


def looks_like_tls(data: bytes | bytearray) -> bool | None:
    """True if a client's first bytes begin TLS for some server, None if there are too few to know.

    Servers differ in what they let pass before a first message: there are some that skip a warning, and some that take
    a record of any version. `HelloReader` refuses both.
    """
    if not data:
        return None
    kind = data[0]
    if kind not in (_CHANGE_CIPHER, _ALERT, HANDSHAKE, APPLICATION_DATA):
        return False
    if len(data) < 2:
        return None
    if data[1] == 3:
        return True
    if data[1] > _LAST_VERSION or kind not in (_ALERT, HANDSHAKE):
        return False
    if len(data) <= _RECORD_HEAD_BYTES:
        return None
    inside = data[_RECORD_HEAD_BYTES]
    return inside == _CLIENT_HELLO if kind == HANDSHAKE else data[3:5] == b"\0\2" and inside in (1, 2)


class HelloReader:
    """Puts the message together from the records that it was cut into."""

    def __init__(self) -> None:
        self._message = bytearray()
        self._position = 0

    def read(self, data: bytes | bytearray) -> ClientHello | None:
        """The message, from all that was sent so far (more each time), None if it is not whole yet.

        Raises: MalformedError.
        """
        while len(data) - self._position >= _RECORD_HEAD_BYTES:
            kind, major, _, length = struct.unpack_from("!BBBH", data, self._position)
            if kind != HANDSHAKE or major != 3 or not 0 < length <= _MAX_RECORD_BYTES:
                raise MalformedError("not a record of a handshake")
            begin = self._position + _RECORD_HEAD_BYTES
            if len(data) < begin + length:
                break
            self._message += data[begin : begin + length]
            self._position = begin + length
            hello = self._parse()
            if hello is not None:
                return hello
        if len(data) > 2 * MAX_HELLO_BYTES:
            raise MalformedError("too long")
        return None

    def _parse(self) -> ClientHello | None:
        message = self._message
        if len(message) < _MESSAGE_HEAD_BYTES:
            if message and message[0] != _CLIENT_HELLO:
                raise MalformedError("not a ClientHello")
            return None
        length = int.from_bytes(message[1:4], "big")
        if message[0] != _CLIENT_HELLO or length > MAX_HELLO_BYTES:
            raise MalformedError("not a ClientHello, or too long")
        if len(message) < _MESSAGE_HEAD_BYTES + length:
            return None
        return parse_hello(bytes(message[_MESSAGE_HEAD_BYTES : _MESSAGE_HEAD_BYTES + length]))


def parse_hello(body: bytes) -> ClientHello:
    """The body of a ClientHello. Raises: MalformedError."""
    reader = _Reader(body)
    reader.skip(2 + 32)  # version, random
    reader.block(1)  # session
    reader.block(2)  # cipher suites
    reader.block(1)  # compression
    if reader.at_end:
        return ClientHello(None)
    extensions = _Reader(reader.block(2))
    if not reader.at_end:
        raise MalformedError("bytes after the extensions")
    name: str | None = None
    protocols: tuple[str, ...] = ()
    seen: set[int] = set()
    while not extensions.at_end:
        kind = extensions.number(2)
        content = extensions.block(2)
        if kind in seen:
            raise MalformedError("an extension twice")  # servers differ in which one counts
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _read_server_name(content)
        elif kind == _ALPN:
            protocols = _read_protocols(content)
    return ClientHello(name, protocols, early_data=_EARLY_DATA in seen)


def _read_server_name(content: bytes) -> str:
    outer = _Reader(content)
    entries = _Reader(outer.block(2))
    kind = entries.number(1)
    name = entries.block(2)
    if kind != 0 or not entries.at_end or not outer.at_end or not name.isascii():
        raise MalformedError("not the name of one host")
    return name.decode("ascii")


def _read_protocols(content: bytes) -> tuple[str, ...]:
    outer = _Reader(content)
    entries = _Reader(outer.block(2))
    found = []
    while not entries.at_end:
        found.append(entries.block(1).decode("latin-1"))
    return tuple(found)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def skip(self, size: int) -> None:
        self._take(size)

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def block(self, size: int) -> bytes:
        """Bytes after their length, which has `size` bytes."""
        return self._take(self.number(size))

    def _take(self, size: int) -> bytes:
        piece = self._data[self._position : self._position + size]
        if len(piece) < size:
            raise MalformedError("too short")
        self._position += size
        return piece


class HelloWatch:
    """A `pump.Measure` for what a TLS client sends, from its first message on: a server that wants another key asks
    for that message again, and the second must be for the same host.

    Everything up to the first record of data is looked at; if data may come before the second message, everything is.
    """

    def __init__(self, hello: ClientHello) -> None:
        self.done = False
        self._hello = hello
        self._head = bytearray()
        self._left = 0
        self._message = bytearray()
        self._is_message = False
        self._hellos = 0
        self._over = False

    def take(self, piece: memoryview) -> int:
        """As `pump.Measure`. Raises: MalformedError."""
        size = len(piece)
        position = 0
        while not self._over and position < size:
            if self._left:
                used = min(self._left, size - position)
                if self._is_message:
                    self._read(piece[position : position + used])
                self._left -= used
            else:
                used = min(_RECORD_HEAD_BYTES - len(self._head), size - position)
                self._head += piece[position : position + used]
                if len(self._head) == _RECORD_HEAD_BYTES:
                    self._begin_record()
            position += used
        return size

    def _begin_record(self) -> None:
        kind, _, _, self._left = struct.unpack("!BBBH", self._head)
        self._head.clear()
        self._is_message = kind == HANDSHAKE
        if self._is_message:
            return
        if self._message or kind not in (_CHANGE_CIPHER, _ALERT, APPLICATION_DATA):
            raise MalformedError("not a record that comes here")
        if kind == APPLICATION_DATA:
            self._over = not self._hello.early_data

    def _read(self, piece: memoryview) -> None:
        """A message in the clear: a ClientHello, or one of TLS 1.2."""
        self._message += piece
        if self._message[0] != _CLIENT_HELLO:
            self._over = True  # the key of TLS 1.2 and older: what is encrypted follows
            return
        if len(self._message) < _MESSAGE_HEAD_BYTES:
            return
        end = _MESSAGE_HEAD_BYTES + int.from_bytes(self._message[1:4], "big")
        if end > MAX_HELLO_BYTES or len(self._message) > end:
            raise MalformedError("too long")
        if len(self._message) < end:
            return
        if parse_hello(bytes(self._message[_MESSAGE_HEAD_BYTES:])).server_name != self._hello.server_name:
            raise MalformedError("another host the second time")
        self._message.clear()
        self._hellos += 1
        self._over = self._hellos > 1 and not self._hello.early_data
