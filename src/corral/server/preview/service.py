"""Previews: the part of the server that answers for programs in sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from corral.errors import CorralError, PortClosedError, SandboxGoneError
from corral.server import log
from corral.server.auth import Doorkeeper, Guard, Keyring, host_name
from corral.server.faults import Fault
from corral.server.living import Sandboxes
from corral.server.preview.access import Access, Admitted
from corral.server.preview.addresses import Addresses
from corral.server.preview.exchange import Exchange, is_upgrade
from corral.server.preview.heads import COOKIE
from corral.server.preview.heads import Route as Way
from corral.server.preview.links import Links
from corral.server.preview.places import PATH, Place, Places, target_of
from corral.server.routing import SANDBOX, Route
from corral.server.settings import ServerSettings
from corral.server.sockets import cut_off
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox
from corral.server.translate import translate

if TYPE_CHECKING:
    from corral.server.routing import ApiCall


async def _answer_none(call: ApiCall) -> None:
    raise NotImplementedError("previews are answered before routes are looked up")


HELD_BYTES = 384 * 1024
"""The memory of a request that is passed on: pieces in both directions, and the buffers of the client's connection."""
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PREVIEW = Route(
    method="GET", path=PATH, handler=_answer_none, area="open", scope="run", name="preview",
    summary="A port of a sandbox.",
)  # fmt: skip
"""For the log and the metrics: previews are found before any route."""
_SKIP_ACTIVITY = "X-Daytona-Skip-Last-Activity-Update"


class Previews:
    """Links to ports of sandboxes, and the requests that come by them."""

    def __init__(
        self, settings: ServerSettings, *, database: Database, sandboxes: Sandboxes, keyring: Keyring, guard: Guard,
        door: Doorkeeper,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._sandboxes = sandboxes
        self._guard = guard
        self.addresses = Addresses(database, sandboxes)
        self.links = Links(database, keyring)
        self.access = Access(keyring=keyring, sandboxes=sandboxes, links=self.links, door=door)
        self.places = Places(self.addresses.given, domain=settings.preview_domain)
        """Tells which requests are for previews."""
        self._tunnels: set[asyncio.BaseTransport | None] = set()
        self._stopping = False
        sandboxes.listeners.append(self._forget)

    def _forget(self, row: Sandbox, before: str | None) -> None:
        if row.state == "destroyed":
            self.addresses.forget(row.id)
            self.links.forget(row.id)

    # Links.

    async def link(self, call: ApiCall, row: Sandbox, port: int) -> str:
        """The URL of a port, for a client that sends a token or a key along."""
        address = await self._address(call, row, port)
        return f"http://{address}" if address is not None else self.named_link(call, row.id, port)

    async def signed_link(self, call: ApiCall, row: Sandbox, port: int, *, seconds: int) -> tuple[str, str]:
        """A URL that needs nothing else until it expires, and its token. Raises: Fault."""
        user = await self.access.find_user(call.request) if self._is_local(call) else None
        address = await self._address(call, row, port) if user is not None else None
        key_id = call.identity.key_id
        token = self.links.create(row, port=port, key_id=key_id, seconds=seconds, user=user if address else None)
        return (f"http://{address}" if address is not None else self.named_link(call, token, port)), token

    def named_link(self, call: ApiCall, name: str, port: int | str) -> str:
        """The URL that has the sandbox's name, or a token, in its host or path."""
        base = urlsplit(call.base_url)
        if self._settings.preview_domain is None:
            return f"{call.base_url}{PATH}{name}/{port}"
        where = f"{port}-{name}.{self._settings.preview_domain}"
        return f"{base.scheme}://{where}" + (f":{base.port}" if base.port is not None else "")

    def _is_local(self, call: ApiCall) -> bool:
        """Whether the caller can reach the loopback addresses of the server's machine, as far as that can be known."""
        if self._settings.preview_domain or self._settings.public_url or not self.addresses.available:
            return False
        host = urlsplit(f"//{call.request.host}")
        return host_name(call.request.host) in _LOOPBACK_NAMES and (host.port or 80) == self.addresses.server_port

    async def _address(self, call: ApiCall, row: Sandbox, port: int) -> str | None:
        address = await self.addresses.give(row, port) if self._is_local(call) else None
        return None if address is None else f"{address}:{self.addresses.server_port}"

    # Requests.

    async def admit(self, request: web.Request, place: Place) -> Admitted:
        """Raises: Fault, without access."""
        if place.form == "path":
            self._guard.check_host(request)
        if request.method not in _METHODS:
            raise Fault(405, "method not allowed", headers={"Allow": ", ".join(sorted(_METHODS))})
        return await self.access.admit(request, place)

    async def serve(self, request: web.Request, place: Place, admitted: Admitted) -> web.StreamResponse:
        """Answer a request that was admitted. Raises: Fault; CorralError."""
        row = admitted.row
        request[SANDBOX] = row.id
        target = target_of(request, place)
        if _is_visit(request):
            if admitted.cookie is not None:
                return self._settle(request, place, admitted, target)
            if place.prefix == request.rel_url.raw_path:  # what the page loads is relative to its folder
                return web.Response(status=307, headers={"Location": place.prefix + target, **_PAGE_HEADERS})
        base = urlsplit(self._guard.base_url(request))
        host = base.netloc if place.form == "path" else place.host
        way = Way(
            client=request.remote or "unknown", scheme=base.scheme, host=host, prefix=place.prefix,
            host_is_secret=place.form == "host" and place.token is not None,
        )  # fmt: skip
        exchange = Exchange(request, target=target, route=way, ours=admitted.ours, port=place.port)
        activity = request.headers.get(_SKIP_ACTIVITY) != "true"
        if row.state not in ("started", "resizing"):
            raise Fault(503, f"the sandbox is {row.state}: start it to see its previews")
        async with self._sandboxes.use(row.id, organisation_id=None, activity=activity) as handle:
            try:
                connection = await handle.box.dial(place.port)
            except PortClosedError:
                text = f"nothing listens on port {place.port} in the sandbox (yet): start a server there, and try again"
                raise Fault(502, text, headers={"Retry-After": "1"}) from None
            with connection:
                async with self._open(request, exchange):
                    return await exchange.run(connection)

    @contextlib.asynccontextmanager
    async def _open(self, request: web.Request, exchange: Exchange) -> AsyncIterator[None]:
        if self._stopping:
            raise Fault(503, "the server is stopping", headers={"Retry-After": "1"})
        transport = request.transport
        if exchange.is_websocket:
            self._tunnels.add(transport)
        try:
            yield
        finally:
            self._tunnels.discard(transport)

    def _settle(self, request: web.Request, place: Place, admitted: Admitted, target: str) -> web.Response:
        """Keep the token of the query in a cookie, and go on without it: it would be in the history, and sent on as the
        referrer."""
        # Two slashes at the beginning would name another host.
        where = f"/.{target}" if not place.prefix and target.startswith("//") else place.prefix + target
        response = web.Response(status=303, headers={"Location": where})
        response.set_cookie(
            COOKIE, admitted.cookie or "", path=(place.prefix or "") + "/", httponly=True, samesite="Lax",
            secure=self._guard.base_url(request).startswith("https:"), max_age=admitted.cookie_seconds,
        )  # fmt: skip
        response.headers.update(_PAGE_HEADERS)
        return response

    def close(self) -> None:
        """Stop listening on addresses, and cut off websockets, which would last."""
        self._stopping = True
        self.addresses.close()
        for transport in list(self._tunnels):
            cut_off(transport)


def fault_of(error: CorralError) -> Fault | None:
    """The fault for an error; None for one that is a bug."""
    if isinstance(error, SandboxGoneError):
        return Fault(503, "the sandbox is not running")
    return translate(error)


def page(request: web.Request, fault: Fault) -> web.Response:
    """The page for a fault: plain text, in which nothing can run."""
    response = web.Response(status=fault.status, text=f"{fault.status}: {fault.message}\n")
    response.headers.update({**fault.headers, **_PAGE_HEADERS})
    if is_upgrade(request) or (request.can_read_body and not request.content.at_eof()):
        response.force_close()  # what still comes must not be taken for another request
    if fault.status >= 500:
        log.event("preview failed", status=fault.status, reason=fault.message, sandbox=request.get(SANDBOX))
    return response


def _is_visit(request: web.Request) -> bool:
    """Whether a browser opens the page, which can keep a cookie."""
    if request.method not in ("GET", "HEAD") or is_upgrade(request):
        return False
    mode = request.headers.get("Sec-Fetch-Mode")
    return mode == "navigate" if mode is not None else "text/html" in request.headers.get("Accept", "")
