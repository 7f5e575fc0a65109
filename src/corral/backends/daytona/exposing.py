"""Ports of a sandbox, by the service's signed links."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

from corral.backends.daytona.remote import Remote
from corral.errors import CorralError

if TYPE_CHECKING:
    from daytona import AsyncSandbox as SdkSandbox

LINK_SECONDS = 24 * 3600
"""The longest that the service permits."""
_RENEW_SECONDS = 3600.0
"""A link that ends sooner is not given out again."""


class SignedLinks:
    """The links that one handle has made."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._known: dict[int, tuple[str, str, float]] = {}

    async def open(self, port: int) -> str:
        """The URL of a port; the same again, unless it ends soon."""
        url, _, ends_at = self._known.get(port, ("", "", 0.0))
        if ends_at - time.time() > _RENEW_SECONDS:
            return url
        ends_at = time.time() + LINK_SECONDS
        made = await self._remote.call(lambda box: box.create_signed_preview_url(port, LINK_SECONDS), op="expose")
        self._known[port] = (made.url, made.token, ends_at)
        return made.url

    async def end(self) -> None:
        """End them. One that can't be ended now ends at its time."""
        known, self._known = self._known, {}
        for port, (_, token, _) in known.items():
            end = functools.partial(_expire, port=port, token=token)
            with contextlib.suppress(CorralError):
                await self._remote.call(end, op="expose", safe=True)


async def _expire(box: SdkSandbox, *, port: int, token: str) -> None:
    await box.expire_signed_preview_url(port, token)
