"""Keys: who calls, and what it may.

A key is 256 random bits. It is shown once; what is kept is its SHA-256, which is enough, because nobody can guess what
nobody chose. A key that somebody did choose (`CORRAL_API_KEY`) must at least be long.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shlex
import time
from collections.abc import Sequence

from corral.errors import SpecError
from corral.server.faults import Fault, too_many
from corral.server.rates import Rates
from corral.server.routing import Identity, Scope
from corral.server.store.database import Database
from corral.server.store.rows import Key, Organisation, load_all, new_id

SCOPES = ("read", "write", "delete", "run")
PREFIX = "corral_"
SHORTEST = 16
_SHOWN = 12
_LONGEST_NAME = 200
_SIGNING: Scope = "run"


class Keyring:
    """The keys and organisations of a database. Another process may change them: each look sees the newest."""

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
        """Who holds this key; None if nobody may."""
        self._refresh()
        digest = _digest(secret)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest) or not _opens(key):
            return None
        return Identity(key_id=key.id, organisation_id=key.organisation_id, scopes=frozenset(key.scopes))

    def is_valid(self, identity: Identity) -> bool:
        """Whether the key of a caller that we know still opens; for what lasts longer than a request."""
        self._refresh()
        key = self._by_id.get(identity.key_id)
        return key is not None and _opens(key)

    def signers(self, organisation_id: str) -> list[str]:
        """The ids of the keys of an organisation that may sign URLs."""
        self._refresh()
        mine = (key for key in self._by_id.values() if key.organisation_id == organisation_id)
        return [key.id for key in mine if _SIGNING in key.scopes and _opens(key)]

    @property
    def organisations(self) -> dict[str, Organisation]:
        """By id."""
        self._refresh()
        return self._organisations

    @property
    def keys(self) -> list[Key]:
        """All, oldest first."""
        self._refresh()
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    def organisation_named(self, name: str) -> Organisation:
        """The organisation of that name; made if there is none. Raises: SpecError, for what is no name."""
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
        """How much an organisation may have; None leaves a limit as it is."""
        for name, value in (
            ("max_sandboxes", sandboxes), ("max_cpu", cpu), ("max_memory_gib", memory_gib), ("max_disk_gib", disk_gib),
        ):  # fmt: skip
            if value is not None:
                setattr(organisation, name, value)
        organisation.save(self._database)
        self._load()

    def names_taken(self, organisation: Organisation) -> set[str]:
        """The names of its keys that were not revoked: by its name a key is found to be revoked."""
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
    ) -> tuple[Key, str]:
        """A new key, and the secret that is shown this once.

        Raises:
            SpecError: an unknown scope, what is no name or is another key's, or a chosen secret that is too short.
        """
        _check_name(name)
        if name in self.names_taken(organisation):
            raise SpecError(
                f"{organisation.name!r} has a key named {name!r} already",
                hint=f"take another name, or end that one first: corral key revoke {shlex.quote(name)}",
            )
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise SpecError(f"{unknown} are no scopes of a key", hint=f"there are {', '.join(SCOPES)}")
        if secret is not None and (len(secret) < SHORTEST or not secret.isascii() or not secret.isprintable()):
            raise SpecError(
                f"a key of your own must have {SHORTEST} or more printable characters",
                hint="leave it away, and a good one is made",
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
        )
        key.save(self._database)
        self._database.sync()
        self._load()
        return key, made

    def revoke(self, wanted: str) -> Key:
        """End a key, by id, the beginning of its id, or name. Raises: SpecError if that is none, or several."""
        alive = [key for key in self.keys if key.revoked_at is None]
        exact = [key for key in alive if wanted in (key.id, key.name)]
        found = exact or [key for key in alive if len(wanted) >= 4 and key.id.startswith(wanted)]
        if len(found) != 1:
            how = "is no key" if not found else "are several keys"
            raise SpecError(f"there {how} {wanted!r}", hint="`corral key list` shows them with their ids")
        found[0].revoked_at = time.time()
        found[0].save(self._database)
        self._database.sync()
        self._load()
        return found[0]


class Doorkeeper:
    """Lets callers in by their keys, and makes those wait who try many wrong ones."""

    def __init__(self, keyring: Keyring, *, bad_keys_per_minute: float) -> None:
        self.keyring = keyring
        self._bad = Rates(per_second=bad_keys_per_minute / 60, burst=bad_keys_per_minute)

    def admit(self, secret: str | None, *, address: str | None) -> Identity:
        """Who calls. Raises: Fault 401, or 429 after too many of those.

        A good key always opens: behind a proxy, and on this machine, all have one address, and whoever has no key must
        not be able to keep out those who have one. Nobody can guess 256 bits, however fast.
        """
        identity = self.keyring.identify(secret) if secret is not None else None
        if identity is not None:
            return identity
        message = "invalid API key" if secret is not None else "an API key is needed: Authorization: Bearer …"
        raise self.refusal(Fault(401, message, headers={"WWW-Authenticate": "Bearer"}), address=address)

    def refusal(self, fault: Fault, *, address: str | None) -> Fault:
        """The same, or 429 for an address that has had too many."""
        wait = self._bad.take(address or "?")
        return too_many("too many requests with invalid API keys", wait) if wait > 0 else fault


def _check_name(name: str) -> None:
    """Names are shown on terminals, which obey some characters."""
    if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise SpecError(
            f"{name[:_LONGEST_NAME]!r} is not a name",
            hint=f"take 1 to {_LONGEST_NAME} printable characters, with no space around them",
        )


def _opens(key: Key) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > time.time())


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
