"""Which addresses are this machine's own."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from corral.network.rules import Address


def is_own_address(address: Address) -> bool:
    """True if this machine has an address, and also if that can't be found out. Sends nothing."""
    if not _can_bind(address):
        return False
    nobodys = "192.0.2.1" if address.version == 4 else "2001:db8::1"
    # With ip_nonlocal_bind, every address can be bound.
    return not _can_bind(ip_address(nobodys)) or _is_reached_from_itself(address)


def _can_bind(address: Address) -> bool:
    try:
        with _make_probe(address) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        # EAFNOSUPPORT: without IPv6, no address of it is ours, and none is reached either.
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _is_reached_from_itself(address: Address) -> bool:
    """True if what is sent there comes from there, or from loopback: then it does not leave the machine."""
    try:
        with _make_probe(address) as probe:
            probe.connect((str(address), 9))  # of a datagram socket: only the route is looked up
            source = ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError:
        return True
    return source == address or source.is_loopback


def _make_probe(address: Address) -> socket.socket:
    return socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
