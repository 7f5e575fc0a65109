"""Error responses: a status, a message, and sometimes a code that SDKs map to an error class."""

from __future__ import annotations

from collections.abc import Mapping

DAEMON = "DAYTONA_DAEMON"
"""The `source` that SDKs need to look up a code."""


class Fault(Exception):  # noqa: N818 - it is an answer, not a failure of ours
    """An error response. Raised anywhere in a handler; `dispatch` makes the body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        source: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.source = source if source is not None else (DAEMON if code is not None else None)
        self.headers = dict(headers or {})
        self.details = dict(details or {})


def bad_request(message: str, *, code: str | None = None) -> Fault:
    """400."""
    return Fault(400, message, code=code)


def not_found(message: str, *, code: str | None = None) -> Fault:
    """404: it does not exist, or belongs to another organisation, which must look the same."""
    return Fault(404, message, code=code)


def conflict(message: str, *, code: str | None = None) -> Fault:
    """409."""
    return Fault(409, message, code=code)


def unsupported(what: str) -> Fault:
    """501: a part of Daytona's API that this server does not support."""
    return Fault(501, f"not supported by this server: {what}")


def too_many(message: str, wait: float) -> Fault:
    """429, with Retry-After."""
    return Fault(429, f"rate limit exceeded: {message}", headers={"Retry-After": str(max(1, round(wait + 0.5)))})
