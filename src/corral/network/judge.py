"""What a policy permits: names and ports by rule, and the addresses that a name leads to. Looks nothing up itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Protocol

from corral.network.rules import Address, is_public, read_name, unwrap
from corral.network.settings import Alias, GateSettings

MAX_ADDRESSES: Final = 16
"""Of those that a name leads to, so many are considered."""


_LOCAL_SUFFIXES: Final = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa")


class NoSuchNameError(Exception):
    """The host does not know a name."""


class LookupFailedError(Exception):
    """The host could not look a name up at the moment."""


class Resolver(Protocol):
    """How names are looked up on the host."""

    async def look_up(self, name: str) -> Sequence[Address]:
        """The addresses of a name, in the order in which to try them. Raises: NoSuchNameError, LookupFailedError."""


class RefusedError(Exception):
    """An attempt that the policy does not permit."""

    def __init__(self, rule: str, *, host: str | None = None) -> None:
        super().__init__(rule)
        self.rule = rule
        """As in `corral.results.Denial`."""
        self.host = host
        """The host that was asked for, if it is another one than that of the connection."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a program asked for."""

    host: str
    """A name as of `read_name`, or an address in its usual spelling."""
    port: int
    address: Address | None = None
    """If it asked for an address."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Permit:
    """Where a connection may go."""

    target: Target
    port: int
    """Where to connect: another than asked for if the name is an alias."""
    addresses: tuple[Address, ...] = ()
    """All of these are permitted, and none else. Empty: the host's proxy looks the name up."""


class Judge:
    """The decisions of one policy."""

    def __init__(
        self,
        settings: GateSettings,
        resolver: Resolver,
        *,
        is_own: Callable[[Address], bool],
        by_proxy: Callable[[str, int | None], bool] = lambda host, port: False,
    ) -> None:
        """`is_own` tells the host's own addresses; `by_proxy`, what the host reaches through its proxy."""
        self._mode = settings.mode
        self._rules = settings.parsed_rules if settings.mode != "none" else ()
        self._aliases = {(alias.name, alias.port): alias for alias in settings.aliases if settings.mode != "none"}
        self._hostname = read_name(settings.hostname)
        self._resolver = resolver
        self._is_own = is_own
        self._by_proxy = by_proxy

    @property
    def rule_for_unlisted(self) -> str:
        """Why something that is not listed is refused."""
        return "no network" if self._mode == "none" else "policy"

    def is_of_sandbox(self, name: str) -> bool:
        """True for a name of the sandbox itself: its host name, `localhost` and what is below."""
        return name == self._hostname or name.rpartition(".")[2] == "localhost"

    def permits_name(self, name: str, port: int | None = None) -> bool:
        """True if the policy permits a name at a port, or at any if none is given. Its addresses are judged later."""
        if self._mode == "open" or self._find_alias(name, port) is not None:
            return True
        return any(rule.permits_name(name, port) for rule in self._rules)

    def check_address(self, address: Address, port: int | None) -> None:
        """Check an address that a program asked for itself. Raises: RefusedError."""
        plain = unwrap(address)
        if self._lists(plain, port):
            return
        if self._mode == "none":
            raise RefusedError("no network")
        if not self._is_outside(plain):
            raise RefusedError("private")
        if self._mode != "open":
            raise RefusedError("policy")

    async def judge_lookup(self, name: str) -> None:
        """Judge a lookup, whose port is not known yet.

        Raises: RefusedError, NoSuchNameError, LookupFailedError.
        """
        if not self.permits_name(name):
            raise RefusedError(self.rule_for_unlisted)
        if self._find_alias(name, None) is not None:
            return
        by_proxy = self._by_proxy(name, None)
        self._check_local_name(name, None, by_proxy=by_proxy)
        if not by_proxy:
            self._choose(await self._resolver.look_up(name), None)

    async def judge(self, target: Target) -> Permit:
        """Judge a connection. Raises: RefusedError, NoSuchNameError, LookupFailedError."""
        if target.address is not None:
            self.check_address(target.address, target.port)
            plain = unwrap(target.address)
            return Permit(target, target.port, () if self._by_proxy(str(plain), target.port) else (plain,))
        if not self.permits_name(target.host, target.port):
            raise RefusedError(self.rule_for_unlisted)
        alias = self._find_alias(target.host, target.port)
        if alias is not None:
            try:
                addresses: Sequence[Address] = (ip_address(alias.host),)
            except ValueError:
                addresses = await self._resolver.look_up(alias.host)
            return Permit(target, alias.host_port, tuple(addresses[:MAX_ADDRESSES]))
        by_proxy = self._by_proxy(target.host, target.port)
        self._check_local_name(target.host, target.port, by_proxy=by_proxy)
        if by_proxy:
            return Permit(target, target.port)
        found = await self._resolver.look_up(target.host)
        return Permit(target, target.port, self._choose(found, target.port))

    def still_permits(self, target: Target, address: Address | None) -> bool:
        """True if a connection that was permitted once, to that address, may go on."""
        try:
            if target.address is not None:
                self.check_address(target.address, target.port)
                return True
            if not self.permits_name(target.host, target.port):
                return False
            if address is not None and self._find_alias(target.host, target.port) is None:
                self._choose((address,), target.port)
        except RefusedError:
            return False
        return True

    def _choose(self, found: Sequence[Address], port: int | None) -> tuple[Address, ...]:
        """Those of a name's addresses that may be connected to. Raises: RefusedError if there are none."""
        plain = dict.fromkeys(unwrap(address) for address in found[:MAX_ADDRESSES])
        chosen = tuple(address for address in plain if self._lists(address, port) or self._is_outside(address))
        if not chosen:
            raise RefusedError("private")
        return chosen

    def _lists(self, address: Address, port: int | None) -> bool:
        rules = [rule for rule in self._rules if rule.permits_address(address, port)]
        return any(rule.names_inner for rule in rules) or (bool(rules) and self._is_outside(address))

    def _is_outside(self, address: Address) -> bool:
        return is_public(address) and not self._is_own(address)

    def _check_local_name(self, name: str, port: int | None, *, by_proxy: bool) -> None:
        """Refuse unlisted names of the host's own network: a lookup alone would tell its neighbours, and behind a proxy
        nobody would judge where it leads. Without a proxy, a listed range may be what they lead to.

        Raises: RefusedError.
        """
        if "." in name and not name.endswith(_LOCAL_SUFFIXES):
            return
        listed = any(rule.permits_name(name, port) for rule in self._rules)
        if not listed and (by_proxy or not any(rule.names_inner for rule in self._rules)):
            raise RefusedError("private")

    def _find_alias(self, name: str, port: int | None) -> Alias | None:
        if port is not None:
            return self._aliases.get((name, port))
        return next((alias for (known, _), alias in self._aliases.items() if known == name), None)
