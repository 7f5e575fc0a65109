"""The network of an embedded sandbox: what its gate is told, what programs inside are told, and what was refused."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.backends.embedded import certificates, withheld
from corral.backends.embedded.registries import Registries
from corral.errors import BackendUnavailableError
from corral.network import denials
from corral.network.inner import ADDRESS
from corral.network.settings import GateLimits, GateSettings, SettingsError, Upstream
from corral.results import Denial
from corral.spec import NetworkPolicy, Spec, make_spec

MODES = ("none", "packages", "allow", "open")
_NEVER_PROXIED = "localhost,127.0.0.1,::1"
_GIVE_UP_AT_ONCE = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0", "CARGO_NET_RETRY": "0"}
"""Where nothing can be reached, trying again only takes time."""
_GIVE_UP_SOON = {
    "PIP_RETRIES": "2",
    "npm_config_fetch_retry_mintimeout": "500",
    "npm_config_fetch_retry_maxtimeout": "2000",
}
"""Where most is refused at once: their own pauses would add up to a minute."""


def make_settings(spec: Spec, registries: Registries, *, before: GateSettings | None = None) -> GateSettings:
    """What the gate of a sandbox is told. `registries` are those that the policy permits, `before` is what it was told
    last.

    Raises:
        BackendUnavailableError: this machine's own proxy is of a kind that a gate can't use, or secrets need a package
            that is not installed.
    """
    policy = spec.network
    secrets = withheld.tell(spec.secrets)
    authority = withheld.find_authority(secrets, registries.credentials, before=before)
    trusted = certificates.find_certificates() if secrets or registries.credentials else None
    try:
        return GateSettings(
            mode=policy.mode,
            rules=tuple(dict.fromkeys((*registries.rules, *policy.hosts))),
            aliases=registries.aliases,
            secrets=secrets,
            credentials=registries.credentials,
            authority=authority,
            ca_file=None if trusted is None else trusted.path,
            site_packages=None if authority is None else withheld.find_site_packages(),
            limits=GateLimits(**asdict(policy.limits)),
            upstream=_find_upstream() if policy.mode != "none" else Upstream(),
            hostname=spec.hostname,
            described=policy.describe(),
        )
    except SettingsError as error:
        hint = "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY are of the form http://HOST:PORT"
        raise BackendUnavailableError(f"the network can't be set up: {error}", op="network", hint=hint) from error


def _find_upstream() -> Upstream:
    """The proxy of this process. Raises: BackendUnavailableError if it is not an HTTP proxy."""
    proxies = urllib.request.getproxies_environment()
    found: dict[str, str] = {}
    for scheme in ("http", "https"):
        url = proxies.get(scheme) or proxies.get("all", "")
        if url and "://" not in url:
            url = f"http://{url}"
        if url and urlsplit(url).scheme != "http":
            variable = f"{scheme.upper()}_PROXY" if proxies.get(scheme) else "ALL_PROXY"
            raise BackendUnavailableError(
                f"{variable} of this machine is no HTTP proxy, and sandboxes can't use another kind",
                op="network",
                hint=f"set {variable}=http://HOST:PORT, or unset it",
            )
        found[scheme] = url
    excepted = tuple(entry.strip() for entry in proxies.get("no", "").split(",") if entry.strip())
    return Upstream(http=found["http"], https=found["https"], no_proxy=excepted)


def has_upstream() -> bool:
    """True if this machine reaches the internet through a proxy: then names are checked, and addresses can't be.

    Raises:
        BackendUnavailableError: as `make_settings`.
    """
    upstream = make_settings(make_spec(network="open"), Registries()).upstream
    return bool(upstream.http or upstream.https)


def variables(policy: NetworkPolicy, proxy_port: int | None) -> dict[str, str]:
    """The environment for programs inside. `proxy_port` is None if their connections are redirected."""
    if policy.mode == "none":
        return dict(_GIVE_UP_AT_ONCE)
    usual = {} if policy.mode == "open" else dict(_GIVE_UP_SOON)
    if proxy_port is None:
        return usual
    proxy = f"http://{ADDRESS}:{proxy_port}"
    found = {name: proxy for kind in ("HTTP", "HTTPS", "ALL") for name in (f"{kind}_PROXY", f"{kind.lower()}_proxy")}
    found |= {"NO_PROXY": _NEVER_PROXIED, "no_proxy": _NEVER_PROXIED}
    return (
        usual
        | found
        | {"npm_config_proxy": proxy, "npm_config_https_proxy": proxy, "npm_config_noproxy": _NEVER_PROXIED}
    )


def describe(policy: NetworkPolicy) -> dict[str, Any]:
    """A policy as it is stored."""
    return policy.to_json()


def policy_from(stored: dict[str, Any] | None) -> NetworkPolicy:
    """The inverse. Sandboxes of earlier versions have none."""
    return NetworkPolicy() if stored is None else NetworkPolicy.from_json(stored)


def read_denials(file: Path, *, since: int) -> Sequence[Denial]:
    """What was refused after the first `since`, from a sandbox's file of denials."""
    found = denials.read_since(file, since)
    return tuple(Denial(each.host, each.port, each.rule, each.count) for each in found)
