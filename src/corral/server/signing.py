"""Signed URLs: one file of one sandbox, for whoever has the URL, until it expires.

Clients make them by themselves, with a key that they are given once. So that nobody can go on making them after his API
key has ended, each API key gets one of its own: a URL opens for no longer than the key does with which it was made.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterable

from corral.server.faults import Fault


def signing_key(secret: bytes, *, key_id: str) -> str:
    """What the holder of an API key signs with: from the sandbox's secret and the id of that key."""
    return hmac.new(secret, key_id.encode(), hashlib.sha256).hexdigest()


def sign(key: str, *, method: str, path: str, expires: str) -> str:
    """The signature of a URL for one file."""
    text = f"v1:files:{method}:{path}:{expires}".encode("utf-8", "surrogateescape")
    digest = hmac.new(key.encode(), text, hashlib.sha256).digest()
    return "v1_" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def find_signer(secret: bytes, key_ids: Iterable[str], *, method: str, path: str, expires: str, signature: str) -> str:
    """Which of some API keys a URL was signed with. Raises: Fault, 401, if with none, or if it is too old."""
    given = signature.encode("utf-8", "replace")
    for key_id in key_ids:
        wanted = sign(signing_key(secret, key_id=key_id), method=method, path=path, expires=expires)
        if hmac.compare_digest(wanted.encode(), given) and re.fullmatch(r"\d{1,12}", expires, re.ASCII):
            if int(expires) != 0 and int(expires) < time.time():
                raise Fault(401, "the signed URL has expired", code="UNAUTHORIZED")
            return key_id
    raise wrong_signature()


def wrong_signature() -> Fault:
    """401: also for a sandbox that is not there, which must look the same."""
    return Fault(401, "the signature of the URL is not valid", code="UNAUTHORIZED")
