"""What a gate is told when it starts, and when its policy changes: one JSON text in a sealed memory file.

The values of secrets are in it, so it never passes through another process's memory: the file's descriptor does.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

from corral.inside.jsonbounds import count_values
from corral.inside.nolinks import on_error
from corral.network.rules import Rule, read_rule

MAX_BYTES = 8 * 1024 * 1024
MAX_VALUES = 200_000
MODES = ("none", "packages", "allow", "open")
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_HEADER_CHARACTERS = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class SettingsError(ValueError):
    """Settings that a gate can't work with. The message names the field, never its value."""


@dataclass(frozen=True)
class GateLimits:
    """As `spec.NetworkLimits`, with sizes in bytes."""

    connections: int = 256
    attempts_per_second: float = 50.0
    bytes_per_second: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Upstream:
    """The proxy that the host itself uses: addresses of the form `http://[user:password@]host:port`, empty for none."""

    http: str = field(default="", repr=False)
    https: str = field(default="", repr=False)
    no_proxy: tuple[str, ...] = ()
    """Names, names below one (`.example.org`), addresses and ranges that are reached directly; `*` for all."""


@dataclass(frozen=True)
class GateSecret:
    """Where `placeholder` stands in `header` of a request to one of `hosts`, it becomes `value`."""

    placeholder: str
    value: str = field(repr=False)
    """Empty while nobody has given it again to a sandbox that was stopped: then such requests are refused."""
    hosts: tuple[str, ...] = ()
    """Rules for names, as of `read_rule`."""
    header: str = "Authorization"


@dataclass(frozen=True)
class GateCredential:
    """A header that is added to requests to `host` that only read, and that the sandbox never has: the password of an
    index."""

    host: str
    """A rule for a name."""
    header: str
    value: str = field(repr=False)
    secure: bool = True
    """Added to requests over TLS alone."""


@dataclass(frozen=True)
class Alias:
    """A name that leads to an address which the operator chose: connections to `name` at `port` go to `host` at
    `host_port`, whatever address that is. It needs no rule."""

    name: str
    port: int
    host: str
    """A name or an address, on the host side."""
    host_port: int


@dataclass(frozen=True)
class Authority:
    """The certificate authority of this sandbox alone, as PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class GateSettings:
    """All that a gate is told."""

    mode: str = "none"
    rules: tuple[str, ...] = ()
    """What is permitted beside the mode; registries are expanded already."""
    limits: GateLimits = field(default_factory=GateLimits)
    upstream: Upstream = field(default_factory=Upstream)
    ca_file: str | None = None
    """Certificates that the host trusts, where the gate itself speaks TLS."""
    secrets: tuple[GateSecret, ...] = ()
    credentials: tuple[GateCredential, ...] = ()
    aliases: tuple[Alias, ...] = ()
    authority: Authority | None = None
    site_packages: str | None = None
    """Where the package `cryptography` is, if TLS is to be ended."""
    hostname: str = ""
    """Of the sandbox."""
    described: str = "nothing"
    """What is permitted, for a reader."""

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def parsed_rules(self) -> tuple[Rule, ...]:
        """`rules`, parsed once."""
        return tuple(read_rule(text) for text in self.rules)

    def to_bytes(self) -> bytes:
        """As a text. Raises: SettingsError if it is too large."""
        data = json.dumps(asdict(self), separators=(",", ":")).encode("ascii")
        if len(data) > MAX_BYTES or count_values(data, most=MAX_VALUES) > MAX_VALUES:
            raise SettingsError("the settings of a network are too large: list fewer hosts")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> GateSettings:
        """From a text. Raises: SettingsError."""
        if len(data) > MAX_BYTES or count_values(data, most=MAX_VALUES) > MAX_VALUES:
            raise SettingsError("too large")
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError):
            raise SettingsError("not JSON") from None
        values = _known(cls, raw, "settings")
        for name in _PARTS.keys() & values.keys():
            if values[name] is not None:
                values[name] = _read(_PARTS[name], values[name], name)
        for name, kind in _LISTS.items():
            values[name] = tuple(_read(kind, item, name) for item in _list(values.get(name, []), name))
        values["rules"] = tuple(_list(values.get("rules", []), "rules"))
        try:
            return cls(**values)
        except (TypeError, AttributeError):
            raise SettingsError("settings: a field is not of its type") from None

    def to_memfd(self) -> int:
        """As a memory file that nobody can change any more; returns its descriptor, which the caller closes."""
        descriptor = os.memfd_create("corral-network", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with on_error(os.close, descriptor):
            data = memoryview(self.to_bytes())
            while data:
                data = data[os.write(descriptor, data) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor

    @classmethod
    def from_memfd(cls, descriptor: int) -> GateSettings:
        """Read a sealed memory file, which stays open. Raises: SettingsError, also if it is not sealed."""
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
            size = os.fstat(descriptor).st_size
            data = os.pread(descriptor, min(size, MAX_BYTES + 1), 0)
        except OSError as error:
            raise SettingsError(f"unreadable: {error.strerror}") from None
        if not sealed:
            raise SettingsError("the file is not sealed")
        return cls.from_bytes(data)


_PARTS: Final[dict[str, type]] = {"limits": GateLimits, "upstream": Upstream, "authority": Authority}
_LISTS: Final[dict[str, type]] = {"secrets": GateSecret, "credentials": GateCredential, "aliases": Alias}


def _known(kind: type, raw: object, what: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise SettingsError(f"{what}: not an object")
    if raw.keys() - {each.name for each in fields(kind)}:
        raise SettingsError(f"{what}: an unknown field")
    return dict(raw)


def _read(kind: type, raw: object, what: str) -> Any:
    values = _known(kind, raw, what)
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    try:
        return kind(**values)
    except TypeError:
        raise SettingsError(f"{what}: a field is missing") from None


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise SettingsError(f"{what}: not a list")
    return value


def _check(settings: GateSettings) -> None:
    """Check types and ranges. Raises: SettingsError."""
    if settings.mode not in MODES:
        raise SettingsError("mode: unknown")
    for what, texts in (("rules", settings.rules), ("no_proxy", settings.upstream.no_proxy)):
        _texts(what, *texts)
    _texts(
        "described", settings.described, settings.hostname, *filter(None, (settings.ca_file, settings.site_packages))
    )
    try:
        _ = settings.parsed_rules
    except ValueError:
        raise SettingsError("rules: one is not a rule") from None
    _check_limits(settings.limits)
    for url in (settings.upstream.http, settings.upstream.https):
        _check_proxy(url)
    if settings.authority is not None:
        _texts("authority", settings.authority.certificate, settings.authority.key)
    for secret in settings.secrets:
        _check_added(secret.header, secret.value, secret.hosts)
        _texts("placeholder", secret.placeholder)
        if not secret.placeholder:
            raise SettingsError("placeholder: empty")
    for credential in settings.credentials:
        if not isinstance(credential.secure, bool):
            raise SettingsError("credentials: secure is not a truth value")
        _check_added(credential.header, credential.value, (credential.host,))
    for alias in settings.aliases:
        _texts("aliases", alias.name, alias.host)
        for port in (alias.port, alias.host_port):
            _number("aliases", port, least=1, most=65535)


def _check_limits(limits: GateLimits) -> None:
    _number("connections", limits.connections, least=1, most=1_000_000)
    if isinstance(limits.attempts_per_second, bool) or not isinstance(limits.attempts_per_second, int | float):
        raise SettingsError("attempts_per_second: not a number")
    if not 0 < limits.attempts_per_second <= 1e9:
        raise SettingsError("attempts_per_second: out of range")
    for name, value in (("bytes_per_second", limits.bytes_per_second), ("total_bytes", limits.total_bytes)):
        if value is not None:
            _number(name, value, least=1, most=2**63)


def _check_proxy(url: str) -> None:
    _texts("upstream", url)
    if not url:
        return
    try:
        parts = urlsplit(url)
        sound = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise SettingsError("upstream: not an address such as http://proxy.example.org:3128")


def _check_added(header: object, value: object, hosts: tuple[object, ...]) -> None:
    """Check a header with its value, and for whom it is. A value with a line end would be a header of its own."""
    if not isinstance(header, str) or not isinstance(value, str):
        raise SettingsError("header: not a text")
    if not header or not set(header) <= _HEADER_CHARACTERS:
        raise SettingsError("header: not the name of a header")
    if any(ord(character) < 32 or ord(character) == 127 or ord(character) > 255 for character in value):
        raise SettingsError("header: its value has characters that a header can't have")
    try:
        named = all(isinstance(text, str) and read_rule(text).network is None for text in hosts)
    except ValueError:
        named = False
    if not named:
        raise SettingsError("hosts: a secret is for names of hosts")


def _texts(what: str, *values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise SettingsError(f"{what}: not a text")


def _number(what: str, value: object, *, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"{what}: not a number from {least} to {most}")
