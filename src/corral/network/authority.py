"""The certificates of one sandbox: an authority that exists for it alone, and what it signs for the hosts of secrets.

Alone in this room it needs more than the standard library: the package `cryptography`, of the extra `secrets`.
"""

from __future__ import annotations

import datetime
import os
import ssl
import time
from collections.abc import Iterable
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from corral.network.rules import read_address
from corral.network.settings import Authority

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_ISSUER = "Corral: the authority of one sandbox"
_SUBJECT = "Corral: a host of a secret"  # with spaces, since OpenSSL compares what could be a name with constraints
_YEARS = 10
_LEAF_DAYS = 90
_LEAF_SECONDS = 24 * 3600.0
"""After this a certificate is made anew."""
_MAX_LEAVES = 500
_ANY_ADDRESS = ("0.0.0.0/0", "::/0")


class NoCryptographyError(ImportError):
    """The package `cryptography` is not installed."""


def make_authority(hosts: Iterable[str]) -> Authority:
    """A new authority, which can only sign for these hosts and the names below them. Raises: NoCryptographyError."""
    x509, hashes, serialization, ec = _load()
    key = ec.generate_private_key(ec.SECP256R1())
    permitted = [_name_of(x509, host.removeprefix("*."), whole=True) for host in sorted(set(hosts))]
    numbered = any(isinstance(name, x509.IPAddress) for name in permitted)
    excluded = [] if numbered else [x509.IPAddress(ip_network(text)) for text in _ANY_ADDRESS]
    constraints = x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=excluded or None)
    itself = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, _ISSUER)])
    certificate = (
        _builder(x509, key, subject=itself, issuer=itself, issuer_key=key, days=_YEARS * 365)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(x509, "key_cert_sign", "crl_sign"), critical=True)
        .add_extension(constraints, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        key=_key_text(serialization, key),
    )


class Mint:
    """Makes certificates for the names that clients ask for, and keeps them."""

    def __init__(self, authority: Authority) -> None:
        """Raises: NoCryptographyError; ValueError for an authority that can't be read."""
        self._parts = x509, _, serialization, ec = _load()
        self._authority = x509.load_pem_x509_certificate(authority.certificate.encode())
        self._key = serialization.load_pem_private_key(authority.key.encode(), password=None)
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())  # one is enough: it never leaves this process
        self._contexts: dict[str, tuple[float, ssl.SSLContext]] = {}

    def context_for(self, name: str) -> ssl.SSLContext:
        """The server's side of TLS with a certificate for a name or an address. HTTP/1.1 only."""
        made, context = self._contexts.get(name, (0.0, None))
        now = time.monotonic()
        if context is None or now - made > _LEAF_SECONDS:
            context = self._make_context(name)
            while len(self._contexts) >= _MAX_LEAVES:
                self._contexts.pop(next(iter(self._contexts)))
            self._contexts[name] = (now, context)
        return context

    def _make_context(self, name: str) -> ssl.SSLContext:
        x509, hashes, serialization, _ = self._parts
        subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, _SUBJECT)])
        certificate = (
            _builder(
                x509, self._leaf_key, subject=subject, issuer=self._authority.subject, issuer_key=self._key,
                days=_LEAF_DAYS,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(x509, "digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_name_of(x509, name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        context.num_tickets = 0  # sessions are not resumed: each connection shows its name
        # The ssl module reads chains from files only; this one is in memory.
        text = certificate.public_bytes(serialization.Encoding.PEM) + _key_text(serialization, self._leaf_key).encode()
        descriptor = os.memfd_create("corral-leaf", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return context


def _builder(x509: Any, key: EllipticCurvePrivateKey, *, subject: Any, issuer: Any, issuer_key: Any, days: int) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the clock inside is ours, but may be set back
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _name_of(x509: Any, host: str, *, whole: bool = False) -> Any:
    """A host as certificates name it; an address as a range of one with `whole`, for constraints."""
    address = read_address(host)
    if address is None:
        return x509.DNSName(host)
    return x509.IPAddress(ip_network(str(address)) if whole else address)


_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _usage(x509: Any, *allowed: str) -> Any:
    return x509.KeyUsage(**{name: name in allowed for name in _USAGES})


def _key_text(serialization: Any, key: EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")


def _load() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise NoCryptographyError("secrets need the package cryptography") from error
    return x509, hashes, serialization, ec
