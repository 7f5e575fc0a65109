"""The window as programs inside see it: its resolver and listeners, and where a connection was to go.

The engine opens these sockets in the sandbox's own network namespace and gives the gate their descriptors. The kernel
assigns every TCP connection to an address that is not loopback to a listener (nf_tables' tproxy), without rewriting
it: so the local address of an accepted connection is the one that the program asked for.
"""

from __future__ import annotations

import socket

ADDRESS = "127.77.0.1"
"""Of the resolver and of the listener. Not 127.0.0.1, whose ports belong to programs inside."""
ADDRESS_V6 = "::1"
DNS_PORT = 53
PROXY_PORT = 3128
"""Of the listeners; the engine takes one of the next if a program inside has it."""
MAX_WAITING = 128
"""So many connections may wait at a listener until they are accepted."""


def find_target(connection: socket.socket, listener: socket.socket) -> tuple[str, int] | None:
    """The address and port that an accepted connection was to reach; None if it is for the listener itself, as an
    explicit proxy."""
    host, port = connection.getsockname()[:2]
    own_host, own_port = listener.getsockname()[:2]
    return None if (host, port) == (own_host, own_port) else (host, port)
