"""Who may call: the Host and Origin of a request, its API key, and the calls of a key that are under way.

A key is 256 random bits. It is shown once; the database has its SHA-256, which is enough, because such a key can't be
guessed. A key that was chosen by a person (`CORRAL_API_KEY`) must at least be long.

A key is checked when a call begins. Some calls last: a terminal, a log that is followed, events. So the keys of calls
under way are checked again and again, and when a key was revoked or has expired its calls end.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from corral.errors import CorralError, SpecError
from corral.server import log
from corral.server.fairness import Rates
from corral.server.faults import Fault, too_many
from corral.server.routing import Identity, Scope
from corral.server.settings import ServerSettings, find_address
from corral.server.store.database import Database
from corral.server.store.rows import Key, Organisation, load_all, new_id
from corral.spec import NetworkPolicy

SCOPES = ("read", "write", "delete", "run")
PREFIX = "corral_"
SHORTEST = 16
LOOK_SECONDS = 0.5
QUERY_KEY = "DAYTONA_SANDBOX_AUTH_KEY"
_SHOWN = 12
_LONGEST_NAME = 200
_SIGNING: Scope = "run"
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


class Keyring:
    """The keys and organisations of a database. Another process may change them, so each call checks for changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[bytes, Key] = {}
        self._by_id: dict[str, Key] = {}
        self._organisations: dict[str, Organisation] = {}
        self._load()

    def _load(self) -> None:
        self._keys = {key.digest: key for key in load_all(Key, self._database)}
        self._by_id = {key.id: key for key in self._keys.values()}
        self._organisations = {organisation.id: organisation for organisation in load_all(Organisation, self._database)}

    def _refresh(self) -> None:
        if self._database.changed_by_others():
            self._load()

    def identify(self, secret: str) -> Identity | None:
        """The identity of a key; None if the key is unknown, expired or revoked."""
        self._refresh()
        digest = _digest(secret)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest) or not _is_valid(key):
            return None
        return Identity(
            key_id=key.id, organisation_id=key.organisation_id, scopes=frozenset(key.scopes), network=key.network
        )

    def is_valid(self, identity: Identity) -> bool:
        """Whether the key of an identity is still valid."""
        self._refresh()
        key = self._by_id.get(identity.key_id)
        return key is not None and _is_valid(key)

    def may_use(self, key_id: str, scope: Scope) -> bool:
        """Whether a key is valid and has a scope."""
        self._refresh()
        key = self._by_id.get(key_id)
        return key is not None and scope in key.scopes and _is_valid(key)

    def signers(self, organisation_id: str) -> list[str]:
        """The ids of the keys of an organisation that may sign URLs."""
        self._refresh()
        mine = (key for key in self._by_id.values() if key.organisation_id == organisation_id)
        return [key.id for key in mine if _SIGNING in key.scopes and _is_valid(key)]

    @property
    def organisations(self) -> dict[str, Organisation]:
        """All organisations, by id."""
        self._refresh()
        return self._organisations

    @property
    def keys(self) -> list[Key]:
        """All keys, oldest first."""
        self._refresh()
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    def organisation_named(self, name: str) -> Organisation:
        """The organisation with that name; created if it does not exist. Raises: SpecError for an invalid name."""
        for organisation in self.organisations.values():
            if organisation.name == name:
                return organisation
        _check_name(name)
        organisation = Organisation(id=new_id(), name=name, created_at=time.time())
        organisation.save(self._database)
        self._load()
        return organisation

    def set_quota(
        self,
        organisation: Organisation,
        *,
        sandboxes: int | None,
        cpu: int | None,
        memory_gib: int | None,
        disk_gib: int | None,
    ) -> None:
        """Set the limits of an organisation; None leaves a limit as it is."""
        for name, value in (
            ("max_sandboxes", sandboxes), ("max_cpu", cpu), ("max_memory_gib", memory_gib), ("max_disk_gib", disk_gib),
        ):  # fmt: skip
            if value is not None:
                setattr(organisation, name, value)
        organisation.save(self._database)
        self._load()

    def names_taken(self, organisation: Organisation) -> set[str]:
        """The names of its keys that are not revoked."""
        mine = (key for key in self.keys if key.organisation_id == organisation.id)
        return {key.name for key in mine if key.revoked_at is None}

    def create(
        self,
        *,
        organisation: Organisation,
        name: str,
        scopes: Sequence[str] = SCOPES,
        lifetime_seconds: float | None = None,
        secret: str | None = None,
        network: NetworkPolicy | None = None,
    ) -> tuple[Key, str]:
        """A new key, and its secret, which is not stored. `network` is what its sandboxes may reach at most.

        Raises:
            SpecError: an unknown scope, an invalid or taken name, or a chosen secret that is too short.
        """
        _check_name(name)
        if name in self.names_taken(organisation):
            raise SpecError(
                f"the organisation {organisation.name!r} already has a key named {name!r}",
                hint=f"use another name, or revoke that key first: corral key revoke {shlex.quote(name)}",
            )
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise SpecError(f"unknown scopes: {unknown}", hint=f"use one or more of {', '.join(SCOPES)}")
        if secret is not None and (len(secret) < SHORTEST or not secret.isascii() or not secret.isprintable()):
            raise SpecError(
                f"an API key that you choose needs {SHORTEST} or more printable ASCII characters",
                hint="leave it out to have one generated",
            )
        made = secret if secret is not None else PREFIX + secrets.token_hex(32)
        now = time.time()
        key = Key(
            id=new_id(),
            organisation_id=organisation.id,
            name=name,
            prefix=made[: _SHOWN if secret is None else 4] + "…",
            digest=_digest(made),
            scopes=[scope for scope in SCOPES if scope in scopes],
            created_at=now,
            expires_at=now + lifetime_seconds if lifetime_seconds is not None else None,
            network=str(network) if network is not None else None,
        )
        key.save(self._database)
        self._database.sync()
        self._load()
        return key, made

    def revoke(self, wanted: str) -> Key:
        """Revoke a key, by id, a prefix of its id, or name. Raises: SpecError if no key or several keys match."""
        alive = [key for key in self.keys if key.revoked_at is None]
        exact = [key for key in alive if wanted in (key.id, key.name)]
        found = exact or [key for key in alive if len(wanted) >= 4 and key.id.startswith(wanted)]
        if len(found) != 1:
            how = "no API key matches" if not found else "several API keys match"
            raise SpecError(f"{how} {wanted!r}", hint="`corral key list` shows the keys with their ids")
        found[0].revoked_at = time.time()
        found[0].save(self._database)
        self._database.sync()
        self._load()
        return found[0]


class Guard:
    """Checks Host and Origin: a web page must not reach a server on the machine of the person who looks at it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.scheme = "https" if settings.tls else "http"
        public = urlsplit(settings.public_url) if settings.public_url else None
        # The name `localhost` always means this machine; a container's port is mostly reached by it.
        hosts = {host.lower() for host in settings.allowed_hosts} | {settings.host.lower(), "localhost"}
        if public is not None and public.hostname:
            hosts.add(public.hostname)
        if settings.is_loopback:
            hosts |= _LOOPBACK
        self._hosts = frozenset(hosts)
        self._origins = frozenset(settings.allowed_origins) | ({settings.public_url} if settings.public_url else set())

    def check(self, request: web.Request) -> None:
        """Raises: Fault 421 for a foreign Host, 403 for a foreign Origin."""
        host = self.check_host(request)
        origins = request.headers.getall("Origin", [])
        for origin in origins:
            if origin not in self._origins and origin != f"{self.scheme}://{host}":
                raise Fault(403, "requests from this Origin are not allowed")

    def check_host(self, request: web.Request) -> str:
        """The Host of a request. Raises: Fault 421 for a foreign one."""
        host = find_host(request)
        if host is None or not self._knows(host_name(host)):
            raise Fault(421, "unknown host name in the Host header")
        return host

    def _knows(self, name: str | None) -> bool:
        if name is None:
            return False
        if name in self._hosts:
            return True
        # The owner of a domain can point it at this server, but an address can't be forged. Loopback has its own list.
        return not self._settings.is_loopback and find_address(name) is not None

    def base_url(self, request: web.Request) -> str:
        """The base URL that the caller uses, without a path. The Host was checked."""
        return self._settings.public_url or f"{self.scheme}://{request.host}"


class Doorkeeper:
    """Identifies callers by their keys, and slows down addresses that send many invalid ones."""

    def __init__(self, keyring: Keyring, *, bad_keys_per_minute: float) -> None:
        self.keyring = keyring
        self._bad = Rates(per_second=bad_keys_per_minute / 60, burst=bad_keys_per_minute)

    def admit(self, secret: str | None, *, address: str | None) -> Identity:
        """The identity of a caller. Raises: Fault 401, or 429 after too many of those.

        A valid key is always accepted: behind a proxy, all callers have one address, and a caller without a key must
        not be able to lock out the others. 256 bits can't be guessed at any rate.
        """
        identity = self.keyring.identify(secret) if secret is not None else None
        if identity is not None:
            return identity
        message = "invalid API key" if secret is not None else "an API key is required: Authorization: Bearer …"
        raise self.refusal(Fault(401, message, headers={"WWW-Authenticate": "Bearer"}), address=address)

    def refusal(self, fault: Fault, *, address: str | None) -> Fault:
        """The fault, or 429 for an address that has had too many."""
        wait = self._bad.take(address or "?")
        return too_many("too many requests with invalid API keys", wait) if wait > 0 else fault


@dataclass(slots=True, eq=False)
class Visit:
    """One call that is under way."""

    identity: Identity
    task: asyncio.Task[Any]
    still: Callable[[], bool] | None = None
    """Whether it is still permitted; None: as long as its key is valid."""
    key_ended: bool = False


class Admission:
    """The calls that are under way, by key."""

    def __init__(self, keyring: Keyring, *, calls_per_key: int) -> None:
        self._keyring = keyring
        self._calls_per_key = calls_per_key
        self._inside: dict[str, set[Visit]] = {}

    @asynccontextmanager
    async def admitted(self, identity: Identity, *, still: Callable[[], bool] | None = None) -> AsyncIterator[Visit]:
        """Count the current task as a call of the key, for as long as that is valid, or `still` says yes.

        Raises:
            Fault: 429, the key has too many calls under way; 401, the key has ended.
        """
        visits = self._inside.setdefault(identity.key_id, set())
        if len(visits) >= self._calls_per_key:
            raise too_many("too many concurrent requests", 1.0)
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        visit = Visit(identity, task, still)
        visits.add(visit)
        try:
            yield visit
        except asyncio.CancelledError:
            # Only if nothing else has cancelled the task as well: the rule of asyncio.timeout.
            if visit.key_ended and task.uncancel() <= cancelled_before:
                raise Fault(401, "the API key has expired or was revoked") from None
            raise
        finally:
            visits.discard(visit)
            if not visits and self._inside.get(identity.key_id) is visits:
                del self._inside[identity.key_id]

    def look(self) -> None:
        """Cancel the calls of keys that have expired or were revoked."""
        for visits in list(self._inside.values()):
            for visit in list(visits):
                if visit.key_ended:
                    continue
                if not (visit.still() if visit.still is not None else self._keyring.is_valid(visit.identity)):
                    visit.key_ended = True
                    visit.task.cancel()

    async def run(self) -> None:
        """Call `look` until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look()
            except CorralError as error:  # the database can't be read right now
                log.event("keys could not be checked", level=logging.ERROR, error=error)


def find_host(request: web.Request) -> str | None:
    """The one Host of a request. A request line with a host (as to a proxy) would take precedence over the header."""
    hosts = request.headers.getall("Host", [])
    return hosts[0] if len(hosts) == 1 and request.host == hosts[0] else None


def find_key(request: web.Request, *, websocket: bool) -> str | None:
    """The caller's key: from the header; for websockets of browsers, which can't set one, also from the query."""
    given = request.headers.getall("Authorization", [])
    if len(given) > 1:
        raise Fault(400, "the request has more than one Authorization header")  # a proxy may have checked another one
    scheme, _, secret = (given[0] if given else "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    return request.query.get(QUERY_KEY) if websocket else None


def host_name(header: str) -> str | None:
    """The name in a Host header, in lower case and without its port; None if it is malformed."""
    if " " in header or not header.isprintable():
        return None  # urlsplit leaves out a tab
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def _check_name(name: str) -> None:
    """Names are shown on terminals, so control characters are refused."""
    if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise SpecError(
            f"{name[:_LONGEST_NAME]!r} is not a valid name",
            hint=f"use 1 to {_LONGEST_NAME} printable characters, without leading or trailing spaces",
        )


def _is_valid(key: Key) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > time.time())


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
