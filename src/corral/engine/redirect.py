"""How TCP connections of a sandbox come to its window: an address, routes, and a rule of nf_tables for each family.

Every address is routed to loopback, as if it were the sandbox's own. Then nf_tables' tproxy gives each connection to
an address that is not loopback to a listener, without rewriting it: so no connection has to be tracked, which would
take kernel memory that no cgroup counts. Datagrams find no socket, and their sender hears that at once.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from corral.engine import netlink
from corral.engine.netlink import attribute, nested
from corral.network.inner import ADDRESS, ADDRESS_V6, MAX_WAITING, PROXY_PORT

_Ends = tuple[tuple[str, int], ...]

_PORTS_TRIED: Final = 64
_SOL_IPV6, _IP_TRANSPARENT, _IPV6_TRANSPARENT = 41, 19, 75

# rtnetlink
_NEW_ADDRESS, _NEW_ROUTE, _LOCAL_TABLE, _HOST_SCOPE, _BOOT, _LOCAL = 20, 24, 255, 254, 3, 2
_ADDRESS, _LOCAL_ADDRESS = 1, 2
_DEVICE, _PREFERRED_SOURCE = 4, 7
_LOOPBACK = 1
"""The number that the interface has in every network namespace."""

# nfnetlink, as <linux/netfilter/nf_tables.h> has it
_BATCH_BEGIN, _BATCH_END, _TABLES, _INET = 0x10, 0x11, 10, 1
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_PREROUTING, _PRIORITY_MANGLE = 0, -150
_NFPROTO, _L4PROTO = 15, 16
"""Keys of the expression `meta`."""
_NETWORK_HEADER = 1
_EQUAL, _NOT_EQUAL = 0, 1
_FIRST, _SECOND = 1, 2
"""Registers."""
_NAME = b"corral\0"
_DUMMY_ADDRESS = "192.0.0.8"
"""Of RFC 7600. Programs that ask only for addresses of a kind that the machine has itself (`AI_ADDRCONFIG`) don't count
loopback's: without another one they would get none."""


def listen(address: str, port: int) -> socket.socket:
    """A listener that takes connections to any address; at one of the next ports if a program inside has this one.

    Raises:
        OSError: also on a kernel without IPv6.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if ":" in address:
            listener.setsockopt(_SOL_IPV6, _IPV6_TRANSPARENT, 1)
            listener.setsockopt(_SOL_IPV6, socket.IPV6_V6ONLY, 1)
        else:
            listener.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
        _bind(listener, address, port)
        listener.listen(MAX_WAITING)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind(listener: socket.socket, address: str, port: int) -> None:
    last = port + _PORTS_TRIED - 1
    while True:
        try:
            listener.bind((address, port))
        except OSError:
            if port == last:
                raise
            port += 1
        else:
            return


def install(*listeners: socket.socket) -> None:
    """Have every connection that is not to loopback arrive at one of these, by its family.

    Raises:
        OSError: the kernel has no nf_tables, or no tproxy. Then nothing has changed.
    """
    ends = tuple(listener.getsockname()[:2] for listener in listeners)
    batch, answers = _USUAL if ends == _USUAL_ENDS else _make_batch(ends)
    netlink.exchange(netlink.NETFILTER, batch, answers=answers)
    routes = [_ROUTE_V6 if ":" in host else _ROUTE_V4 for host, _ in ends]
    netlink.exchange(netlink.ROUTE, b"".join((_OWN_ADDRESS, *routes)), answers=1 + len(ends))


def _make_route(source: str) -> bytes:
    """Every address of a family is local."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    body = struct.pack("=8BI", family, 0, 0, 0, _LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL, 0)
    body += attribute(_DEVICE, struct.pack("=I", _LOOPBACK))
    body += attribute(_PREFERRED_SOURCE, socket.inet_pton(family, source))
    return netlink.message(_NEW_ROUTE, netlink.ACK | netlink.CREATE | netlink.EXCLUSIVE, body)


def _make_address(address: str) -> bytes:
    """One more address of loopback, beside 127.0.0.1."""
    packed = socket.inet_pton(socket.AF_INET, address)
    body = struct.pack("=4BI", socket.AF_INET, 32, 0, _HOST_SCOPE, _LOOPBACK)
    body += attribute(_LOCAL_ADDRESS, packed) + attribute(_ADDRESS, packed)
    return netlink.message(_NEW_ADDRESS, netlink.ACK | netlink.CREATE | netlink.EXCLUSIVE, body)


def _make_rule(host: str, port: int) -> list[bytes]:
    """TCP of one family that is not to loopback → its listener."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The first byte of 127.0.0.0/8 in an IPv4 header, or all of the address ::1 in an IPv6 header.
    offset, loopback = (16, b"\x7f") if family == socket.AF_INET else (24, socket.inet_pton(family, "::1"))
    return [
        _expression("meta", _number(2, _NFPROTO), _number(1, _FIRST)),
        _compare(_EQUAL, bytes([family])),
        _expression("meta", _number(2, _L4PROTO), _number(1, _FIRST)),
        _compare(_EQUAL, bytes([socket.IPPROTO_TCP])),
        _expression(
            "payload",
            _number(1, _FIRST), _number(2, _NETWORK_HEADER), _number(3, offset), _number(4, len(loopback)),
        ),
        _compare(_NOT_EQUAL, loopback),
        _expression("immediate", _number(1, _FIRST), nested(2, attribute(1, socket.inet_pton(family, host)))),
        _expression("immediate", _number(1, _SECOND), nested(2, attribute(1, struct.pack(">H", port)))),
        _expression("tproxy", _number(1, family), _number(2, _FIRST), _number(3, _SECOND)),
    ]  # fmt: skip


def _make_batch(ends: _Ends) -> tuple[bytes, int]:
    """A table with one chain and the rules, all or nothing; and how many answers there will be."""
    hook = nested(4, _number(1, _PREROUTING), attribute(2, struct.pack(">i", _PRIORITY_MANGLE)))
    chain = attribute(1, _NAME) + attribute(3, _NAME) + hook + attribute(7, b"filter\0")
    requests = [(_NEW_TABLE, attribute(1, _NAME)), (_NEW_CHAIN, chain)]
    for host, port in ends:
        rule = nested(4, *_make_rule(host, port))
        requests.append((_NEW_RULE, attribute(1, _NAME) + attribute(2, _NAME) + rule))
    flags = netlink.ACK | netlink.CREATE | netlink.APPEND
    batch = [netlink.message(_BATCH_BEGIN, 0, struct.pack(">BBH", 0, 0, _TABLES))]
    for kind, body in requests:
        batch.append(netlink.message(_TABLES << 8 | kind, flags, struct.pack(">BBH", _INET, 0, 0) + body))
    batch.append(netlink.message(_BATCH_END, 0, struct.pack(">BBH", 0, 0, _TABLES)))
    return b"".join(batch), len(requests)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, attribute(1, name.encode() + b"\0"), nested(2, *attributes))


def _compare(operation: int, value: bytes) -> bytes:
    return _expression("cmp", _number(1, _FIRST), _number(2, operation), nested(3, attribute(1, value)))


# Made once, by the launcher: in a process that was just forked, each object that is touched costs a copied page.
_OWN_ADDRESS = _make_address(_DUMMY_ADDRESS)
_ROUTE_V4, _ROUTE_V6 = _make_route("127.0.0.1"), _make_route("::1")
_USUAL_ENDS: _Ends = ((ADDRESS, PROXY_PORT), (ADDRESS_V6, PROXY_PORT))
_USUAL = _make_batch(_USUAL_ENDS)
