"""Paths, queries and bodies: read once, strictly, before anything is done."""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from corral.inside.jsonbounds import outside_texts
from corral.server.faults import Fault

_BRACKETS = re.compile(rb"[][{}]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def split_path(raw: str) -> tuple[str, ...]:
    """The segments of a raw path, each decoded once. Empty ones are left out: clients put slashes together carelessly.

    Raises:
        Fault: 400 for a dot segment, a control character, or what is not UTF-8.
    """
    segments = []
    for part in raw.split("/"):
        if not part:
            continue
        try:
            text = unquote_to_bytes(part).decode() if "%" in part else part
        except UnicodeDecodeError:
            raise Fault(400, "the path is not UTF-8") from None
        if text in (".", "..") or _CONTROL.search(text):
            raise Fault(400, "the path has a part that is no name")
        segments.append(text)
    return tuple(segments)


@functools.cache
def _shape(kind: type[msgspec.Struct]) -> dict[str, str]:
    """For each key of a query what it is: a list, a flag, or a single value."""
    hints = typing.get_type_hints(kind)
    shape = {}
    for field in msgspec.structs.fields(kind):
        parts = _alternatives(hints[field.name])
        flavour = "list" if list in parts else "flag" if bool in parts else "text"
        shape[field.encode_name] = flavour
    return shape


def _alternatives(hint: Any) -> set[Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return {part for argument in typing.get_args(hint) for part in _alternatives(argument)}
    return {origin or hint}


def parse_query(kind: type[msgspec.Struct], pairs: Iterable[tuple[str, str]]) -> Any:
    """The query as its model; keys that nobody asked for are left alone. Raises: Fault 400."""
    shape = _shape(kind)
    values: dict[str, Any] = {}
    for key, value in pairs:
        flavour = shape.get(key)
        if flavour is None:
            continue
        if flavour == "list":
            values.setdefault(key, []).append(value)
        elif key in values:
            raise Fault(400, f"query: {key!r} is given twice")
        elif flavour == "flag":
            if value not in ("true", "false"):
                raise Fault(400, f"query: {key!r} is neither true nor false")
            values[key] = value == "true"
        else:
            values[key] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Fault(400, f"query: {error}") from None


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def parse_body(kind: Any, body: bytes, *, max_depth: int, max_items: int) -> Any:
    """A JSON body as its model. Raises: Fault 400."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > max_depth or brackets + body.count(b'"') // 2 > max_items:
        _check_shape(body, max_depth=max_depth, max_items=max_items)
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise Fault(400, f"body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Fault(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Fault(400, "the body is nested too deeply") from None


def _check_shape(body: bytes, *, max_depth: int, max_items: int) -> None:
    """Everybody else waits meanwhile: only what is bounded by the number of items is looked at one by one."""
    found = outside_texts(body, max_texts=max_items)
    if found is None:
        raise _too_many_items(max_items)
    items, outside = found
    depth = 0
    for bracket in _BRACKETS.finditer(outside):
        if bracket[0] in b"]}":
            depth -= 1
            continue
        items += 1
        depth += 1
        if items > max_items:
            raise _too_many_items(max_items)
        if depth > max_depth:
            raise Fault(400, f"the body is nested deeper than {max_depth}")


def _too_many_items(max_items: int) -> Fault:
    return Fault(400, f"the body has more than {max_items} texts, objects and lists")
