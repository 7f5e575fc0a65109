"""Which address of 198.18.0.0/15 stands for which name. That range is for benchmarks, and nobody's."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from corral.network.rules import Address

RANGE: Final = IPv4Network("198.18.0.0/15")
MAX_NAMES: Final = 16_384
_FIRST: Final = int(RANGE.network_address) + 1
_COUNT: Final = RANGE.num_addresses - 2


class NameTable:
    """Bounded: the name that was used least recently is forgotten first. Its address is then given out last."""

    def __init__(self, *, most: int = MAX_NAMES) -> None:
        """Begins anywhere in the range: a program that remembers an address for longer than its gate has lived gets
        that of no other name."""
        self._most = most
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}
        # Not always the first: what a program still remembers of a gate that died is then nobody's, not another name's.
        self._next = secrets.randbelow(_COUNT)

    def address_of(self, name: str) -> IPv4Address:
        """The address that stands for a name."""
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) >= self._most:
                _, freed = self._addresses.popitem(last=False)
                del self._names[freed]
            address = self._take()
            self._addresses[name] = address
            self._names[address] = name
        self._addresses.move_to_end(name)
        return address

    def name_of(self, address: Address) -> str | None:
        """The name that an address stands for; None if it was never given out, or is forgotten."""
        name = self._names.get(address) if isinstance(address, IPv4Address) else None
        if name is not None:
            self._addresses.move_to_end(name)
        return name

    def _take(self) -> IPv4Address:
        while True:
            address = IPv4Address(_FIRST + self._next)
            self._next = (self._next + 1) % _COUNT
            if address not in self._names:
                return address


def is_stand_in(address: Address) -> bool:
    """True for an address that stands for a name, whether or not it is known which."""
    return isinstance(address, IPv4Address) and address in RANGE
