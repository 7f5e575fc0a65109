"""Heads of HTTP messages between a client and a program in a sandbox.

The program is hostile: its response is read strictly and written anew, so that no part of it can end one response and
begin another. What is the server's own (keys, tokens, cookies) never reaches the program.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
COOKIE = "corral_preview"
TOKEN_HEADER = "X-Daytona-Preview-Token"

Fields = Iterable[tuple[str, str]]

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_HOP_BY_HOP = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
_FRAMING = frozenset(("content-length", "transfer-encoding"))
_BEYOND_ITS_ORIGIN = frozenset((
    "alt-svc", "clear-site-data", "nel", "public-key-pins", "public-key-pins-report-only", "report-to", "server",
    "strict-transport-security",
))  # fmt: skip
"""Response headers that act on more than the page itself: on other ports, paths or hosts, or after its end."""
_OF_THE_SHARED_ORIGIN = frozenset(("service-worker-allowed", "set-cookie", "set-login", "www-authenticate"))
"""The same, where previews share an origin: with the path form."""
_OURS = frozenset((TOKEN_HEADER.lower(), "x-daytona-skip-last-activity-update", "expect"))
_FORWARDED = frozenset(("forwarded", "x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-proto",
                        "x-real-ip"))  # fmt: skip


class MalformedError(Exception):
    """What the program sent is not a response that may be passed on."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a program's response."""

    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]
    length: int | None = None
    """The length of its body, if it says so."""
    chunked: bool = False

    def get(self, name: str) -> list[str]:
        """The values of a field, by its name in lower case."""
        return [value for each, value in self.fields if each.lower() == name]


def read_head(data: bytes) -> Head:
    """A head, without the empty line at its end. Raises: MalformedError."""
    lines = data.split(b"\r\n")
    found = _STATUS.fullmatch(lines[0])
    if found is None:
        raise MalformedError("no HTTP/1 status line")
    if len(lines) > MAX_FIELDS + 1:
        raise MalformedError(f"more than {MAX_FIELDS} header fields")
    fields = tuple(_read_field(line) for line in lines[1:])
    reason = (found[3] or b"").decode("ascii", "replace").replace("\ufffd", "?")
    head = Head(int(found[2]), reason, fields)
    codings, lengths = head.get("transfer-encoding"), head.get("content-length")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != "chunked" or found[1] == b"0":
            raise MalformedError("its Transfer-Encoding is not 'chunked' alone")
        return Head(head.status, reason, fields, chunked=True)
    if lengths:
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise MalformedError("its Content-Length is not one number")
        return Head(head.status, reason, fields, length=int(lengths[0]))
    return head


def _read_field(line: bytes) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise MalformedError("a malformed header field")
    value = found[2].strip(b" \t")
    try:
        return found[1].decode("ascii"), value.decode()
    except UnicodeDecodeError:
        return found[1].decode("ascii"), value.decode("latin-1")


def named_by_connection(fields: Fields) -> set[str]:
    """The names of fields that are for one connection only, in lower case."""
    values = [value for name, value in fields if name.lower() == "connection"]
    return {token.strip().lower() for value in values for token in value.split(",")} | _HOP_BY_HOP


def response_fields(head: Head, *, shared_origin: bool) -> list[tuple[str, str]]:
    """The fields of a response that clients get; framing is added by the server."""
    left_out = named_by_connection(head.fields) | _FRAMING | _BEYOND_ITS_ORIGIN
    if shared_origin:
        left_out |= _OF_THE_SHARED_ORIGIN
    kept: list[tuple[str, str]] = []
    for name, value in head.fields:
        lower = name.lower()
        if lower in left_out:
            continue
        if lower == "set-cookie":
            value = own_cookie(value)  # noqa: PLW2901 - the same, kept to its origin
            if not value:
                continue
        kept.append((name, value))
    return kept


def own_cookie(value: str) -> str:
    """A Set-Cookie that is for this origin alone: without its domain. Empty if it has the name of the server's own."""
    first, *attributes = value.split(";")
    if first.partition("=")[0].strip().lower() == COOKIE:
        return ""
    kept = [each for each in attributes if each.partition("=")[0].strip().lower() != "domain"]
    return ";".join([first, *kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a program is told of the way that a request has come."""

    client: str
    scheme: str
    host: str
    prefix: str = ""
    """The part of the path that was cut off."""
    host_is_secret: bool = False
    """The host has the token of a signed link."""


def request_fields(
    fields: Fields, *, route: Route, ours: Collection[str], all_cookies: bool, length: int | None, websocket: bool
) -> list[tuple[str, str]]:
    """The fields of a request that a program gets.

    `ours` are fields, in lower case, that the server itself has used; `all_cookies`: leave out every cookie, not only
    the server's. `length` is that of the body: None if there is none, below 0 if it is not known.
    """
    given = list(fields)
    left_out = (named_by_connection(given) - {"host"}) | _FRAMING | _OURS | _FORWARDED | set(ours) | {"x-forwarded-for"}
    kept: list[tuple[str, str]] = []
    for name, value in given:
        lower = name.lower()
        if lower in left_out:
            continue
        if lower == "cookie":
            value = "" if all_cookies else others_cookies(value)  # noqa: PLW2901 - the same, without ours
            if not value:
                continue
        kept.append((name, value))
    before = [value for name, value in given if name.lower() == "x-forwarded-for"]
    kept.append(("X-Forwarded-For", ", ".join([*before, route.client])))
    kept.append(("X-Forwarded-Proto", route.scheme))
    kept.append(("X-Forwarded-Host", route.host))
    if route.prefix:
        kept.append(("X-Forwarded-Prefix", route.prefix))
    if length is not None:
        kept.append(("Content-Length", str(length)) if length >= 0 else ("Transfer-Encoding", "chunked"))
    kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")] if websocket else [("Connection", "close")]
    return kept


def others_cookies(value: str) -> str:
    """A Cookie field without the server's own cookie."""
    pairs = [pair.strip() for pair in value.split(";")]
    return "; ".join(pair for pair in pairs if pair and pair.partition("=")[0].strip() != COOKIE)


def write_request(method: str, target: str, fields: Fields) -> bytes:
    """The head of a request. Raises: MalformedError, rather than write a line that is more than one."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    data = "\r\n".join(lines).encode("utf-8", "surrogateescape")
    if data.count(b"\r\n") != len(lines) - 1 or data.count(b"\n") != len(lines) - 1 or b"\0" in data:
        raise MalformedError("a line break in a header field")
    if data.count(b"\r") != len(lines) - 1 or " " in target or not target.isprintable():
        raise MalformedError("a malformed request")
    return data + b"\r\n\r\n"
