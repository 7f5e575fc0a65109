"""The base classes of wire models."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class Model(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A JSON object with camelCase keys. Fields that equal their default are omitted, so a field that clients need has
    no default."""


class Answer(Model, omit_defaults=False):
    """An answer whose fields are all sent. A default is what this server always says: that a feature is off."""


class Query(msgspec.Struct, kw_only=True, rename="camel"):
    """The query of a request. A list takes a key that is given more than once."""


def seconds_of(moment: datetime | None) -> float | None:
    """A time of a query as a Unix time; without a zone it is in UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
