"""Large answers: encoded in slices, each sent before the next is made, with other requests in between.

A JSON encoder holds the interpreter's lock from the first byte to the last, and its result is one more copy. So long
texts and lists are never encoded as a whole: at any time, memory has what the handler returned, and one slice.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from corral.concurrency.waiting import breathe
from corral.server.fairness import SLICE_BYTES, SLICE_ITEMS, is_large
from corral.server.sockets import cut_off

_FEW = 32
_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class LongText:
    """Bytes that become a string of the answer, decoded as they are sent; invalid UTF-8 becomes U+FFFD."""

    pieces: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Large:
    """An answer with long texts: a model, and the texts that replace some of its fields, by their JSON keys."""

    model: object
    texts: Mapping[str, LongText] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class ManyItems:
    """An answer that is a list, or an object around one list, produced in batches."""

    batches: AsyncGenerator[list[Any], None]
    around: tuple[bytes, bytes] = (b"[", b"]")


@dataclass(frozen=True, slots=True)
class PlainText:
    """An answer in plain text."""

    pieces: Iterable[bytes]


Sliced = Large | ManyItems | PlainText


def slices(value: object, texts: Mapping[str, LongText] | None = None) -> Iterator[bytes]:
    """A value as JSON, in pieces that are cheap to make. The same bytes that the encoder would give."""
    if isinstance(value, LongText):
        yield from _slices_of_text(_texts(value.pieces))
    elif isinstance(value, str) and len(value) > SLICE_BYTES // 4:
        starts = range(0, len(value), SLICE_BYTES // 4)
        yield from _slices_of_text(value[start : start + SLICE_BYTES // 4] for start in starts)
    elif isinstance(value, msgspec.Struct):
        yield from _slices_of_pairs({**_fields(value), **(texts or {})})
    elif isinstance(value, dict):
        yield from _slices_of_pairs(value)
    elif isinstance(value, list | tuple):
        yield b"["
        for start in range(0, len(value), _FEW):
            few = value[start : start + _FEW]
            if start:
                yield b","
            yield from _slices_of_each(few) if is_large(few) else (_encode(few)[1:-1],)
        yield b"]"
    else:
        yield _encode(value)


def _slices_of_each(few: list[Any] | tuple[Any, ...]) -> Iterator[bytes]:
    for number, item in enumerate(few):
        if number:
            yield b","
        yield from slices(item) if is_large(item) else (_encode(item),)


def _slices_of_pairs(pairs: Mapping[str, object]) -> Iterator[bytes]:
    yield b"{"
    for number, (name, item) in enumerate(pairs.items()):
        yield (b"," if number else b"") + _encode(name) + b":"
        yield from slices(item) if isinstance(item, LongText) or is_large(item) else (_encode(item),)
    yield b"}"


def _slices_of_text(parts: Iterable[str]) -> Iterator[bytes]:
    yield b'"'
    for part in parts:
        yield _encode(part)[1:-1]
    yield b'"'


def _texts(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        for start in range(0, len(piece), SLICE_BYTES):
            yield decoder.decode(piece[start : start + SLICE_BYTES])
    yield decoder.decode(b"", final=True)


@functools.cache
def _names(kind: type[msgspec.Struct]) -> list[tuple[str, str, object]]:
    """Of each field: its attribute, its JSON key, and the default with which it is omitted."""
    omits = kind.__struct_config__.omit_defaults
    found = []
    for each in msgspec.structs.fields(kind):
        default = each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
        found.append((each.name, each.encode_name, default if omits else msgspec.NODEFAULT))
    return found


def _fields(value: msgspec.Struct) -> dict[str, object]:
    found = {}
    for name, encoded, default in _names(type(value)):
        item = getattr(value, name)
        if item is not default and not (isinstance(item, bool | int | str | list | dict) and item == default):
            found[encoded] = item
    return found


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, in pieces large enough for a write each."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= SLICE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


async def send(
    request: web.Request, answer: Sliced, *, headers: Mapping[str, str], patience: float
) -> web.StreamResponse:
    """Send an answer piece by piece; a client that reads nothing for `patience` seconds is cut off.

    Errors before the first batch of `ManyItems` are raised, and answered as usual.
    """
    status, kind = 200, _JSON
    if isinstance(answer, Large):
        status, content = answer.status, _as_async(joined(slices(answer.model, answer.texts)))
    elif isinstance(answer, PlainText):
        kind, content = "text/plain; charset=utf-8", _as_async(joined(part.encode() for part in _texts(answer.pieces)))
    else:
        content = _slices_of_batches(answer)
    async with contextlib.aclosing(content):
        first = await anext(content, b"")
        response = web.StreamResponse(status=status, headers={"Content-Type": kind, **headers})
        await response.prepare(request)
        await write(request, response, first, patience=patience)
        async for piece in content:
            await write(request, response, piece, patience=patience)
    await response.write_eof()
    return response


async def write(request: web.Request, response: web.StreamResponse, piece: bytes, *, patience: float) -> None:
    """Write one piece. Raises: ConnectionError if the client reads nothing, and was cut off."""
    try:
        async with asyncio.timeout(patience):
            await response.write(piece)
    except TimeoutError:
        cut_off(request.transport)
        raise ConnectionError("the client does not read the response") from None
    await breathe()  # a fast client must not keep all others waiting


async def _as_async(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def _slices_of_batches(answer: ManyItems) -> AsyncGenerator[bytes, None]:
    before, after = answer.around
    held = bytearray(before)
    empty = True
    async with contextlib.aclosing(answer.batches):
        async for batch in answer.batches:
            for start in range(0, len(batch), SLICE_ITEMS):
                part = _encode(batch[start : start + SLICE_ITEMS])[1:-1]
                if part:
                    held += part if empty else b"," + part
                    empty = False
                if len(held) >= SLICE_BYTES:
                    yield bytes(held)
                    held.clear()
    held += after
    yield bytes(held)
