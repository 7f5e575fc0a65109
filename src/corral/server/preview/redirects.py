"""Redirects of a program whose preview shares an origin with the API: they stay below the preview's own path.

A client that follows one to the same host sends its API key along. Without this, a program could choose which of the
API's methods the client calls next.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from corral.server.preview.heads import MalformedError

_ABSOLUTE = re.compile(r"(https?)://([^/?#@]+)((?:[/?#].*)?)", re.ASCII | re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]*))?", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.ASCII | re.IGNORECASE)
_ODD = re.compile(r"[\x00-\x20\x7f\\]")
"""Clients read these in different ways: some as a slash, some as nothing."""
_AFTER_PATH = re.compile(r"[?#]")
_DOT = re.compile("%2e", re.IGNORECASE)
_USUAL_PORTS = {"http": "80", "https": "443"}


def keep_below(prefix: str, location: str, *, target: str, scheme: str, host: str) -> str:
    """A Location as a client should see it; those that lead to other hosts stay as they are.

    `prefix` is the path of the preview, `target` what the program was asked for, `scheme` and `host` the client's.

    Raises:
        MalformedError: a redirect that clients understand in different ways.
    """
    if _ODD.search(location):
        raise MalformedError("its redirect has a character that URLs can't have")
    whole = f"{scheme}:{location}" if location.startswith("//") else location
    found = _ABSOLUTE.fullmatch(whole)
    if found is not None:
        if not _is_same(found[1].lower(), found[2], scheme, host):
            return location
        path = found[3] if found[3].startswith("/") else "/" + found[3]
    elif (named := _SCHEME.match(whole)) is not None:
        if named[1].lower() in _USUAL_PORTS:
            raise MalformedError("its redirect is not a URL")
        return location  # for another program of the client's machine
    else:
        path = location
    only = _AFTER_PATH.split(path, maxsplit=1)[0]
    if not only:
        return location  # the same page, with another query or fragment
    return prefix + _resolve(target.partition("?")[0], _without(prefix, only)) + path[len(only) :]


def _without(prefix: str, path: str) -> str:
    """A path as the program sees it: programs that are told of the prefix put it in front."""
    if path == prefix:
        return "/"
    return path.removeprefix(prefix) if path.startswith(prefix + "/") else path


def _resolve(base: str, path: str) -> str:
    """A path relative to another one, without dot segments: it can't climb above the root."""
    whole = path if path.startswith("/") else base.rpartition("/")[0] + "/" + path
    kept: list[str] = []
    segments = whole.split("/")[1:]
    for segment in segments:
        plain = _DOT.sub(".", segment)
        if plain == "..":
            del kept[-1:]
        elif plain != ".":
            kept.append(segment)
    if _DOT.sub(".", segments[-1]) in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _is_same(scheme: str, authority: str, own_scheme: str, own_host: str) -> bool:
    """Whether clients send a key for one host also to the other: some do from http to https."""
    theirs, ours = _AUTHORITY.fullmatch(authority), _AUTHORITY.fullmatch(own_host)
    if theirs is None or ours is None:
        raise MalformedError("its redirect is not a URL")
    ports = {theirs[2] or _USUAL_PORTS[scheme], ours[2] or _USUAL_PORTS[own_scheme]}
    return _name(theirs[1]) == _name(ours[1]) and (len(ports) == 1 or ports == {"80", "443"})


def _name(host: str) -> str:
    """A host in one form: clients take `127.1` and `0x7f000001` for an address, too."""
    lower = host.lower().removesuffix(".")
    try:
        return (
            str(ipaddress.IPv6Address(lower[1:-1]))
            if lower.startswith("[")
            else socket.inet_ntoa(socket.inet_aton(lower))
        )
    except (OSError, ValueError):
        return lower
