"""What all models of the wire have in common."""

from __future__ import annotations

import msgspec

from corral.results import timestamp


class Model(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A JSON object. Fields are camelCase there; one that equals its default is left out, so what a client must find
    has no default."""


class Query(msgspec.Struct, kw_only=True, rename="camel"):
    """The query of a request. A field that is a list takes a key that comes more than once."""


__all__ = ["Model", "Query", "timestamp"]
