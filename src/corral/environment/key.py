"""Keys of cached sandboxes: equal specs have equal keys, and a key reveals nothing about its spec."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

# Without it, a reader of the log could try short secrets until one has the same key.
_PEPPER = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class Same:
    """A value that is equal only to itself, regardless of its `__eq__`."""

    value: object


def make_key(*parts: Any) -> tuple[str, tuple[object, ...]]:
    """A key, and the objects in it that are compared by identity: they must live as long as the key is used."""
    held: list[object] = []
    digest = hashlib.blake2b(_spell(parts, held), key=_PEPPER, digest_size=16).hexdigest()
    return digest, tuple(held)


def _spell(value: Any, held: list[object]) -> bytes:
    """A value as bytes, which are equal only for equal values of the same type."""
    if value is None or isinstance(value, bool | int | float):
        return _frame(type(value).__name__, repr(value).encode())
    if isinstance(value, str):
        return _frame("str", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes | bytearray):
        return _frame("bytes", bytes(value))
    if isinstance(value, os.PathLike):
        return _frame("path", os.fsencode(value))
    if isinstance(value, Mapping):
        pairs = sorted((_spell(key, held), _spell(item, held)) for key, item in value.items())
        return _frame("mapping", b"".join(key + item for key, item in pairs))
    if isinstance(value, set | frozenset):
        return _frame("set", b"".join(sorted(_spell(item, held) for item in value)))
    if isinstance(value, list | tuple):
        return _frame("list", b"".join(_spell(item, held) for item in value))
    value, is_same = (value.value, True) if isinstance(value, Same) else (value, False)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_dataclass(value) and not isinstance(value, type) and not is_same:
        return _frame(kind, b"".join(_spell(getattr(value, field.name), held) for field in fields(value)))
    held.append(value)
    return _frame(kind, str(id(value)).encode())


def _frame(kind: str, body: bytes) -> bytes:
    return f"{kind}:{len(body)}:".encode() + body
