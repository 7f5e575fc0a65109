"""The settings of a server, given at its start."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from corral.errors import SpecError
from corral.requirement import check_packages
from corral.spec import NetworkPolicy

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"(?=.{{1,190}}$){_LABEL}(?:\.{_LABEL})*", re.ASCII)
GIB = 1024**3
MIB = 1024**2
OUTPUT_LIMIT_BYTES = 20 * MIB
"""How much of each output stream of one call is kept; the middle of a longer one is cut out, and a line says how much.
Less is kept if other calls of the same key hold its memory and do not end."""
API = "/api"
TOOLBOX = "/toolbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits for one request, one client or one organisation."""

    json_bytes: int = 4 * MIB
    """The longest JSON body with code, a command or paths in it; uploads are streams and have no such limit."""
    small_json_bytes: int = 256 * 1024
    """The longest JSON body of any other request."""
    json_depth: int = 64
    json_items: int = 25_000
    """Texts, objects and lists in one JSON body."""
    header_bytes: int = 16 * 1024
    """The longest single header, and the longest request line."""
    headers: int = 128
    multipart_parts: int = 2000
    frame_bytes: int = 16 * 1024
    """The longest websocket frame that we send."""
    frame_in_bytes: int = 128 * 1024
    """A message that a client sends over a websocket must be shorter."""
    code_frame_bytes: int = MIB
    """The same for one with code for an interpreter."""
    frame_seconds: float = 10.0
    """The time for a frame to arrive, from its first byte to its last."""
    request_seconds: float = 30.0
    """The time for the headers of a request to arrive, then for its JSON body, or the next bytes of an upload."""
    rate_per_key: float = 2000.0
    """Requests in a second, on average; twice as many may come at once."""
    bad_keys_per_minute: float = 300.0
    """Requests with an invalid key from one address; more are answered with 429."""
    connections: int = 4096
    """When there are more, connections without a request that has a valid key are closed."""
    calls_per_key: int = 1024
    """Requests of one key that are being answered at the same time."""
    memory_per_key_bytes: int = 40 * MIB
    """Memory for the requests, answers and sockets of one key at the same time, by the server's own count."""
    volumes: int = 100
    """Volumes of one organisation."""
    sessions_bytes: int = 16 * MIB
    """Memory for cached shell sessions of one organisation."""

    def __post_init__(self) -> None:
        if self.memory_per_key_bytes < MIB:
            raise SpecError(
                f"{self.memory_per_key_bytes} bytes of memory are not enough for the requests of a key",
                hint="give 1MiB or more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a sandbox gets if the request does not say otherwise."""

    cpu: int = 1
    memory_gib: int = 1
    disk_gib: int = 3
    volume_bytes: int = 10 * GIB
    """The size of a volume, where sizes can be enforced."""
    auto_stop_minutes: int = 15
    auto_archive_minutes: int = 7 * 24 * 60
    max_auto_archive_minutes: int = 30 * 24 * 60
    auto_delete_minutes: int = -1
    target: str = "local"
    packages: tuple[str, ...] = ()
    """Python packages of every sandbox, mounted read-only."""
    venv: Path | None = None
    """A virtual environment of this machine whose packages every sandbox sees."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", check_packages(self.packages))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """A server."""

    data_folder: Path
    host: str = "127.0.0.1"
    port: int = 3986
    public_url: str | None = None
    """The base URL for clients, without a path: `https://sandboxes.example.org`. By default the request's Host."""
    preview_domain: str | None = None
    """Previews are at `{port}-{sandbox}.{preview_domain}`: all names below it must lead to this server."""
    backend: str = "embedded"
    version: str = "0"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    """Serve beyond loopback without TLS."""
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    """What sandboxes may reach at most, and what they reach if their clients ask for nothing else. Keys may have their
    own."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    defaults: Defaults = field(default_factory=Defaults)
    sweep_seconds: float = 1.0
    drain_seconds: float = 10.0
    """After SIGTERM, the time for requests to end."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SpecError(f"{self.port} is not a valid port", hint="use 0 for any free port")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SpecError("TLS needs both a certificate and a key", hint="give both --tls-cert and --tls-key")
        if not (self.is_loopback or self.tls or self.insecure):
            raise SpecError(
                f"serving on {self.host} without TLS would send API keys unencrypted over the network",
                hint="give --tls-cert and --tls-key, or --insecure if a proxy in front of the server has TLS",
            )
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
                raise SpecError(
                    f"{self.public_url!r} is not the base URL of a server",
                    hint="use a URL like https://sandboxes.example.org",
                )
            object.__setattr__(self, "public_url", self.public_url.rstrip("/"))
        if self.preview_domain is not None:
            object.__setattr__(self, "preview_domain", _check_domain(self.preview_domain))

    @property
    def tls(self) -> bool:
        """Whether the server itself uses TLS."""
        return self.tls_cert is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        address = find_address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)

    @property
    def state_folder(self) -> Path:
        """Where the server's own database is; the rest of the data folder is the backend's."""
        return self.data_folder / "server"


def _check_domain(domain: str) -> str:
    """A domain, in lower case. Raises: SpecError."""
    lower = domain.lower().removeprefix("*.")
    if not _DOMAIN.fullmatch(lower) or lower.replace(".", "").isdigit():
        raise SpecError(f"{domain!r} is not a domain for previews", hint="use a name such as preview.example.org")
    return lower


def find_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
