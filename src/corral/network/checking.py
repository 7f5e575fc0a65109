"""For which host a request is, and whether that is the one that its connection is for. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from corral.network.heads import MalformedHeadError, RequestHead
from corral.network.judge import RefusedError, Target
from corral.network.rules import read_address, read_name

HTTP_PORT: Final = 80
_PORT: Final = re.compile(":[1-9][0-9]{0,4}")


def read_target(text: str, *, port: int | None = None) -> Target | None:
    """A host with its port, as in `Host`, in a URL and after CONNECT; `port` is the usual one. None for another text.

    Another spelling of an address, or a name with letters beyond ASCII, is no host.
    """
    if not text.isascii():
        return None
    if text.startswith("["):
        host, closed, rest = text.partition("]")
        if not closed:
            return None
        host += "]"
    else:
        host, colon, number = text.partition(":")
        rest = colon + number
    if rest:
        if _PORT.fullmatch(rest) is None or int(rest[1:]) > 65535:
            return None
        port = int(rest[1:])
    return None if port is None else make_target(host, port)


def make_target(host: str, port: int) -> Target | None:
    """What a program asks for: a name, or an address in its usual spelling. None for anything else."""
    address = read_address(host)
    if address is not None:
        return Target(str(address), port, address)
    name = None if host.startswith("[") or host != host.strip() else read_name(host)
    return None if name is None else Target(name, port)


def check_request(head: RequestHead, target: Target, *, strict: bool) -> RequestHead:
    """A request on a connection to `target`, with its path alone as target. Unless it is `strict`, it may be for any
    host.

    Strict is: the host of the connection, at its port. Another one would be served from the same address unjudged, and
    would get what is added for this one, even if it is permitted for itself.

    Raises: RefusedError, MalformedHeadError.
    """
    if head.method.upper() in ("CONNECT", "PRI"):
        raise MalformedHeadError("not a request to a server")
    host = head.value("host")
    if not head.target.startswith("/") and not (head.target == "*" and head.method == "OPTIONS"):
        authority, path = split_url(head.target)
        if host is not None and read_target(host, port=HTTP_PORT) != read_target(authority, port=HTTP_PORT):
            raise RefusedError("host", host=host)
        head = replace(head, target=path)
        if host is None:  # of HTTP/1.0: what is left of the address does not say it any more
            head = head.adding("Host", authority)
        host = authority
    if host is None:
        return head.adding("Host", show_authority(target))
    if strict:
        asked = read_target(host, port=target.port)
        if asked is None or (asked.host, asked.port) != (target.host, target.port):
            raise RefusedError("host", host=host)
    return head


def is_for(head: RequestHead, target: Target) -> bool:
    """True if a request names the host of its connection."""
    asked = read_target(head.value("host") or "", port=target.port)
    return asked is not None and (asked.host, asked.port) == (target.host, target.port)


def split_url(url: str) -> tuple[str, str]:
    """The host with its port, and the path, of an address such as `http://example.org/a`.

    Raises: MalformedHeadError.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() != "http":
        raise MalformedHeadError("not an address of HTTP")
    end = min((index for index in map(rest.find, "/?#") if index >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not authority or "@" in authority or "#" in path:
        raise MalformedHeadError("not an address of HTTP")
    return authority, path if path.startswith("/") else "/" + path


def show_authority(target: Target) -> str:
    """As in `Host` of a request over plain HTTP."""
    shown = f"[{target.host}]" if ":" in target.host else target.host
    return shown if target.port == HTTP_PORT else f"{shown}:{target.port}"
