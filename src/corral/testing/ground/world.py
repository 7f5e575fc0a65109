"""What stands for the world: sockets on any address, made in the second namespace and used in the first."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path

from corral.testing.ground import links
from corral.testing.ground.names import Answer, NameServer

SOCKET_VARIABLE = "CORRAL_GROUND_SOCKET"
HOSTS = "# The names of a test ground.\n127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
NEAR, FAR = "out", "in"
OWN_ADDRESS, GATEWAY = "11.255.255.1", "11.255.255.2"
OWN_ADDRESS_6, GATEWAY_6 = "2a11:ffff::1", "2a11:ffff::2"
"""Addresses of the machine that the ground stands for. They look public."""
_GET_FLAGS, _UP = 0x8913, 1
_MAX_MESSAGE_BYTES = 4096


def serve(asked: socket.socket) -> None:
    """The process in the second namespace: make a socket for each request, until the other side is gone."""
    asked.recv(10)  # the cable is there
    for name, addresses in {FAR: (f"{GATEWAY}/30", f"{GATEWAY_6}/64"), "lo": ()}.items():
        for address in addresses:
            links.add_address(name, address)
        links.bring_up(name)
    asked.send(b"{}")
    while request := asked.recv(_MAX_MESSAGE_BYTES):
        wanted = json.loads(request)
        try:
            made = _listen(wanted["address"], wanted["port"], datagrams=wanted["datagrams"])
        except OSError as error:
            asked.send(json.dumps({"error": str(error)}).encode())
            continue
        with made:
            socket.send_fds(asked, [b"{}"], [made.fileno()])


def _listen(address: str, port: int, *, datagrams: bool) -> socket.socket:
    if not ip_address(address).is_unspecified:
        links.add_address("lo", address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        if not datagrams:
            made.listen(128)
    except OSError:
        made.close()
        raise
    return made


class Ground:
    """The test ground, for the program that runs on it."""

    def __init__(self) -> None:
        """Find the ground. Raises: RuntimeError if this process is not on one, or something leads out of it."""
        try:
            descriptor = int(os.environ[SOCKET_VARIABLE])
        except KeyError:
            raise RuntimeError("not on a test ground: run it by `python -m corral.testing.ground`") from None
        expect_no_way_out()
        if not Path("/etc/hosts").read_text(encoding="ascii", errors="replace").startswith(HOSTS):
            raise RuntimeError("the hosts file is not that of the test ground")
        os.set_inheritable(descriptor, False)
        self._world = socket.socket(fileno=descriptor)

    def listen(self, address: str, port: int, *, datagrams: bool = False) -> socket.socket:
        """A socket that listens on an address of the world, which it gets for this. The caller closes it."""
        request = {"address": address, "port": port, "datagrams": datagrams}
        self._world.send(json.dumps(request).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._world, _MAX_MESSAGE_BYTES, 1)
        if not descriptors:
            raise OSError(f"{address}:{port}: {json.loads(answer or b'{}').get('error', 'the world has ended')}")
        return socket.socket(fileno=descriptors[0])

    def set_hosts(self, hosts: Mapping[str, str]) -> None:
        """Write the hosts file: names with their address. `localhost` stays."""
        lines = (f"{address} {name}\n" for name, address in hosts.items())
        Path("/etc/hosts").write_text(HOSTS + "".join(lines), encoding="ascii")

    def answer_names(self, answer: Callable[[str, str], Answer | None]) -> NameServer:
        """Start the name server that all look-ups ask which the hosts file does not answer. The caller closes it.

        `answer` gets the name and the type ("A", "AAAA" or a number) and runs in a thread. None: there is no such name.
        """
        return NameServer(answer)


def expect_no_way_out() -> None:
    """Raises: RuntimeError if this network namespace has a working interface but loopback and the one to the world."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            if name in ("lo", NEAR):
                continue
            with contextlib.suppress(OSError):  # it has just gone
                request = struct.pack("16sh14x", name.encode(), 0)
                if struct.unpack("16sh14x", fcntl.ioctl(asked, _GET_FLAGS, request))[1] & _UP:
                    raise RuntimeError(f"this network namespace has the interface {name}: nothing is sent from it")
