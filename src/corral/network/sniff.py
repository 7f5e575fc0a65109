"""What a client speaks, from its first bytes. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from corral.network.hello import looks_like_tls

Kind = Literal["tls", "http", "other", "refused"]

_MAX_LINE_BYTES: Final = 32 * 1024
_SPACE: Final = rb"[\t\x0b\x0c\x1c-\x20\x85\xa0]"
"""What one server or another takes for a space."""
_HTTP_LINE: Final = re.compile(_SPACE + rb"HTTP/[0-9]", re.IGNORECASE)
_OLD_REQUEST: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|CONNECT|PATCH)" + _SPACE + rb"+(?:/|https?://).*",
    re.IGNORECASE | re.DOTALL,
)
"""Of the time before versions, or with one that only some server can read: it may answer with its usual host."""
_REQUEST: Final = re.compile(
    _SPACE + rb"*(?:[A-Za-z_-]*(?:" + _SPACE + rb".*)?|[!#$%&'*+.^_`|~0-9A-Za-z-]*(?:" + _SPACE + rb"[^\0]*)?)",
    re.DOTALL,
)
"""How one begins. Servers agree about what a method is, but not about which bytes may follow it."""
_PROXY_2: Final = b"\r\n\r\n\x00\r\nQUIT\n"


def sniff(data: bytes | bytearray) -> Kind | None:
    """`refused`: would be read as something else than it seems; None: more bytes are needed to know.

    Whatever a lenient server might take for a request of HTTP is called that, and then read strictly.
    """
    tls = looks_like_tls(data)
    if tls is not False:
        return "tls" if tls else None
    if data.startswith(_PROXY_2):
        return "refused"
    begin = 0
    while begin < len(data) and data[begin] in b"\r\n":
        begin += 1
    if begin > _MAX_LINE_BYTES:
        return "refused"
    if begin == len(data):
        return None
    end = data.find(b"\n", begin)
    line = bytes(data[begin : end if end >= 0 else None])
    if end < 0:
        return _sniff_partial(line)
    line = line.removesuffix(b"\r")
    if line.startswith(b"PROXY "):
        return "refused"  # the head of a proxy, before what a client would send
    return "http" if _HTTP_LINE.search(line) or _OLD_REQUEST.fullmatch(line) else "other"


def _sniff_partial(line: bytes) -> Kind | None:
    """The same for a line whose end has not come yet."""
    if _REQUEST.fullmatch(line) is None:
        return "other"
    return "refused" if len(line) > _MAX_LINE_BYTES else None
