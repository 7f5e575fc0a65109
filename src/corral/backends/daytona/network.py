"""A network policy as the service's settings: nothing, everything, or lists of domains and IPv4 ranges."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from corral.errors import CapabilityError
from corral.network.rules import read_rule
from corral.spec import NetworkLimits, NetworkPolicy


def network_settings(policy: NetworkPolicy, *, ours: bool) -> dict[str, Any]:
    """The fields of a request, for a new sandbox or a running one. `open` is what the service gives by default.

    Raises:
        CapabilityError: the service has no setting for it.
    """
    if policy.limits != NetworkLimits():
        raise _lacks("limits of the network", "leave them out: the operator of the service sets them")
    if not policy.permits_something:
        return {"network_block_all": True}
    if policy.mode == "packages":
        raise _lacks("network='packages'", "list the hosts; at `corral serve` its operator permits them with --network")
    if policy.mode == "open":
        if policy.hosts:
            raise _lacks("hosts beside 'open'", "leave them out")
        return {"network_block_all": False}
    ranges, names = [], []
    for host in policy.hosts:
        rule = read_rule(host)
        if rule.port is not None or (rule.network is not None and not isinstance(rule.network, IPv4Network)):
            raise _lacks(f"{host} in a list of hosts", "use names and IPv4 ranges, without ports")
        if rule.network is None:
            names.append(rule.host)
        else:
            ranges.append(str(rule.network))
    lists = {"network_allow_list": ",".join(ranges), "domain_allow_list": ",".join(names)}
    # At `corral serve` a list that is not named stays; at the hosted service, each ends the others.
    return {name: entries for name, entries in lists.items() if entries or ours}


def network_of(remote: Any) -> NetworkPolicy:
    """What the service says of a sandbox, as far as it does: its own default shows as nothing."""
    lists = [getattr(remote, name, None) for name in ("network_allow_list", "domain_allow_list")]
    hosts = [entry.strip() for text in lists for entry in (text or "").split(",") if entry.strip()]
    if getattr(remote, "network_block_all", False) or not hosts:
        return NetworkPolicy()
    return NetworkPolicy("allow", tuple(hosts))


def _lacks(what: str, hint: str) -> CapabilityError:
    return CapabilityError(f"the service does not support {what}", op="network", hint=hint)
