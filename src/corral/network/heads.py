"""Heads of HTTP/1 messages. Pure.

A request is read strictly: whatever two servers could understand in two ways is refused, and what is forwarded is
written anew from what was understood. An answer is read as leniently as is safe: it is the business of the client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

MAX_REQUEST_HEAD_BYTES: Final = 64 * 1024
MAX_ANSWER_HEAD_BYTES: Final = 128 * 1024
_MAX_FIELDS: Final = 200
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE: Final = re.compile(rf"({_TOKEN}{{1,64}}) ([\x21-\x7e]{{1,32768}}) HTTP/1\.([01])")
_IN_REQUEST_LINE: Final = re.compile(rb"[\x20-\x7e]*")
_FIELD: Final = re.compile(rf"({_TOKEN}{{1,256}}):([\t\x20-\x7e\x80-\xff]*)")
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_FRAMING: Final = frozenset(("content-length", "transfer-encoding", "host"))

Fields = tuple[tuple[str, str], ...]


class MalformedHeadError(Exception):
    """A head that is refused."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request that was understood. Its fields are in their order, with the case that they came in."""

    method: str
    target: str
    minor: int
    """Of the version: HTTP/1.0 or HTTP/1.1."""
    fields: Fields

    def values(self, name: str) -> list[str]:
        """The values of all fields of a name, given in lower case."""
        return [value for known, value in self.fields if known.lower() == name]

    def value(self, name: str) -> str | None:
        """The value of the only field of a name; None if there is none, or several."""
        found = self.values(name)
        return found[0] if len(found) == 1 else None

    def without(self, *names: str) -> RequestHead:
        """The head without fields of these names, given in lower case."""
        return replace(self, fields=tuple(field for field in self.fields if field[0].lower() not in names))

    def adding(self, name: str, value: str) -> RequestHead:
        """The head with one field more."""
        return replace(self, fields=(*self.fields, (name, value)))

    @property
    def content_length(self) -> int | None:
        """The length of the body; None if the body is chunked, or there is none."""
        value = self.value("content-length")
        return None if value is None else int(value)

    @property
    def is_chunked(self) -> bool:
        """True if the body is chunked."""
        return bool(self.values("transfer-encoding"))

    @property
    def upgrade(self) -> str | None:
        """The protocol that the client would like to change to."""
        return self.value("upgrade")

    @property
    def keeps_alive(self) -> bool:
        """True if the client may send another request after this one."""
        options = _options(self.values("connection"))
        return "close" not in options and (self.minor == 1 or "keep-alive" in options)

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return _write(f"{self.method} {self.target} HTTP/1.{self.minor}", self.fields)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The head of an answer."""

    status: int
    minor: int
    fields: Fields

    def values(self, name: str) -> list[str]:
        """The values of all fields of a name, given in lower case."""
        return [value for known, value in self.fields if known.lower() == name]

    @property
    def keeps_alive(self) -> bool:
        """True if the server may answer another request after this one."""
        options = _options(self.values("connection"))
        return "close" not in options and (self.minor == 1 or "keep-alive" in options)


def find_end(data: bytes | bytearray, start: int = 0) -> int:
    """Where the head ends that begins with `data`; -1 if it is not whole yet."""
    end = data.find(b"\r\n\r\n", max(0, start - 3))
    return -1 if end < 0 else end + 4


def may_be_request(data: bytes | bytearray) -> bool:
    """False if a head can't come of what has come so far."""
    end = data.find(b"\r\n")
    if end >= 0:
        return _REQUEST_LINE.fullmatch(data[:end].decode("latin-1")) is not None
    return _IN_REQUEST_LINE.fullmatch(data.removesuffix(b"\r")) is not None


def read_request(data: bytes) -> RequestHead:
    """A whole head, with the empty line. Raises: MalformedHeadError, which says what is wrong with it."""
    lines = _lines(data)
    matched = _REQUEST_LINE.fullmatch(lines[0])
    if matched is None:
        raise MalformedHeadError("not a request of HTTP/1.1")
    if len(lines) > _MAX_FIELDS:
        raise MalformedHeadError("too many headers")
    fields = []
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise MalformedHeadError("a malformed header")
        fields.append((field[1], field[2].strip(" \t")))
    head = RequestHead(matched[1], matched[2], int(matched[3]), tuple(fields))
    _check_framing(head)
    return head


def _check_framing(head: RequestHead) -> None:
    """Refuse what servers disagree about: where a request ends, and which host it is for."""
    lengths, codings = head.values("content-length"), head.values("transfer-encoding")
    if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
        raise MalformedHeadError("more than one length")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise MalformedHeadError("not a length")
    if codings and (codings[0].lower() != "chunked" or head.minor == 0):
        raise MalformedHeadError("a transfer coding other than chunked")
    if len(head.values("host")) > 1 or (head.minor == 1 and not head.values("host")):
        raise MalformedHeadError("not one Host")
    for name, _ in head.fields:
        plain = name.lower().replace("_", "-")
        if plain in _FRAMING and "_" in name:
            raise MalformedHeadError("a header that looks like another")
    if _options(head.values("connection")) & _FRAMING:
        raise MalformedHeadError("Connection names a header that must stay")
    if len(head.values("upgrade")) > 1:
        raise MalformedHeadError("more than one Upgrade")
    if any(value.lower() != "100-continue" for value in head.values("expect")):
        raise MalformedHeadError("an unknown expectation")


def read_answer(data: bytes) -> AnswerHead:
    """A whole head of an answer. Raises: MalformedHeadError."""
    lines = _lines(data)
    matched = _STATUS_LINE.fullmatch(lines[0])
    if matched is None:
        raise MalformedHeadError("not an answer of HTTP/1.1")
    fields: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if line[0] in " \t" and fields:
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip()}")
        elif colon:
            fields.append((name.strip(), value.strip()))
        else:
            raise MalformedHeadError("a malformed header")
    return AnswerHead(int(matched[2]), int(matched[1]), tuple(fields))


def _lines(data: bytes) -> list[str]:
    """The lines of a head. A line end of another kind, and a NUL, are not taken for part of a line."""
    lines = data[:-4].decode("latin-1").split("\r\n")
    if any(character in line for line in lines for character in "\r\n\0") or not all(lines):
        raise MalformedHeadError("a line end that is not one")
    return lines


def _options(values: list[str]) -> set[str]:
    return {option.strip().lower() for value in values for option in value.split(",")}


def _write(first: str, fields: Fields) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1")
