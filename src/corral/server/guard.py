"""Host and Origin: a page in somebody's browser must not reach a server on that somebody's machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

from corral.server.faults import Fault
from corral.server.settings import ServerSettings

_LOCAL = frozenset({"127.0.0.1", "::1"})


class Guard:
    """What a request may say of where it goes and where it comes from."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._scheme = "https" if settings.tls else "http"
        public = urlsplit(settings.public_url) if settings.public_url else None
        # Nobody can make the name `localhost` lead anywhere else; a container's port is mostly reached by it.
        hosts = {host.lower() for host in settings.allowed_hosts} | {settings.host.lower(), "localhost"}
        if public is not None and public.hostname:
            hosts.add(public.hostname)
        if settings.is_loopback:
            hosts |= _LOCAL
        self._hosts = frozenset(hosts)
        self._origins = frozenset(settings.allowed_origins) | ({settings.public_url} if settings.public_url else set())

    def check(self, request: web.Request) -> None:
        """Raises: Fault 421 for a foreign Host, 403 for a foreign Origin."""
        hosts = request.headers.getall("Host", [])
        # A request line that names a host of its own (as to a proxy) would go before the header.
        if len(hosts) != 1 or request.host != hosts[0] or not self._knows(_host_name(hosts[0])):
            raise Fault(421, "this server does not answer for that host name")
        origins = request.headers.getall("Origin", [])
        for origin in origins:
            if origin not in self._origins and origin != f"{self._scheme}://{hosts[0]}":
                raise Fault(403, "requests of pages of that origin are not answered")

    def _knows(self, name: str | None) -> bool:
        if name is None:
            return False
        if name in self._hosts:
            return True
        # A name can be made to lead here by whoever owns it; a number can't. Loopback has its list.
        return not self._settings.is_loopback and _is_address(name)

    def base_url(self, request: web.Request) -> str:
        """How this caller reaches us, without a path. The Host was checked."""
        return self._settings.public_url or f"{self._scheme}://{request.host}"


def _host_name(header: str) -> str | None:
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
