"""The tokens of ports, which last as long as their key, and signed links, which have an end."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections import defaultdict

from corral.server.auth import Keyring
from corral.server.faults import too_many
from corral.server.preview.places import new_token
from corral.server.routing import Scope
from corral.server.store.database import Database
from corral.server.store.rows import PreviewLink, Sandbox, load_all

SCOPE: Scope = "run"
"""What a key needs to see previews, and to make links to them."""
MAX_LINKS = 1000
"""Signed links of one sandbox that are valid at the same time."""
_TOKEN = re.compile(r"([1-9][0-9]{0,4})\.([A-Za-z0-9_-]{43})", re.ASCII)


def make_token(row: Sandbox, *, key_id: str, port: int) -> str:
    """The token of a port: it is valid as long as the key, and the sandbox's secret."""
    text = f"v1:preview:{key_id}:{port}".encode()
    digest = hmac.new(row.signing_key, text, hashlib.sha256).digest()
    return f"{port}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def port_of_token(token: str) -> int | None:
    """The port that a token says it is for; None if it is no such token."""
    found = _TOKEN.fullmatch(token)
    return int(found[1]) if found is not None else None


class Links:
    """Signed links. They survive a restart, and end at their time, with their key, or when a client ends them."""

    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring
        self._known: dict[str, tuple[PreviewLink, float]] = {}
        self._of_sandbox: defaultdict[str, set[str]] = defaultdict(set)
        """Their ids: no request looks through the links of others."""
        for link in load_all(PreviewLink, database):
            self._keep(link)
        for sandbox_id in list(self._of_sandbox):
            self._drop_ended(sandbox_id)

    def _keep(self, link: PreviewLink) -> None:
        # Both clocks must agree that it has not ended: the wall clock may be set back.
        self._known[link.id] = (link, time.monotonic() + max(0.0, link.expires_at - time.time()))
        self._of_sandbox[link.sandbox_id].add(link.id)

    def _links_of(self, sandbox_id: str) -> list[PreviewLink]:
        return [self._known[each][0] for each in self._of_sandbox.get(sandbox_id, ())]

    def _drop_ended(self, sandbox_id: str) -> None:
        for link in self._links_of(sandbox_id):
            if not self.is_valid(link):
                self.end(link)

    def create(self, row: Sandbox, *, port: int, key_id: str, seconds: int, user: int | None) -> str:
        """A new link; returns its token. Raises: Fault 429 if the sandbox has too many."""
        if len(self._of_sandbox[row.id]) >= MAX_LINKS:
            self._drop_ended(row.id)
        if len(self._of_sandbox[row.id]) >= MAX_LINKS:
            raise too_many(f"the sandbox has {MAX_LINKS} signed links", 60.0)
        token = new_token()
        link = PreviewLink(
            id=_digest(token), sandbox_id=row.id, port=port, key_id=key_id, user=user, expires_at=time.time() + seconds
        )
        link.save(self._database)
        self._keep(link)
        return token

    def find(self, token: str) -> PreviewLink | None:
        """The link of a token, if it is valid. Looked up by a digest, so that its time says nothing."""
        link, _ = self._known.get(_digest(token), (None, 0.0))
        return link if link is not None and self.is_valid(link) else None

    def is_valid(self, link: PreviewLink) -> bool:
        """Whether a link has not ended."""
        known, ends = self._known.get(link.id, (None, 0.0))
        return (
            known is not None
            and time.monotonic() < ends
            and time.time() < link.expires_at
            and self._keyring.may_use(link.key_id, SCOPE)
        )

    def of_user(self, sandbox_id: str, port: int) -> list[PreviewLink]:
        """Valid links to a port that permit a user of this machine to use its address."""
        mine = [link for link in self._links_of(sandbox_id) if link.port == port and link.user is not None]
        return [link for link in mine if self.is_valid(link)]

    def end(self, link: PreviewLink) -> None:
        """End a link."""
        self._known.pop(link.id, None)
        self._of_sandbox[link.sandbox_id].discard(link.id)
        link.erase(self._database)

    def end_all(self, sandbox_id: str) -> None:
        """End all links of a sandbox."""
        for link in self._links_of(sandbox_id):
            self.end(link)

    def forget(self, sandbox_id: str) -> None:
        """The sandbox was deleted, and its rows with it."""
        for each in self._of_sandbox.pop(sandbox_id, ()):
            del self._known[each]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
