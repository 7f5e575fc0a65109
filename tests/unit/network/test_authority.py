"""The authority of one sandbox, and its certificates, as TLS clients see them."""

import ssl

import pytest

from corral.network.authority import Mint, make_authority
from corral.network.settings import Authority


def shake(
    mint: Mint, authority: Authority, name: str, *, alpn: list[str] | None = None, asked: str | None = None
) -> str:
    """A handshake in memory; the protocol that was agreed on. Raises: ssl.SSLError."""
    trusting = ssl.create_default_context(cadata=authority.certificate)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    if alpn:
        trusting.set_alpn_protocols(alpn)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=name)
    server = mint.context_for(asked or name).wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.selected_alpn_protocol() or ""


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority(["api.example.org", "*.deep.example", "192.0.2.7"])


@pytest.mark.parametrize("name", ["api.example.org", "a.b.deep.example", "192.0.2.7"])
def test_client_that_trusts_the_authority_accepts_its_certificates(authority: Authority, name: str) -> None:
    assert shake(Mint(authority), authority, name, alpn=["h2", "http/1.1"]) == "http/1.1"


def test_certificate_is_for_its_name_alone(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(Mint(authority), authority, "api.example.org", asked="x.deep.example")


@pytest.mark.parametrize("name", ["evil.example", "example.org", "192.0.2.8"])
def test_authority_can_not_sign_for_other_hosts(authority: Authority, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="subtree"):
        shake(Mint(authority), authority, name)


def test_authority_of_names_can_not_sign_for_addresses() -> None:
    named = make_authority(["api.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="subtree"):
        shake(Mint(named), named, "192.0.2.7")


def test_another_sandbox_does_not_trust_it(authority: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Mint(authority), make_authority(["api.example.org"]), "api.example.org")


def test_key_is_in_no_repr(authority: Authority) -> None:
    assert "PRIVATE" in authority.key
    assert "PRIVATE" not in repr(authority)


def test_certificates_are_kept(authority: Authority) -> None:
    mint = Mint(authority)
    assert mint.context_for("api.example.org") is mint.context_for("api.example.org")
