"""What a network policy lists: names with wildcards, addresses and ranges, ports. Pure: nothing here looks anything up.

A rule is `example.org`, `*.example.org` (names below it, not itself), `192.0.2.7`, `192.0.2.0/24`, `[2001:db8::1]`, and
any of them with `:443`. Without a port it is for every port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from corral.network.inner import ADDRESS, PROXY_PORT

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_NAME_BYTES = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LAST = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
"""A name whose last label is a number is an address in a spelling of inet_aton: `127.1`, `0x7f000001`."""

# What nothing reaches unless its address is listed. A list of our own: that of `ipaddress` differs by Python's version.
# The last of them looks public, and is the host of the machine in one of the clouds, which gives out its settings.
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
    )
)  # fmt: skip
_PUBLIC_V6 = ip_network("2000::/3")
_NOT_PUBLIC_V6 = tuple(map(ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
"""Of those: for protocols and documentation, or leading to IPv4."""
_EMBEDDING = tuple(map(ip_network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""Ranges of IPv6 whose last four bytes are an IPv4 address: NAT64, compatible, translated."""


class RuleError(ValueError):
    """A text that is not a rule; says what to write instead."""


@dataclass(frozen=True)
class Rule:
    """One thing that is permitted."""

    host: str
    """A name in lower case as it is on the wire, with `*.` before it for the names below; or an address or a range."""
    port: int | None = None
    """None: every port."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port is not None else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @cached_property
    def network(self) -> Network | None:
        """The range of addresses, or None if the rule is for a name."""
        try:
            return ip_network(self.host)
        except ValueError:
            return None

    def permits_name(self, name: str, port: int | None = None) -> bool:
        """True if the rule is for that name (as of `read_name`), at that port if one is given."""
        if self.network is not None or not self._permits_port(port):
            return False
        return name.endswith(self.host[1:]) if self.host.startswith("*.") else name == self.host

    def permits_address(self, address: Address, port: int | None = None) -> bool:
        """True if the rule is for that address, at that port if one is given."""
        network = self.network
        return (
            network is not None
            and network.version == address.version
            and address in network
            and self._permits_port(port)
        )

    def covers(self, other: Rule) -> bool:
        """True if the rule permits all that the other one does."""
        if self.port not in (None, other.port):
            return False
        ours, theirs = self.network, other.network
        if ours is not None and theirs is not None:
            return _is_within(theirs, ours) and (self.names_inner or not _is_inner(theirs))
        if ours is not None or theirs is not None:
            return False
        if self.host.startswith("*."):
            return other.host.removeprefix("*").endswith(self.host[1:])
        return self.host == other.host

    @property
    def names_inner(self) -> bool:
        """True if it permits what is not of the internet, too: an address itself, or a range that has nothing else.

        A wider range, such as 0.0.0.0/0, is a way to write the internet, and permits no more than that.
        """
        network = self.network
        return network is not None and (network.num_addresses == 1 or _is_inner(network))

    @property
    def is_public(self) -> bool:
        """True if it permits names, whose addresses are judged, or only addresses of the internet."""
        return self.network is None or is_public_range(self.network)

    def _permits_port(self, port: int | None) -> bool:
        return port is None or self.port is None or self.port == port


def read_rule(text: str) -> Rule:
    """A rule from its text. Raises: RuleError."""
    wanted = text.strip()
    if "://" in wanted or "@" in wanted:
        raise RuleError(
            f"{text!r} is an address of a page: write its host alone, such as example.org or example.org:443"
        )
    host, port = _split(wanted, text)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if "/" in bare or ":" in bare or _is_dotted(bare):
        try:
            network = ip_network(bare)
        except ValueError as error:
            meant = _find_range(bare)
            why = f"write {meant}" if meant is not None else error
            raise RuleError(f"{text!r} is not an address or a range: {why}") from None
        if "%" in bare:
            raise RuleError(f"{text!r}: an address with a zone can't be listed")
        single = network.num_addresses == 1 and "/" not in bare
        return Rule(str(network.network_address) if single else str(network), port)
    wildcard = host.startswith("*.")
    name = read_name(host.removeprefix("*."))
    if name is None:
        raise RuleError(f"{text!r} is not a host: write a name such as example.org or *.example.org, or a range")
    if name.rpartition(".")[2] == "localhost":
        raise RuleError(
            f"{text!r}: inside, localhost is the sandbox itself; a service of this machine is listed as 127.0.0.1:"
            f"{port or 'PORT'}, and reached through the proxy http://{ADDRESS}:{PROXY_PORT} inside"
        )
    if wildcard and "." not in name:
        raise RuleError(f"{text!r} would permit every name below a top-level domain: name the domain")
    return Rule(("*." if wildcard else "") + name, port)


def _split(wanted: str, text: str) -> tuple[str, int | None]:
    """The host and the port of a rule."""
    if wanted.startswith("["):
        host, closed, rest = wanted.partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise RuleError(f"{text!r}: write an IPv6 address with a port as [2001:db8::1]:443")
        host, number = host + "]", rest[1:] if rest else None
    elif wanted.count(":") == 1:
        host, _, number = wanted.partition(":")
    else:
        host, number = wanted, None
    if number is None or number == "*":
        return host, None
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= 65535):
        raise RuleError(f"{text!r}: {number!r} is not a port from 1 to 65535")
    return host, int(number)


def _find_range(text: str) -> Network | None:
    """The range that is named by one of its addresses."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _is_dotted(text: str) -> bool:
    return text.count(".") == 3 and all(part.isdigit() for part in text.split("."))


def read_name(text: str) -> str | None:
    """A host name as it is compared: lower case, in ASCII, without the root's dot. None if it is not one.

    A numeric spelling of an address is not a name: whoever looks it up would reach an address that nobody has checked.
    """
    name = text.strip().rstrip(".") if not text.endswith("..") else ""
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    name = name.lower()
    labels = name.split(".")
    if not name or len(name) > MAX_NAME_BYTES or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return None if _NUMERIC_LAST.fullmatch(labels[-1]) else name


def read_address(text: str) -> Address | None:
    """An address in its one usual spelling, IPv4 unwrapped; None for anything else, zones and short forms included."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if "%" in bare:
        return None
    try:
        return unwrap(ip_address(bare))
    except ValueError:
        return None


def unwrap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to (mapped, 6to4 and the like), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if any(address in network for network in _EMBEDDING) and int(address) > 1:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_public(address: Address) -> bool:
    """True for an address of the internet: not private, loopback, link-local, metadata, multicast or reserved."""
    return is_public_range(ip_network(unwrap(address)))


def is_public_range(network: Network) -> bool:
    """True if every address of the range is one of the internet."""
    if isinstance(network, IPv6Network):
        return _is_within(network, _PUBLIC_V6) and not any(_overlap(network, each) for each in _NOT_PUBLIC_V6)
    return not any(_overlap(network, each) for each in _NOT_PUBLIC)


def _is_inner(network: Network) -> bool:
    """True if no address of the range is one of the internet."""
    if isinstance(network, IPv6Network):
        return not _overlap(network, _PUBLIC_V6) or any(_is_within(network, each) for each in _NOT_PUBLIC_V6)
    return any(_is_within(network, each) for each in _NOT_PUBLIC)


def _is_within(network: Network, other: Network) -> bool:
    return (
        network.version == other.version and network.network_address in other and network.prefixlen >= other.prefixlen
    )


def _overlap(network: Network, other: Network) -> bool:
    return network.version == other.version and (network.network_address in other or other.network_address in network)
