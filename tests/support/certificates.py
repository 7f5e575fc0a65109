"""A certificate authority for tests, and one certificate for the names that a test's servers have."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM."""

    authority: Path
    """What clients trust."""
    certificate: Path
    key: Path

    @property
    def texts(self) -> tuple[str, str]:
        """The certificate and the key, as `stand_ins.start(tls=…)` takes them."""
        return self.certificate.read_text(), self.key.read_text()


def make_certificates(folder: Path, *names: str) -> Certificates:
    """Make them in a folder."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "Authority of a test")])
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "Server of a test")])
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    root = _begin(issuer, issuer, authority_key.public_key(), authority_key)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    leaf = _begin(issuer, subject, key.public_key(), authority_key).add_extension(alternatives, critical=False)
    contents = {
        "authority.pem": root.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "certificate.pem": leaf.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "key.pem": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return Certificates(*(folder / name for name in contents))


def _begin(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
