"""The seam for hosts that have a secret or a credential: what ends TLS for them, and rewrites their requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from corral.network.heads import RequestHead
from corral.network.hello import ClientHello
from corral.network.settings import GateSettings
from corral.network.stream import Stream


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A TLS connection to a host that has a secret. The client's first message is still ahead in `client`; nothing was
    sent to the server, and nothing read from it."""

    client: Stream
    server: Stream
    """Connected by TCP to an address that was judged."""
    name: str
    """Of the server, as of `read_name`: in the client's message, or else of the connection. It is permitted."""
    port: int
    hello: ClientHello
    serve_http: Callable[[Stream, Stream], Awaitable[None]]
    """Given both sides in the clear, relays requests until the end: each is checked as any other, and rewritten by
    `Injector.rewrite` with `secure=True`. Raises what ends the connection; the caller of `run` handles that."""


class Injector(Protocol):
    """What acts for the hosts with secrets of one sandbox."""

    def wants(self, name: str, port: int) -> bool:
        """True if TLS to that host must be ended, since one of its requests may have to be changed."""

    async def run(self, tunnel: Tunnel) -> None:
        """Serve a connection to its end. The caller closes both sides.

        Raises: RefusedError with the rule `secret` if it can't be read (pinned certificates, HTTP/2 only); OSError.
        """

    def rewrite(self, head: RequestHead, name: str, port: int, *, secure: bool) -> RequestHead:
        """The head of a request that goes to that host, with secrets in their places; `secure`: by TLS.

        Raises: RefusedError.
        """


def make_injector(settings: GateSettings) -> Injector | None:
    """What these settings need; None if there are no secrets. Called before the gate gives up its user as well.

    Raises: SettingsError.
    """
    if not settings.secrets and not settings.credentials:
        return None
    from corral.network.ending import Ending  # with TLS, which most gates never need

    return Ending(settings)
