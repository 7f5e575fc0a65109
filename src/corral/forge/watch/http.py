"""Just enough HTTP for one page on loopback: GET, one request per connection, everything bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

MAX_HEAD_BYTES = 16 * 1024
HEAD_SECONDS = 10.0
# For every response. The page has its own content policy.
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Connection": "close",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NOTHING_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""For candidates' files: they may load and run nothing."""


class BadRequestError(Exception):
    """The client made a mistake. Carries the HTTP status."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request."""

    method: str
    path: str
    """Decoded, without the query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Keys are lower-case."""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read the head of one request. A body is not read.

    Raises:
        BadRequestError: the request is malformed.
        TimeoutError: no request came in time.
    """
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(431, "the request headers are too large") from error
    except asyncio.IncompleteReadError as error:
        raise BadRequestError(400, "incomplete request") from error
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise BadRequestError(400, "malformed request")
    headers: dict[str, str] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or name.strip() != name or name.lower() in headers:  # a second Host would be ambiguous
            raise BadRequestError(400, "malformed or duplicate header")
        headers[name.lower()] = value.strip()
    return Request(words[0], unquote(words[1].partition("?")[0], errors="replace"), headers)


def make_head(status: int, kind: str, *, more: Mapping[str, str] | None = None) -> bytes:
    """The head of a response."""
    headers = {"Content-Type": kind, "Content-Security-Policy": NOTHING_POLICY, **_ALWAYS, **(more or {})}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def make_answer(status: int, kind: str, body: bytes, *, more: Mapping[str, str] | None = None) -> bytes:
    """A whole response."""
    return make_head(status, kind, more={"Content-Length": str(len(body)), **(more or {})}) + body
