"""Secrets on their way to the gate, and what a sandbox's folder keeps of them: never a value."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corral.errors import BackendUnavailableError
from corral.network.authority import NoCryptographyError, make_authority
from corral.network.rules import read_rule
from corral.network.settings import Authority, GateCredential, GateSecret, GateSettings
from corral.spec import Secret, placeholders


@dataclass(frozen=True, slots=True)
class Stored:
    """A secret without its value. After a stop, this is all of it until somebody gives the value again."""

    name: str
    placeholder: str
    hosts: tuple[str, ...]
    header: str


def store(secrets: Iterable[Secret]) -> tuple[Stored, ...]:
    """Secrets that have their placeholders."""
    return tuple(Stored(each.name, each.placeholder or "", tuple(each.hosts), each.header) for each in secrets)


def describe(stored: Iterable[Stored]) -> list[dict[str, Any]]:
    """As a sandbox's folder has them, for `read`."""
    return [asdict(each) for each in stored]


def read(info: Mapping[str, Any]) -> tuple[Stored, ...]:
    """From the description of a sandbox. Earlier versions have none."""
    return tuple(
        Stored(each["name"], each["placeholder"], tuple(each["hosts"]), each["header"])
        for each in info["spec"].get("secrets", ())
    )


def recover(stored: Iterable[Stored], settings: GateSettings) -> tuple[tuple[Secret, ...], tuple[Stored, ...]]:
    """The secrets whose values the settings of the running gate have, and those without."""
    values = {each.placeholder: each.value for each in settings.secrets if each.value}
    known, unknown = [], []
    for each in stored:
        value = values.get(each.placeholder)
        if value is None:
            unknown.append(each)
        else:
            known.append(Secret(each.name, value, each.hosts, each.header, each.placeholder))
    return tuple(known), tuple(unknown)


def show(secrets: Sequence[Secret], forgotten: Iterable[Stored]) -> dict[str, str]:
    """The variables of programs inside: placeholders."""
    return placeholders(secrets) | {each.name: each.placeholder for each in forgotten}


def tell(secrets: Iterable[Secret], forgotten: Iterable[Stored]) -> tuple[GateSecret, ...]:
    """As the gate is told them."""
    known = (GateSecret(each.placeholder or "", each.value, tuple(each.hosts), each.header) for each in secrets)
    return (*known, *(GateSecret(each.placeholder, "", each.hosts, each.header) for each in forgotten))


def find_authority(
    secrets: Sequence[GateSecret], credentials: Sequence[GateCredential], *, before: GateSettings | None = None
) -> Authority | None:
    """What signs for the hosts of these; None if TLS has to be ended for none.

    That of `before` if it can: programs that run have read its certificate already.

    Raises:
        BackendUnavailableError: the package for it is not installed.
    """
    hosts = _hosts(secrets, credentials)
    if not hosts:
        return None
    if before is not None and before.authority is not None and hosts <= _hosts(before.secrets, before.credentials):
        return before.authority
    try:
        return make_authority(hosts)
    except NoCryptographyError:
        what = "secrets" if secrets else "package registries with a login"
        raise BackendUnavailableError(
            f"{what} need the package cryptography, for certificates",
            op="network",
            hint="pip install 'corral[secrets]'",
        ) from None


def _hosts(secrets: Iterable[GateSecret], credentials: Iterable[GateCredential]) -> set[str]:
    named = [host for each in secrets for host in each.hosts]
    return {read_rule(rule).host for rule in (*named, *(each.host for each in credentials if each.secure))}


def find_site_packages() -> str | None:
    """Where the gate finds the package that makes certificates; None if it is not installed."""
    found = importlib.util.find_spec("cryptography")
    return None if found is None or found.origin is None else str(Path(found.origin).parent.parent)
