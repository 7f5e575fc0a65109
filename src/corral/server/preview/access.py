"""Who may see a preview: those with a token, a signed link or a key, and everybody if the sandbox is public."""

from __future__ import annotations

import asyncio
import hmac
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from corral.client import peers
from corral.server.auth import PREFIX, QUERY_KEY, Doorkeeper, Keyring, find_key
from corral.server.faults import Fault
from corral.server.living import Sandboxes
from corral.server.preview.heads import COOKIE, TOKEN_HEADER
from corral.server.preview.links import SCOPE, Links, make_token
from corral.server.preview.places import Place
from corral.server.routing import Identity
from corral.server.store.rows import PreviewLink, Sandbox

_PRIVATE = (
    f"this preview is private: send its token in the header {TOKEN_HEADER}, or as ?{QUERY_KEY}=TOKEN, "
    "or use a signed link, or an API key"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that may be passed on."""

    row: Sandbox
    identity: Identity
    still: Callable[[], bool]
    """Whether it may still go on."""
    cookie: str | None = None
    """A token that came in the query, to be kept as a cookie."""
    cookie_seconds: int | None = None
    ours: frozenset[str] = frozenset()
    """Fields of the request that the program must not see, in lower case."""


class Access:
    """Decides who may see what."""

    def __init__(self, *, keyring: Keyring, sandboxes: Sandboxes, links: Links, door: Doorkeeper) -> None:
        self._keyring = keyring
        self._sandboxes = sandboxes
        self.links = links
        self._door = door
        self._users: weakref.WeakKeyDictionary[asyncio.BaseTransport, int] = weakref.WeakKeyDictionary()

    async def admit(self, request: web.Request, place: Place) -> Admitted:
        """Raises: Fault 401 without access, also if there is no such sandbox; 404 for a key of another organisation."""
        try:
            found = await self._find(request, place)
        except Fault as fault:
            if fault.status != 401:
                raise
            raise self._door.refusal(fault, address=request.remote) from None
        if found is None:
            refusal = Fault(401, _PRIVATE, headers={"WWW-Authenticate": "Bearer"})
            raise self._door.refusal(refusal, address=request.remote)
        return found

    async def _find(self, request: web.Request, place: Place) -> Admitted | None:
        ours = self._own_fields(request)
        if (token := place.token) is not None:
            link = self.links.find(token)
            row = self._row(link.sandbox_id) if link is not None and link.port == place.port else None
            if link is None or row is None:
                raise Fault(401, "this link has expired, or is not valid")
            return self._by_link(row, link, ours)
        row = self._row(place.name)
        for given, is_query in self._given(request):
            if row is not None and (admitted := self._by_token(row, place.port, given, ours, is_query=is_query)):
                return admitted
        secret = find_key(request, websocket=False)
        identity = self._keyring.identify(secret) if secret is not None else None
        if identity is not None:
            if row is None or row.organisation_id != identity.organisation_id:
                raise Fault(404, "sandbox not found")
            if SCOPE not in identity.scopes:
                raise Fault(403, f"the API key lacks the scope {SCOPE!r}")
            return Admitted(row=row, identity=identity, still=lambda: self._keyring.is_valid(identity), ours=ours)
        if row is None:
            return None
        if row.public:
            return self._publicly(row, ours)
        return await self._by_user(request, place, row, ours)

    def _row(self, sandbox_id: str) -> Sandbox | None:
        try:
            found = self._sandboxes.find(sandbox_id, organisation_id=None).row
        except Fault:
            return None
        return found if found.id == sandbox_id else None

    def _given(self, request: web.Request) -> list[tuple[str, bool]]:
        """What the request has for tokens, and whether it is in the query."""
        headers = request.headers.getall(TOKEN_HEADER, [])
        query = request.query.getall(QUERY_KEY, [])
        if len(headers) > 1 or len(query) > 1:
            raise Fault(400, "the request has more than one token")
        # Browsers send cookies also for requests of other previews, if all are below one domain.
        lines = request.headers.getall("Cookie", []) if _is_of_the_page_itself(request) else []
        cookies = [pair for line in lines for pair in line.split(";")]
        kept = [value.strip() for name, _, value in (pair.partition("=") for pair in cookies) if name.strip() == COOKIE]
        return [*((each, False) for each in headers), *((each, True) for each in query),
                *((each, False) for each in kept[:4])]  # fmt: skip

    def _own_fields(self, request: web.Request) -> frozenset[str]:
        """The Authorization, if it is a key of this server, valid or not; a program's own is passed on."""
        given = request.headers.get("Authorization", "").partition(" ")[2].strip()
        is_ours = given.startswith(PREFIX) or (given != "" and self._keyring.identify(given) is not None)
        return frozenset({"authorization"} if is_ours else ())

    def _by_token(
        self, row: Sandbox, port: int, given: str, ours: frozenset[str], *, is_query: bool
    ) -> Admitted | None:
        link = self.links.find(given)
        if link is not None and (link.sandbox_id, link.port) == (row.id, port):
            seconds = max(1, int(link.expires_at - time.time()))
            return self._by_link(row, link, ours, cookie=given if is_query else None, cookie_seconds=seconds)
        key_id = self._signer(row, port, given)
        if key_id is not None:
            return Admitted(
                row=row, identity=_of_links(key_id, row), ours=ours, cookie=given if is_query else None,
                still=lambda: self._signer(row, port, given) is not None,
            )  # fmt: skip
        identity_of_key = self._keyring.identify(given) if is_query else None
        if identity_of_key is None or row.organisation_id != identity_of_key.organisation_id:
            return None
        if SCOPE not in identity_of_key.scopes:
            return None
        # A key in the query, as for websockets of the API. The cookie gets what the key could have made, not the key.
        token = make_token(row, key_id=identity_of_key.key_id, port=port)
        still = identity_of_key
        return Admitted(row=row, identity=still, still=lambda: self._keyring.is_valid(still), ours=ours, cookie=token)

    def _signer(self, row: Sandbox, port: int, given: str) -> str | None:
        """The key that a port's token was made with, if both are valid."""
        for key_id in self._keyring.signers(row.organisation_id):
            wanted = make_token(row, key_id=key_id, port=port)
            if hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace")):
                return key_id
        return None

    def is_token_of(self, row: Sandbox, given: str, *, port: int | None) -> bool:
        """Whether a token, of a port or of a signed link, is valid for a sandbox."""
        link = self.links.find(given)
        if link is not None:
            return link.sandbox_id == row.id
        return port is not None and self._by_token(row, port, given, frozenset(), is_query=False) is not None

    def _by_link(
        self, row: Sandbox, link: PreviewLink, ours: frozenset[str], *, cookie: str | None = None,
        cookie_seconds: int | None = None,
    ) -> Admitted:  # fmt: skip
        return Admitted(
            row=row, identity=_of_links(link.key_id, row), still=lambda: self.links.is_valid(link), cookie=cookie,
            cookie_seconds=cookie_seconds, ours=ours,
        )  # fmt: skip

    def _publicly(self, row: Sandbox, ours: frozenset[str]) -> Admitted:
        # All public previews of an organisation share what a key has of turns, calls and memory.
        identity = Identity(
            key_id=f"public:{row.organisation_id}", organisation_id=row.organisation_id, scopes=frozenset()
        )
        return Admitted(row=row, identity=identity, still=lambda: row.public, ours=ours)

    async def _by_user(self, request: web.Request, place: Place, row: Sandbox, ours: frozenset[str]) -> Admitted | None:
        """A user of this machine for whom a signed link was made, at the address of this port."""
        links = self.links.of_user(row.id, place.port) if place.form == "address" else []
        if not links or not _is_of_the_page_itself(request):
            return None
        user = await self.find_user(request)
        # Who became root by sudo has a browser that did not.
        asked = {user, 0} if user is not None and user in peers.permitted_users() else {user}
        mine = max((link for link in links if link.user in asked), key=lambda link: link.expires_at, default=None)
        return self._by_link(row, mine, ours) if mine is not None else None

    async def find_user(self, request: web.Request) -> int | None:
        """The user of this machine who sent a request; None if that is not known."""
        transport = request.transport
        if transport is None:
            return None
        if transport not in self._users:
            own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            user = await asyncio.to_thread(peers.look_up_user, peer, own) if own and peer else None
            if user is None:
                return None
            self._users[transport] = user
        return self._users[transport]


def _of_links(key_id: str, row: Sandbox) -> Identity:
    """Those who have links of a key share limits of their own: they must not delay the key's own requests."""
    return Identity(key_id=f"links:{key_id}", organisation_id=row.organisation_id, scopes=frozenset({SCOPE}))


def _is_of_the_page_itself(request: web.Request) -> bool:
    """Whether no other page has sent it: it knows no token, but it may know an address, or a host that has a cookie."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        return False
    site = request.headers.get("Sec-Fetch-Site", "none")
    is_visit = request.method in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Mode") == "navigate"
    return site in ("none", "same-origin") or is_visit
