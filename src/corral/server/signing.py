"""Signed URLs: access to one file of one sandbox, without a key, until the URL expires.

Clients create them, with a signing key. Each API key has a different one, so that URLs become invalid with the API
key that they were signed with.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterable

from aiohttp import web

from corral.server.auth import Doorkeeper
from corral.server.faults import Fault
from corral.server.living import Sandboxes
from corral.server.routing import Identity, Route


def signing_key(secret: bytes, *, key_id: str) -> str:
    """The signing key of an API key, derived from the sandbox's secret and the API key's id."""
    return hmac.new(secret, key_id.encode(), hashlib.sha256).hexdigest()


def sign(key: str, *, method: str, path: str, expires: str) -> str:
    """The signature of a URL for one file."""
    text = f"v1:files:{method}:{path}:{expires}".encode("utf-8", "surrogateescape")
    digest = hmac.new(key.encode(), text, hashlib.sha256).digest()
    return "v1_" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def identify_signer(
    request: web.Request, route: Route, *, sandboxes: Sandboxes, sandbox_id: str, door: Doorkeeper
) -> Identity:
    """The identity of a signed URL, for this one call. Checked before anything else about the sandbox.

    Raises:
        Fault: 401 if the signature is not valid or has expired, or the sandbox does not exist, which must look the
            same; 429 after too many of those.
    """
    query = request.query
    try:
        row = sandboxes.find(sandbox_id, organisation_id=None).row
    except Fault:
        raise door.refusal(_wrong_signature(), address=request.remote) from None
    try:
        key_id = _find_signer(
            row.signing_key,
            door.keyring.signers(row.organisation_id),
            method=route.method,
            path=query.get("path", ""),
            expires=query.get("expires", ""),
            signature=query["signature"],
        )
    except Fault as fault:
        raise door.refusal(fault, address=request.remote) from None
    return Identity(key_id=key_id, organisation_id=row.organisation_id, scopes=frozenset({route.scope}))


def _find_signer(secret: bytes, key_ids: Iterable[str], *, method: str, path: str, expires: str, signature: str) -> str:
    """The id of the API key that a URL was signed with. Raises: Fault, 401, if it matches no key, or has expired."""
    given = signature.encode("utf-8", "replace")
    for key_id in key_ids:
        wanted = sign(signing_key(secret, key_id=key_id), method=method, path=path, expires=expires)
        if hmac.compare_digest(wanted.encode(), given) and re.fullmatch(r"\d{1,12}", expires, re.ASCII):
            if int(expires) != 0 and int(expires) < time.time():
                raise Fault(401, "the signed URL has expired", code="UNAUTHORIZED")
            return key_id
    raise _wrong_signature()


def _wrong_signature() -> Fault:
    return Fault(401, "the signature of the URL is not valid", code="UNAUTHORIZED")
