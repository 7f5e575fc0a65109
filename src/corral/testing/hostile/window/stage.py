"""The stage of the probes that attack a sandbox's window: what stands for the world on the test ground.

There are permitted hosts, whose servers keep what they hear; names that are permitted and lead where they must not; and
listeners on addresses that nothing may reach. Every other name leads to such an address as well, so that a name that
leaks is seen twice: as a question of the host, and as a connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from corral.network.authority import Mint, NoCryptographyError, make_authority
from corral.network.inner import ADDRESS, DNS_PORT, PROXY_PORT
from corral.testing.ground import OWN_ADDRESS, OWN_ADDRESS_6, Answer, Ground
from corral.testing.hostile.canary import Canaries

GOOD, OTHER, WILD, EVIL = "93.184.215.14", "93.184.215.16", "93.184.215.15", "93.184.215.66"
"""The first three belong to permitted names."""
METADATA, METADATA_6, INNER = "169.254.169.254", "fd00:ec2::254", "10.0.0.1"
POLICY: Final = (
    "good.test", "other.test:443", "*.wild.test", "rebind.test", "mixed.test", "metadata.test", "metadata6.test",
    "inner.test", "mapped.test", "translated.test", "loopback.test", "own.test", "zero.test", "shared.test",
    "cloud.test", "sixtofour.test",
)  # fmt: skip
"""What the attacked sandbox may reach, for the most part."""
NEIGHBOURS_POLICY: Final = ("neighbour.test",)
SECRET_HOST, ELSE_HOST = "secret.test", "else.test"
"""A host with a secret, and one without; both speak TLS."""
SECRETS_POLICY: Final = (*POLICY, SECRET_HOST, ELSE_HOST)

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "good.test": (GOOD,), "other.test": (OTHER,), "neighbour.test": (EVIL,),
    "metadata.test": (METADATA,), "metadata6.test": (METADATA_6,), "inner.test": (INNER,), "zero.test": ("0.0.0.0",),
    "mapped.test": (f"::ffff:{METADATA}",), "translated.test": ("64:ff9b::a9fe:a9fe",), "loopback.test": ("127.0.0.1",),
    "cloud.test": ("168.63.129.16",), "sixtofour.test": ("2002:a9fe:a9fe::1",),
    "own.test": (OWN_ADDRESS, OWN_ADDRESS_6), "shared.test": ("100.100.100.200",),
    SECRET_HOST: ("93.184.215.17",), ELSE_HOST: ("93.184.215.18",),
}  # fmt: skip
_FORBIDDEN: Final = (
    (METADATA, 80), ("169.254.170.2", 80), (INNER, 80), (INNER, 443), ("172.17.0.1", 2375), ("192.168.1.1", 80),
    ("100.100.100.200", 80), ("168.63.129.16", 80), ("2002:a9fe:a9fe::1", 80), ("64:ff9b::a9fe:a9fe", 80),
    (METADATA_6, 80), (EVIL, 80), (EVIL, 443), (EVIL, 7000), (OTHER, 80),
)  # fmt: skip
_PERMITTED: Final = (
    ("good.test", GOOD, 80), ("good.test", GOOD, 443), ("good.test", GOOD, 7000), ("good.test", GOOD, 8080),
    ("other.test", OTHER, 443), ("wild.test", WILD, 80), ("wild.test", WILD, 443),
)  # fmt: skip
_DATAGRAMS: Final = ((GOOD, 53), (GOOD, 443), (EVIL, 53), (EVIL, 443), (METADATA, 53))


@contextlib.contextmanager
def set_stage(canaries: Canaries) -> Iterator[None]:
    """Put everything up, and let the canaries report it. Only on the test ground."""
    ground = Ground()
    ground.set_hosts({})
    with contextlib.ExitStack() as stack:
        for host, port in _FORBIDDEN:
            canaries.listeners.append(stack.enter_context(ground.listen(host, port)))
        for host in (OWN_ADDRESS, OWN_ADDRESS_6):  # the machine's own: it is listened on here, not in the world
            own = socket.create_server((host, 80), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            canaries.listeners.append(stack.enter_context(own))
        for listener in canaries.listeners:
            listener.setblocking(False)
        for name, host, port in _PERMITTED:
            server = _Server(stack.enter_context(ground.listen(host, port)), speaks=port in (80, 8080))
            canaries.heard[f"{name}:{port}"] = server.heard
        stack.enter_context(_set_secrets(ground, canaries))
        datagrams = [stack.enter_context(ground.listen(host, port, datagrams=True)) for host, port in _DATAGRAMS]
        names = _Names()
        stack.enter_context(ground.answer_names(names.answer))
        canaries.more_targets |= {
            "proxy": [ADDRESS, PROXY_PORT], "resolver": [ADDRESS, DNS_PORT], "own_address": OWN_ADDRESS,
            "own_address_6": OWN_ADDRESS_6, "good": GOOD, "evil": EVIL,
        }  # fmt: skip
        canaries.more_checks += [names.find_leaked, lambda: _count_datagrams(datagrams)]
        yield


class SecretStage:
    """What probes of secrets share with the stage."""

    value: ClassVar[str | None] = None
    """Of the secret; None if this machine can't have any."""


@contextlib.contextmanager
def _set_secrets(ground: Ground, canaries: Canaries) -> Iterator[None]:
    """The hosts that speak TLS, a secret for one of them, and the authority that this host trusts."""
    with contextlib.ExitStack() as stack:
        try:
            authority = make_authority([SECRET_HOST, ELSE_HOST])
        except NoCryptographyError:
            yield
            return
        trusted = Path(stack.enter_context(tempfile.TemporaryDirectory()), "trusted.pem")
        trusted.write_text(authority.certificate)
        before = os.environ.get("SSL_CERT_FILE")
        stack.callback(_restore, before)
        os.environ["SSL_CERT_FILE"] = str(trusted)
        mint = Mint(authority)
        for name in (SECRET_HOST, ELSE_HOST):
            for port, context in ((80, None), (443, mint.context_for(name))):
                listener = stack.enter_context(ground.listen(_NAMES[name][0], port))
                canaries.heard[f"{name}:{port}"] = _Server(listener, speaks=True, context=context).heard
        SecretStage.value = value = f"gate-secret-{secrets.token_hex(16)}"
        canaries.more_secrets.append(value)
        canaries.more_targets |= {
            "secret_host": SECRET_HOST, "else_host": ELSE_HOST, "secret_size": len(value),
            "secret_digests": [hashlib.sha256(value.encode()).hexdigest()],
        }  # fmt: skip
        yield


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop("SSL_CERT_FILE", None)
    else:
        os.environ["SSL_CERT_FILE"] = before


class _Names:
    """What the host's resolver answers, and which questions it should never have got."""

    def __init__(self) -> None:
        self._leaked: list[str] = []
        self._turn = 0

    def answer(self, name: str, kind: str) -> Answer | None:
        if name in _NAMES:
            return Answer(_NAMES[name])
        if name == "rebind.test":
            # Public to whoever checks, and something else to whoever asks again.
            if kind == "A":
                self._turn += 1
            return Answer((GOOD,) if self._turn % 2 else (METADATA, INNER, METADATA_6))
        if name == "mixed.test":
            return Answer((METADATA, GOOD, "127.0.0.1"))
        if name.endswith(".wild.test"):
            return Answer((WILD,))
        self._leaked.append(name)
        return Answer((EVIL,))

    def find_leaked(self) -> list[str]:
        leaked, self._leaked = self._leaked, []
        return [f"the host was asked for names that are not permitted: {sorted(set(leaked))[:5]}"] if leaked else []


def _count_datagrams(sockets: list[socket.socket]) -> list[str]:
    found = []
    for each in sockets:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, sender = each.recvfrom(2048, socket.MSG_DONTWAIT)
                found.append(f"a datagram from {sender[0]} reached {each.getsockname()[0]}: {data[:40]!r}")
    return found


class _Server:
    """Keeps what it hears. One that speaks answers each head of an HTTP request, whatever else it says.

    `/bytes?n=` gives so many bytes, and `/redirect?to=` leads elsewhere.
    """

    def __init__(self, listener: socket.socket, *, speaks: bool, context: ssl.SSLContext | None = None) -> None:
        """`context`: it speaks TLS, and keeps what it hears in the clear."""
        self.heard = bytearray()
        self._context = context
        self._listener = listener
        self._speaks = speaks
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed with the stage
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        if self._context is None:
            self._serve(connection)
            return
        connection.settimeout(30)
        with contextlib.suppress(OSError), connection:
            self._serve(self._context.wrap_socket(connection, server_side=True))

    def _serve(self, connection: socket.socket) -> None:
        waiting = b""
        with contextlib.suppress(OSError), connection:
            while piece := connection.recv(65536):
                self.heard += piece
                waiting += piece
                while self._speaks and b"\r\n\r\n" in waiting:
                    head, _, waiting = waiting.partition(b"\r\n\r\n")
                    self._answer(connection, head)
                    if b"\r\nConnection: close" in head:
                        return

    def _answer(self, connection: socket.socket, head: bytes) -> None:
        if found := re.search(rb"/bytes\?n=(\d+)", head):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n" % found[1])
            for _ in range(int(found[1]) >> 16):
                connection.sendall(bytes(1 << 16))
        elif found := re.search(rb"/redirect\?to=(\S+)", head):
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % found[1])
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfound")
