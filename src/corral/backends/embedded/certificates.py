"""The certificates that programs inside trust: those of the host, and the sandbox's own authority if it has secrets."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from corral.engine.base import CERTIFICATES, MAX_CERTIFICATES_BYTES, OWN_CERTIFICATES, HostFile
from corral.spec import NetworkPolicy

_USUAL = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "npm_config_cafile",
    "NODE_EXTRA_CA_CERTS", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
)  # fmt: skip
"""What programs read that have certificates of their own, or look for them elsewhere."""


def find_certificates() -> HostFile | None:
    """The file with the certificates that this process trusts: `SSL_CERT_FILE`, or the system's. None without one."""
    for name in (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().openssl_cafile, *_USUAL):
        if not name:
            continue
        path = Path(name)
        try:
            found = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and 0 < found.st_size <= MAX_CERTIFICATES_BYTES and os.access(path, os.R_OK):
            return HostFile(str(path.resolve()), (found.st_ino, found.st_size, found.st_mtime_ns))
    return None


def make_bundle(authority: str) -> bytes:
    """The host's certificates and one more, in PEM."""
    host = find_certificates()
    content = Path(host.path).read_bytes() if host is not None else b""
    return content.rstrip() + b"\n" + authority.encode("ascii")


def variables(policy: NetworkPolicy) -> dict[str, str]:
    """What leads programs inside to the host's certificates. Nothing for a sandbox that reaches nothing."""
    if policy.mode == "none" or find_certificates() is None:
        return {}
    return dict.fromkeys(_VARIABLES, CERTIFICATES)


def with_authority(env: Mapping[str, str], *, own: bool) -> dict[str, str]:
    """An environment that leads to the certificates with the sandbox's own authority, or no longer does."""
    others = {name: value for name, value in env.items() if value != OWN_CERTIFICATES or name not in _VARIABLES}
    return {**dict.fromkeys(_VARIABLES, OWN_CERTIFICATES), **others} if own else others
