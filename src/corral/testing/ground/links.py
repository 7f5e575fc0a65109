"""Interfaces, addresses and routes, by netlink."""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import ip_address, ip_network

_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
_REQUEST_ACK, _CREATE, _EXCLUSIVE = 0x5, 0x400, 0x200
_UP = 1
_NAME, _LINK_INFO, _KIND, _DATA, _PEER, _NAMESPACE_OF = 3, 18, 1, 2, 1, 19
_ADDRESS, _LOCAL = 1, 2
_NO_DETECTION = 2
"""An IPv6 address can be used at once: nobody else is on this link."""
_TO, _OUT, _GATEWAY = 1, 4, 5
_MAIN, _BY_ADMIN, _UNICAST = 254, 4, 1


def bring_up(name: str) -> None:
    """Switch an interface on."""
    _ask(_NEW_LINK, struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), _UP, _UP))


def make_pair(name: str, *, peer: str, peer_process: int) -> None:
    """Make two interfaces that are the ends of a cable, the second in the network namespace of another process."""
    information = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    far = information + _attribute(_NAME, peer.encode() + b"\0")
    far += _attribute(_NAMESPACE_OF, struct.pack("=I", peer_process))
    kind = _attribute(_KIND, b"veth\0") + _attribute(_DATA, _attribute(_PEER, far))
    near = _attribute(_NAME, name.encode() + b"\0") + _attribute(_LINK_INFO, kind)
    _ask(_NEW_LINK, information + near, flags=_CREATE | _EXCLUSIVE)


def add_address(name: str, address: str) -> None:
    """Give an interface an address, such as `192.0.2.1/24`; one that it has already is left."""
    host, _, length = address.partition("/")
    ip = ip_address(host)
    prefix = int(length) if length else ip.max_prefixlen
    family, flags = (socket.AF_INET, 0) if ip.version == 4 else (socket.AF_INET6, _NO_DETECTION)
    body = struct.pack("=BBBBi", family, prefix, flags, 0, socket.if_nametoindex(name))
    try:
        _ask(
            _NEW_ADDRESS,
            body + _attribute(_LOCAL, ip.packed) + _attribute(_ADDRESS, ip.packed),
            flags=_CREATE | _EXCLUSIVE,
        )
    except FileExistsError:
        pass


def add_route(name: str, network: str, *, through: str) -> None:
    """Send packets for a network to a neighbour on an interface."""
    to, gateway = ip_network(network), ip_address(through)
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    body = struct.pack("=BBBBBBBBI", family, to.prefixlen, 0, 0, _MAIN, _BY_ADMIN, 0, _UNICAST, 0)
    if to.prefixlen:
        body += _attribute(_TO, to.network_address.packed)
    body += _attribute(_OUT, struct.pack("=i", socket.if_nametoindex(name))) + _attribute(_GATEWAY, gateway.packed)
    _ask(_NEW_ROUTE, body, flags=_CREATE)


def _attribute(number: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), number) + data + bytes(-len(data) % 4)


def _ask(kind: int, body: bytes, *, flags: int = 0) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
        asked.bind((0, 0))
        asked.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_ACK | flags, 1, 0) + body)
        code = -struct.unpack_from("=i", asked.recv(65536), 16)[0]
    if code == errno.EEXIST:
        raise FileExistsError(code, "netlink")
    if code:
        raise OSError(code, f"netlink request {kind}: {os.strerror(code)}")
