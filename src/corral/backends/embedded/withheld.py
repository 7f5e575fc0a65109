"""Secrets on their way to the gate, and what a sandbox's folder keeps of them: never a value."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corral.errors import BackendUnavailableError
from corral.network.authority import NoCryptographyError, make_authority
from corral.network.rules import read_rule
from corral.network.settings import Authority, GateCredential, GateSecret, GateSettings
from corral.secret import Pending, Secret


def describe(secrets: Iterable[Secret]) -> list[dict[str, Any]]:
    """As a sandbox's folder has them, for `read`: without their values."""
    return [
        {"name": each.name, "hosts": list(each.hosts), "header": each.header, "placeholder": each.placeholder}
        for each in secrets
    ]


def read(described: Iterable[dict[str, Any]]) -> tuple[Secret, ...]:
    """The inverse, with values that are not known."""
    return tuple(Secret(value=Pending(), **each) for each in described)


def recall(secrets: Iterable[Secret], settings: GateSettings) -> tuple[Secret, ...]:
    """The secrets with the values that a gate was told, where it was told one."""
    values = {each.placeholder: each.value for each in settings.secrets if each.value}
    return tuple(replace(each, value=values.get(each.placeholder or "", each.value)) for each in secrets)


def tell(secrets: Iterable[Secret]) -> tuple[GateSecret, ...]:
    """As a gate is told them."""
    return tuple(
        GateSecret(
            each.placeholder or "", each.value if isinstance(each.value, str) else "", tuple(each.hosts), each.header
        )
        for each in secrets
    )


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
