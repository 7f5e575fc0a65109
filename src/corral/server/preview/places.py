"""Which port of which sandbox a request is for: by its Host, by the address it came to, or by its path.

- `{port}-{sandbox}.localhost`, and `{port}-{sandbox}.{--preview-domain}`;
- a loopback address that was given to this port alone;
- `/preview/{sandbox}/{port}/…`, at the server's own origin.

In the place of the sandbox's id there may be the token of a signed link.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_plus

from aiohttp import web

from corral.server.auth import QUERY_KEY, find_host, host_name
from corral.server.faults import Fault
from corral.server.store.rows import Preview

PATH = "/preview/"
LOCAL_DOMAIN = "localhost"
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NAME = re.compile(r"[0-9a-z][0-9a-z-]{7,55}", re.ASCII)
_LABEL = re.compile(rf"([0-9]+)-({_NAME.pattern})", re.ASCII)
_TOKEN = re.compile(r"[a-z2-7]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A port of a sandbox, as a request names it."""

    name: str
    """The sandbox's id, or a token."""
    port: int
    form: Literal["host", "address", "path"]
    host: str
    """The Host that the client used."""
    prefix: str = ""
    """What precedes the program's own path."""

    @property
    def token(self) -> str | None:
        """The token of a signed link, if it is named by one."""
        return self.name if _TOKEN.fullmatch(self.name) else None


def parse_port(text: str) -> int:
    """A port, exactly as a program would write it: `08000` is none. Raises: Fault 400."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise Fault(400, f"{text[:20]!r} is not a port")
    return int(text)


def new_token() -> str:
    """A random token that can be part of a host name: 160 bits, in lower case."""
    return base64.b32encode(secrets.token_bytes(20)).decode().lower()


class Places:
    """Finds the place of a request."""

    def __init__(self, addresses: Mapping[str, Preview], *, domain: str | None) -> None:
        self._addresses = addresses
        self._domains = tuple("." + each for each in (domain, LOCAL_DOMAIN) if each)

    def find(self, request: web.Request) -> Place | None:
        """None if the request is not for a preview. Raises: Fault, if it is for one that can't be."""
        own = request.transport.get_extra_info("sockname") if request.transport is not None else None
        preview = self._addresses.get(own[0]) if own else None
        if own and preview is not None:
            host = find_host(request)
            if host not in (f"{own[0]}:{own[1]}", own[0] if own[1] == 80 else None):
                raise Fault(421, "unknown host name in the Host header")  # a foreign page, by a name that leads here
            return Place(name=preview.sandbox_id, port=preview.port, form="address", host=host or "")
        host = find_host(request)
        name = host_name(host) if host is not None else None
        if host is not None and name is not None and (found := self._in_host(name, host)) is not None:
            return found
        if request.rel_url.raw_path.startswith(PATH):
            return self._in_path(request)
        return None

    def _in_host(self, name: str, host: str) -> Place | None:
        """None for names that are no preview's: the server itself may have such a name."""
        for domain in self._domains:
            found = _LABEL.fullmatch(name.removesuffix(domain)) if name.endswith(domain) else None
            if found is not None:
                return Place(name=found[2], port=parse_port(found[1]), form="host", host=host)
        return None

    def _in_path(self, request: web.Request) -> Place:
        parts = request.rel_url.raw_path.split("/", 4)  # "", "preview", name, port, rest
        if len(parts) < 4 or not _NAME.fullmatch(parts[2]):
            raise Fault(404, "no such preview: its path is /preview/{sandbox id}/{port}/")
        prefix = "/".join(parts[:4])
        return Place(name=parts[2], port=parse_port(parts[3]), form="path", host=request.host, prefix=prefix)


def target_of(request: web.Request, place: Place) -> str:
    """The path and query that the program gets, as the client wrote them, without what is the server's.

    Raises: Fault 400 for a target that is no path.
    """
    path, mark, query = request.raw_path.partition("?")
    if not path.startswith("/") or not path.startswith(place.prefix) or "#" in request.raw_path:
        raise Fault(400, "the target of the request is not a path")
    path = path.removeprefix(place.prefix) or "/"
    pairs = [pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]) != QUERY_KEY]
    kept = "&".join(pairs)
    return f"{path}?{kept}" if kept or (mark and not query) else path
