"""TLS that ends at the gate, for the hosts of secrets: towards the client with a certificate of the sandbox's own
authority, towards the server with the certificates that the host trusts."""

from __future__ import annotations

import contextlib
import functools
import ssl
import sys
from dataclasses import replace
from typing import Final

from corral.network.authority import Mint, NoCryptographyError
from corral.network.exchange import receive_request
from corral.network.heads import MalformedHeadError, RequestHead
from corral.network.injection import Tunnel
from corral.network.judge import RefusedError
from corral.network.settings import Authority, GateSettings, SettingsError
from corral.network.stream import Stream
from corral.network.substitution import SecretRefusedError, Substitution
from corral.network.tls import TlsStream

_PROTOCOLS: Final = frozenset(("http/1.1", "http/1.0"))
_NO_PROTOCOL: Final = b"\x15\x03\x03\x00\x02\x02\x78"
"""The alert `no_application_protocol`."""


class UntoldError(RefusedError):
    """A request that a secret can't be put into."""

    def __init__(self, why: str) -> None:
        super().__init__("secret")
        self.why = why


class Ending:
    """An `Injector`: what acts for the hosts with secrets of one sandbox."""

    def __init__(self, settings: GateSettings) -> None:
        """Without an authority, requests without TLS alone can be rewritten. Raises: SettingsError."""
        self._mint: Mint | None = None
        try:
            self._substitution = Substitution(settings.secrets, settings.credentials)
            self._outside = _make_context(settings.ca_file)
            if settings.authority is not None:
                self._mint = _make_mint(settings.authority, settings.site_packages)
        except (NoCryptographyError, OSError, ValueError) as error:
            raise SettingsError(f"authority: {type(error).__name__}") from None

    def wants(self, name: str, port: int) -> bool:
        """As in `Injector`."""
        return self._substitution.concerns(name, port)

    def rewrite(self, head: RequestHead, name: str, port: int, *, secure: bool) -> RequestHead:
        """As in `Injector`."""
        try:
            fields = self._substitution.apply(head.fields, host=name, port=port, secure=secure, method=head.method)
        except SecretRefusedError as error:
            raise UntoldError(f"{error}") from None
        return replace(head, fields=fields)

    async def run(self, tunnel: Tunnel) -> None:
        """As in `Injector`."""
        if self._mint is None:
            raise RefusedError("secret", host=tunnel.name)
        if tunnel.hello.protocols and _PROTOCOLS.isdisjoint(tunnel.hello.protocols):
            with contextlib.suppress(OSError):
                await tunnel.client.send(_NO_PROTOCOL)
            raise RefusedError("secret", host=tunnel.name)
        client = TlsStream(tunnel.client, self._mint.context_for(tunnel.name), to=None)
        try:
            await client.shake_hands()
        except (ssl.SSLError, ConnectionError) as error:
            if client.answered:  # it has seen our certificate, and wants another one
                raise RefusedError("secret", host=tunnel.name) from error
            raise ConnectionAbortedError("TLS failed") from error
        server = TlsStream(tunnel.server, self._outside, to=tunnel.name)
        try:
            try:
                await server.shake_hands()
            except (ssl.SSLError, TimeoutError, ConnectionError) as error:
                await _answer(client, 502, f"{tunnel.name}: {_describe(error)}", first=True)
                return
            try:
                await tunnel.serve_http(client, server)
            except RefusedError as error:
                why = error.why if isinstance(error, UntoldError) else f"the request is not for {tunnel.name}"
                await _answer(client, 403, why)
                raise
            except MalformedHeadError as error:
                await _answer(client, 400, f"this request is refused: {error}")
                raise
        finally:
            for stream in (client, server):
                with contextlib.suppress(OSError):
                    await stream.end()


async def _answer(client: Stream, status: int, text: str, *, first: bool = False) -> None:
    """Tell a program why. `first`: after its request, which some have to send before they read."""
    body = f"corral: {text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError, MalformedHeadError):
        if first:
            await receive_request(client, first=True)
        await client.send(head.encode("ascii") + body)


_REASONS: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}


def _describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    return "it did not answer in TLS"


def _make_mint(authority: Authority, site_packages: str | None) -> Mint:
    if site_packages is not None and site_packages not in sys.path:
        sys.path.append(site_packages)
    mint = Mint(authority)
    mint.context_for("first.invalid")  # what is imported late is imported now: later we may not be able to read it
    return mint


@functools.cache
def _make_context(ca_file: str | None) -> ssl.SSLContext:
    """Made once, before we become a user that may not be able to read the file."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
