"""Docstrings that are written once, at the promise, and shown wherever it is kept: by `help()`, on every class."""

from __future__ import annotations

from typing import Any

_REFERS = "See `"
"""So begins a docstring that only says where the real one is."""


class Documented:
    """Gives a class's methods the docstrings of its promises, and those of a subclass the ones of its bases."""

    __slots__ = ()

    def __init_subclass__(cls, *, promises: tuple[type, ...] = (), **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in vars(cls).items():
            text = getattr(member, "__doc__", None)
            if name.startswith("_") or not isinstance(text, str):
                continue
            found = _find(name, promises)
            if not found and text.startswith(_REFERS):
                found = _find(name, cls.__mro__[1:])
            if found:
                member.__doc__ = found


def _find(name: str, owners: tuple[type, ...]) -> str:
    """The first docstring of that name which says something itself."""
    for owner in owners:
        text = getattr(vars(owner).get(name), "__doc__", None)
        if isinstance(text, str) and not text.startswith(_REFERS):
            return text
    return ""
