"""Refusals as the wire knows them: a status, a message for people, and sometimes a code that clients map to a class."""

from __future__ import annotations

from collections.abc import Mapping

DAEMON = "DAYTONA_DAEMON"
"""The `source` under which clients look codes up."""


class Fault(Exception):  # noqa: N818 - it is an answer, not a failure of ours
    """An answer that is no success. Raised anywhere in a handler; the app makes the body."""

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
    """404: it is not there, or is somebody else's, which must look the same."""
    return Fault(404, message, code=code)


def conflict(message: str, *, code: str | None = None) -> Fault:
    """409."""
    return Fault(409, message, code=code)


def not_here(what: str) -> Fault:
    """501: a part of the wire that this server does not have."""
    return Fault(501, f"not supported by this server: {what}")


def too_many(message: str, wait: float) -> Fault:
    """429, and when to come again."""
    return Fault(429, f"rate limit exceeded: {message}", headers={"Retry-After": str(max(1, round(wait + 0.5)))})
