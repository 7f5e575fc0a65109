"""Docstrings that are written once, at the promise, and shown wherever it is kept: by `help()`, on every class."""

from __future__ import annotations

from functools import cached_property
from types import FunctionType
from typing import Any

_REFERS = "See `"
"""So begins a docstring that only says where the real one is."""
_WITH_DOCSTRING = (FunctionType, property, cached_property, classmethod, staticmethod)
"""What has a docstring of its own, which can be set."""


class Documented:
    """Gives a class's methods the docstrings of its promises, and those of a subclass the ones of its bases."""

    __slots__ = ()

    def __init_subclass__(cls, *, promises: tuple[type, ...] = (), **rest: Any) -> None:
        super().__init_subclass__(**rest)
        for name, member in vars(cls).items():
            if name.startswith("_") or not isinstance(member, _WITH_DOCSTRING) or not member.__doc__:
                continue
            text = member.__doc__
            found = _find(name, promises)
            if not found and text.startswith(_REFERS):
                found = _find(name, cls.__mro__[1:])
            if found:
                member.__doc__ = found


def _find(name: str, owners: tuple[type, ...]) -> str:
    """The first docstring of that name which says something itself."""
    for owner in owners:
        member = vars(owner).get(name)
        # Not of anything else: every object has a __doc__, in newer versions of Python even None has one.
        if isinstance(member, _WITH_DOCSTRING) and member.__doc__ and not member.__doc__.startswith(_REFERS):
            return member.__doc__
    return ""
