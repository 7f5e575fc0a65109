"""DNS messages, as far as a gate answers them: one question, and an answer of at most one address. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from corral.network.rules import read_name

A: Final = 1
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME, NOT_IMPLEMENTED, REFUSED = 0, 2, 3, 4, 5
MAX_QUERY_BYTES: Final = 1232
_CLASS_IN: Final = 1
_HEAD: Final = struct.Struct("!HHHHHH")
_RESPONSE, _AUTHORITATIVE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0100, 0x0080
_OPCODE_SHIFT: Final = 11


@dataclass(frozen=True, slots=True)
class Question:
    """A query that was understood."""

    message_id: int
    flags: int
    kind: int
    text: str
    """The name as it was asked for, for a reader."""
    name: str | None
    """As of `read_name`; None if it is no name of a host."""
    raw: bytes
    """The question as it was sent, for the answer."""
    standard: bool
    """False for another operation than a query, and another class than the internet."""

    @property
    def is_reverse(self) -> bool:
        """True for a question about the name of an address."""
        return self.name is not None and self.name.endswith((".in-addr.arpa", ".ip6.arpa"))


def read_query(data: bytes) -> Question | None:
    """The question of a message; None if it is malformed, or no query."""
    if len(data) < _HEAD.size or len(data) > MAX_QUERY_BYTES:
        return None
    message_id, flags, questions, answers, authorities, _ = _HEAD.unpack_from(data)
    if flags & _RESPONSE or questions != 1 or answers or authorities:
        return None
    labels, position = [], _HEAD.size
    while True:
        if position >= len(data):
            return None
        length = data[position]
        position += 1
        if length == 0:
            break
        # 0xC0 would point elsewhere: nothing stands before the question.
        if length > 63 or position + length > len(data):
            return None
        labels.append(data[position : position + length])
        position += length
        if position - _HEAD.size > 254:
            return None
    if position + 4 > len(data):
        return None
    kind, klass = struct.unpack_from("!HH", data, position)
    text = ".".join(label.decode("latin-1") for label in labels)
    # A label with a dot in it would read as two, and bytes beyond ASCII as letters.
    plain = all(label.isascii() and b"." not in label for label in labels)
    return Question(
        message_id=message_id,
        flags=flags,
        kind=kind,
        text=text or ".",
        name=read_name(text) if plain and text else None,
        raw=data[_HEAD.size : position + 4],
        standard=flags >> _OPCODE_SHIFT & 0xF == 0 and klass == _CLASS_IN,
    )


def answer(question: Question, code: int = NO_ERROR) -> bytes:
    """An answer without any record."""
    return _write(question, code, 0)


def answer_with(question: Question, address: IPv4Address, *, seconds: int) -> bytes:
    """An answer with one address, which may be remembered for so many seconds."""
    record = struct.pack("!HHHIH", 0xC000 | _HEAD.size, A, _CLASS_IN, seconds, 4) + address.packed
    return _write(question, NO_ERROR, 1) + record


def _write(question: Question, code: int, records: int) -> bytes:
    kept = question.flags & (0xF << _OPCODE_SHIFT | _RECURSION_DESIRED)
    flags = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | kept | code
    return _HEAD.pack(question.message_id, flags, 1, records, 0, 0) + question.raw
