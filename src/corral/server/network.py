"""What a sandbox of the server may reach: what its clients ask for, beneath what the operator permits.

The operator's ceiling comes from the key of the request, else from `corral serve --network`. A sandbox whose clients
ask for nothing has the ceiling itself. The ceiling that was in force is kept with the sandbox; a lower one of the
server, after a restart, holds for the sandboxes that had the server's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import fields
from ipaddress import IPv4Network

from corral.base.denials import show_host
from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, SandboxPausedError
from corral.network.own import is_own_address
from corral.network.rules import Rule, read_rule
from corral.protocol import Backend
from corral.results import Denial
from corral.server import log
from corral.server.faults import Fault, bad_request
from corral.server.living import Handle, LivingSandbox
from corral.server.log import Metrics
from corral.server.routing import Identity
from corral.server.store.rows import Sandbox
from corral.server.wire.control import CreateSandbox, UpdateSandboxNetworkSettings
from corral.spec import NetworkPolicy

Asked = CreateSandbox | UpdateSandboxNetworkSettings
"""The requests that have fields about the network."""
MAX_ENTRIES = 10
"""How many entries a list of a client may have, as at the hosted service."""
_RANGE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}")
_DOMAIN = re.compile(r"(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])")
_NO_ENTRY = "the allow lists have no entry: networkBlockAll=true permits nothing, networkBlockAll=false ends the lists"
_LOGGED = 20
"""How many refused attempts of a sandbox are logged at a time; the others are counted."""


def within(policy: NetworkPolicy, ceiling: NetworkPolicy, *, registries: Sequence[str] = ()) -> bool:
    """True if the policy permits nothing that the ceiling does not.

    - Beneath `none`: only a policy that permits nothing.
    - Beneath `packages`: `packages`, and hosts that are registries of this machine, or listed in the ceiling.
    - Beneath `allow`: hosts that the ceiling lists.
    - Beneath `open`: everything but addresses that are not of the internet, unless the ceiling lists them.
    """
    return find_beyond(policy, ceiling, registries=registries) is None


def find_beyond(policy: NetworkPolicy, ceiling: NetworkPolicy, *, registries: Sequence[str] = ()) -> str | None:
    """The first part of a policy that the ceiling does not permit, for a message."""
    if not policy.permits_something:
        return None
    for each in fields(policy.limits):
        wanted, most = getattr(policy.limits, each.name), getattr(ceiling.limits, each.name)
        if most is not None and (wanted is None or wanted > most):
            return f"{each.name}={wanted}"
    modes = {"packages": ("packages", "open"), "open": ("open",)}
    if policy.mode in modes and ceiling.mode not in modes[policy.mode]:
        return policy.mode
    permitted = _read_permitted(ceiling, registries)
    for host in policy.hosts:
        rule = read_rule(host)
        if not (_is_open_to(rule, ceiling) or any(each.covers(rule) for each in permitted)):
            return host
        if _is_own(rule) and not any(each.names_inner and each.covers(rule) for each in permitted):
            return host
    return None


def narrow(hosts: Sequence[str], ceiling: NetworkPolicy, *, registries: Sequence[str] = ()) -> tuple[str, ...]:
    """The hosts as the ceiling has them: one without a port, at the ports that are permitted. Others are left as they
    are, also if they are beyond it."""
    permitted = _read_permitted(ceiling, registries)
    found: list[str] = []
    for host in hosts:
        rule = read_rule(host)
        ports = [each.port for each in permitted if each.port is not None and Rule(each.host).covers(rule)]
        whole = rule.port is not None or _is_open_to(rule, ceiling) or any(each.covers(rule) for each in permitted)
        found += [host] if whole or not ports else [str(Rule(rule.host, port)) for port in ports]
    return tuple(dict.fromkeys(found))


def _read_permitted(ceiling: NetworkPolicy, registries: Sequence[str]) -> list[Rule]:
    return [read_rule(host) for host in (*ceiling.hosts, *(registries if ceiling.mode == "packages" else ()))]


def _is_own(rule: Rule) -> bool:
    """True for an address that this machine has itself, also if it looks like one of the internet."""
    network = rule.network
    return network is not None and network.num_addresses == 1 and is_own_address(network.network_address)


def _is_open_to(rule: Rule, ceiling: NetworkPolicy) -> bool:
    # Names are permitted: the gate refuses those that lead to addresses that are not of the internet.
    return ceiling.mode == "open" and rule.is_public


def read_hosts(networks: str | None, domains: str | None) -> tuple[str, ...] | None:
    """The hosts of the two lists of a client; None if there are no lists. Raises: Fault 400."""
    if not networks and not domains:
        return None
    ranges = [_read_range(entry) for entry in _split(networks, "networkAllowList")]
    names = [_read_domain(entry) for entry in _split(domains, "domainAllowList")]
    if not ranges and not names:
        raise bad_request(_NO_ENTRY)
    return (*ranges, *names)


def _split(text: str | None, field: str) -> list[str]:
    entries = [entry.strip() for entry in (text or "").split(",") if entry.strip()]
    if len(entries) > MAX_ENTRIES:
        raise bad_request(f"{field}: at most {MAX_ENTRIES} entries are supported")
    return entries


def _read_range(entry: str) -> str:
    try:
        # As the hosted service, it takes a range that is named by any of its addresses.
        found = IPv4Network(entry, strict=False) if _RANGE.fullmatch(entry) else None
    except ValueError:
        found = None
    if found is None:
        raise bad_request(f'networkAllowList: {entry[:100]!r} is not an IPv4 range such as "192.0.2.0/24"')
    return str(found)


def _read_domain(entry: str) -> str:
    if not _DOMAIN.fullmatch(entry):
        raise bad_request(f'domainAllowList: {entry[:300]!r} is not a domain such as "example.org" or "*.example.org"')
    return entry


async def check_network(policy: NetworkPolicy, backend: Backend) -> None:
    """Raises: CapabilityError, if the backend can't give sandboxes that network."""
    if policy.permits_something and policy.mode not in (known := (await backend.capabilities()).network):
        raise CapabilityError(
            f"--network {policy}: the backend {backend.name} does not support it", op="serve",
            hint=f"it supports {', '.join(known)}",
        )  # fmt: skip


class Networks:
    """The networks of a server's sandboxes."""

    def __init__(self, default: NetworkPolicy, *, backend: Backend, metrics: Metrics) -> None:
        self._default = default
        self._backend = backend
        self._metrics = metrics
        self._registries: tuple[str, ...] = ()

    # What is permitted.

    def _ceiling(self, text: str | None) -> NetworkPolicy:
        return self._default if text is None else NetworkPolicy.parse(text)

    async def prepare(self, wanted: Asked, *, caller: Identity) -> None:
        """Find out what `ask` needs to know. It may take a second, the first time."""
        if wanted.network_allow_list or wanted.domain_allow_list:
            await self._learn(caller.network)

    async def _learn(self, ceiling: str | None) -> None:
        if self._ceiling(ceiling).mode == "packages":
            self._registries = await self._backend.registries()

    def ask(self, row: Sandbox, wanted: Asked, *, caller: Identity) -> None:
        """Put what a client asks for into its sandbox's row.

        `networkBlockAll` wins over lists. A list that is given ends it; and if it is false, lists that are not given
        end, and the ceiling holds.

        Raises:
            Fault: 400 for an invalid list; 403 for more than the caller's ceiling.
        """
        block_all, networks, domains = wanted.network_block_all, wanted.network_allow_list, wanted.domain_allow_list
        lists = networks is not None or domains is not None
        keeps = block_all is None and lists
        networks = row.network_allow_list if networks is None and keeps else networks or None
        domains = row.domain_allow_list if domains is None and keeps else domains or None
        blocked = block_all if block_all is not None else row.network_block_all and not lists
        if lists and block_all is None and not networks and not domains:
            raise bad_request(_NO_ENTRY)
        hosts = read_hosts(networks, domains)
        ceiling = self._ceiling(caller.network)
        if hosts is not None and not blocked:
            beyond = self._beyond(hosts, ceiling)
            if beyond is not None:
                raise Fault(
                    403,
                    f"network: {beyond} is not permitted: this API key may reach {ceiling.describe(most=MAX_ENTRIES)}. "
                    "The operator of the server permits more with `corral serve --network`, or with "
                    "`corral key create --network` for a new key",
                )
        row.network_block_all, row.network_allow_list, row.domain_allow_list = blocked, networks, domains
        row.network_ceiling = caller.network

    def _narrow(self, hosts: tuple[str, ...], ceiling: NetworkPolicy) -> NetworkPolicy:
        return NetworkPolicy("allow", narrow(hosts, ceiling, registries=self._registries), ceiling.limits)

    def _beyond(self, hosts: tuple[str, ...], ceiling: NetworkPolicy) -> str | None:
        return find_beyond(self._narrow(hosts, ceiling), ceiling, registries=self._registries)

    def policy_of(self, row: Sandbox) -> NetworkPolicy:
        """What a sandbox may reach now."""
        ceiling = self._ceiling(row.network_ceiling)
        if row.network_block_all:
            return NetworkPolicy(limits=ceiling.limits)
        hosts = read_hosts(row.network_allow_list, row.domain_allow_list)
        if hosts is None:
            return ceiling
        # Beyond it, if the server's ceiling is lower than when it was asked for.
        return self._narrow(() if self._beyond(hosts, ceiling) is not None else hosts, ceiling)

    # Carrying it out.

    async def apply(self, sandbox: LivingSandbox, box: AsyncSandbox) -> None:
        """Make a sandbox that runs obey its row; a paused one that can't be changed is changed when it is resumed.

        Raises:
            CorralError: as `AsyncSandbox.set_network`.
        """
        await self._learn(sandbox.row.network_ceiling)
        policy = self.policy_of(sandbox.row)
        if box.spec.network == policy:
            return
        with contextlib.suppress(SandboxPausedError):
            await box.set_network(policy)
            log.event("network changed", sandbox=sandbox.id, network=policy.describe(most=_LOGGED))

    async def change(
        self,
        sandbox: LivingSandbox,
        wanted: UpdateSandboxNetworkSettings,
        *,
        caller: Identity,
        box: AsyncSandbox | None,
    ) -> None:
        """Change what a sandbox may reach; `box` is None if it does not run. Its lock is held. Raises: as `ask`."""
        if wanted == UpdateSandboxNetworkSettings():
            # As the SDKs say it. Taken as "no lists", it would permit more than before.
            raise bad_request("At least one of networkBlockAll, networkAllowList or domainAllowList must be set")
        row = sandbox.row
        before = (row.network_block_all, row.network_allow_list, row.domain_allow_list, row.network_ceiling)
        await self.prepare(wanted, caller=caller)
        self.ask(row, wanted, caller=caller)
        sandbox.save()  # first: if the server is killed now, the next one applies it
        if box is None:
            return
        try:
            await self.apply(sandbox, box)
        except BaseException:
            row.network_block_all, row.network_allow_list, row.domain_allow_list, row.network_ceiling = before
            sandbox.save()
            raise

    # What was refused.

    def note_denials(self, handle: Handle) -> None:
        """Log and count what the network of a sandbox has refused since the last call."""
        count = handle.box.primitives.count_denials()
        denied = handle.box.primitives.denials_since(handle.denials)
        handle.denials = count
        for each in denied[:_LOGGED]:
            log.event(
                "network refused", sandbox=handle.sandbox.id, host=show_host(each.host),
                port=each.port, rule=each.rule, count=each.count,
            )  # fmt: skip
        if len(denied) > _LOGGED:
            log.event("network refused more", sandbox=handle.sandbox.id, count=_total(denied[_LOGGED:]))
        for each in denied:
            self._metrics.count_denied(each.rule, each.count)


def _total(denied: Sequence[Denial]) -> int:
    return sum(each.count for each in denied)
