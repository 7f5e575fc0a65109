"""What a sandbox was refused, in one line for a reader: a model, a person at a terminal, a Python program.

The names come from programs inside: what is not plainly a name or an address is shown escaped, all of it is bounded,
and only plain names are proposed for the policy.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

from corral.network.rules import MAX_NAME_BYTES, read_address, read_name
from corral.results import Denial
from corral.spec import NetworkPolicy

Door = Literal["library", "command line", "model", "server"]
"""Who reads it, and so how access is asked for."""

NEW_SANDBOX_FLAG = "--network"
"""What takes the policy of a new sandbox on the command line."""
_MOST_HOSTS = 5
_MOST_PROPOSED = 3
_LONGEST_HOST = 100
_POLICY, _PRIVATE, _NOTHING = "policy", "private", "no network"


def describe_denials(
    denied: Sequence[Denial], policy: NetworkPolicy, *, door: Door = "library", flag: str = NEW_SANDBOX_FLAG
) -> str:
    """One line without a line end: what was refused, what is permitted, and how to ask for more. Empty if nothing was.
    `flag` is what takes a policy on the command line.

    `network: blocked example.org:443; allowed are package registries; ask for it with network="packages,example.org"`
    """
    by_rule: dict[str, list[Denial]] = {}
    for denial in _joined(denied):
        by_rule.setdefault(denial.rule, []).append(denial)
    # What a reader can change comes first.
    rules = sorted(by_rule, key=lambda rule: rule not in (_POLICY, _NOTHING, _PRIVATE))
    parts, room = [], _MOST_HOSTS
    for rule in rules:
        found = by_rule[rule]
        shown, room = found[: max(1, room)], room - len(found)
        named = ", ".join(map(_name, shown))
        more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        parts.append(f"blocked {named}{more}{_explain(rule, policy)}")
    listed = [denial for rule in (_POLICY, _NOTHING, _PRIVATE) for denial in by_rule.get(rule, ())]
    if listed:
        parts.append(f"allowed are {policy.describe(most=_MOST_HOSTS)}" if policy.mode != "none" else "")
        parts.append(_ask(listed, policy, door, flag))
    return f"network: {'; '.join(filter(None, parts))}" if parts else ""


def _joined(denied: Iterable[Denial]) -> list[Denial]:
    """Each host and port once for each rule, in order. A lookup is left out if a connection to the host is there."""
    counts: dict[tuple[str, int | None, str], int] = {}
    for each in denied:
        key = (each.host, each.port, each.rule)
        counts[key] = counts.get(key, 0) + each.count
    connected = {(host, rule) for host, port, rule in counts if port is not None}
    return [
        Denial(host, port, rule, count)
        for (host, port, rule), count in counts.items()
        if port is not None or (host, rule) not in connected
    ]


def _plain(host: str) -> str | None:
    """The name or address in its usual spelling; None for anything else."""
    if len(host) > MAX_NAME_BYTES:
        return None
    address = read_address(host)
    return str(address) if address is not None else read_name(host)


def show_host(host: str) -> str:
    """A name or address from inside, for a reader: escaped unless it plainly is one, and bounded."""
    shown = _plain(host) or ascii(host[:_LONGEST_HOST])
    return shown if len(shown) <= _LONGEST_HOST else f"{shown[: _LONGEST_HOST - 1]}…"


def _name(denial: Denial) -> str:
    text = _with_port(show_host(denial.host), denial.port)
    return text if denial.count <= 1 else f"{text} ({denial.count} times)"


def _with_port(host: str, port: int | None) -> str:
    if port is None:
        return host
    return f"[{host}]:{port}" if read_address(host) is not None and ":" in host else f"{host}:{port}"


def _explain(rule: str, policy: NetworkPolicy) -> str:
    limits = policy.limits
    return {
        _POLICY: "",
        _NOTHING: ": this sandbox has no network",
        _PRIVATE: ": private addresses are reached only if the address itself is listed",
        "connections": f": more than {limits.connections} connections at once",
        "rate": f": more than {limits.attempts_per_second:g} attempts per second",
        "bytes": ": more bytes than its limit",
        "tls": ": the name in TLS is another one",
        "host": ": the request names another host",
        "secret": ": its secret can't be put in: that takes HTTP/1.1 over TLS, a client that trusts SSL_CERT_FILE, "
        "and the value, which a sandbox forgets when it is stopped",
        "protocol": ": the protocol was not understood",
    }.get(rule, f": {rule[:40]!a}")


def _ask(denied: Sequence[Denial], policy: NetworkPolicy, door: Door, flag: str) -> str:
    """How a reader gets access, in the words of the door."""
    if door == "model":
        return "if it is needed, ask the user to allow it"
    hosts = dict.fromkeys(_with_port(host, each.port) for each in denied if (host := _proposable(each)) is not None)
    proposed = [*hosts][:_MOST_PROPOSED] or ["HOST"]
    bare = policy.mode == "none"  # then a first host is often an index, which alone is not enough for a package
    before = [] if bare else str(policy).split(",")
    wanted = ",".join([*(before if len(before) <= _MOST_HOSTS else ["…"]), *proposed])
    if door == "command line":
        named = shlex.quote(wanted) if set(wanted) & set("*[") else wanted
        return f"ask for it with {flag} {named}" + (f"; for pip, npm and the like: {flag} packages" if bare else "")
    if door == "server":
        return f"ask for it with domainAllowList or networkAllowList: {','.join(proposed)}"
    return f'ask for it with network="{wanted}"' + ('; for pip, npm and the like: network="packages"' if bare else "")


def _proposable(denial: Denial) -> str | None:
    """A host that may be listed: a plain name or address. Names for a private address would not help."""
    plain = _plain(denial.host)
    if plain is None or len(plain) > _LONGEST_HOST:
        return None
    address = read_address(plain)
    if address is not None and address.is_link_local:
        return None  # metadata services of clouds: whoever needs one knows how to list it
    return plain if denial.rule != _PRIVATE or address is not None else None
