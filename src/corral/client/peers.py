"""Which user of this machine is at the other end of a local connection."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENING = "0A"
_MAPPED = "0000000000000000FFFF0000"
"""Before an IPv4 address in the table of IPv6, where sockets for both are: those of Java, for example."""


def look_up_user(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user id of the peer of a loopback connection; None if it is not known. Reads a file."""
    try:
        return find_user(peer[:2], own[:2], *_read_tables())
    except (OSError, ValueError):
        return None


def may_connect(own: tuple[str, int], peer: tuple[str, int]) -> tuple[bool, int | None]:
    """True if the peer of a loopback connection is this process's user or root; and its user id, if found.

    Where there is no such table (macOS), everybody may.
    """
    try:
        user = find_user(peer, own, *_read_tables())
    except FileNotFoundError:
        return sys.platform != "linux", None
    except (OSError, ValueError):
        return False, None
    return user is not None and user in permitted_users(), user


def permitted_users() -> frozenset[int]:
    """Root, this process's user, and the user who became root by sudo: whose browser it is."""
    users = {0, os.geteuid()}
    behind = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and behind.isascii() and behind.isdigit():
        users.add(int(behind))
    return frozenset(users)


def _read_tables() -> list[str]:
    """Raises: FileNotFoundError on other systems."""
    first, *more = _TABLES
    return [first.read_text("ascii"), *(table.read_text("ascii") for table in more if table.exists())]


def find_user(local: tuple[str, int], remote: tuple[str, int], *tables: str) -> int | None:
    """The owner of a connection, by the kernel's tables; None if it is not there, or was closed: then the kernel names
    root as its owner, and has no inode for it."""
    plain = [_show(local), _show(remote)]
    wanted = (plain, [_MAPPED + each for each in plain])
    for table in tables:
        for line in table.splitlines()[1:]:
            columns = line.split()
            if columns[1:3] in wanted and columns[3] != _LISTENING:
                return int(columns[7]) if columns[9] != "0" else None
    return None


def _show(address: tuple[str, int]) -> str:
    """An address as the kernel prints it: the four bytes as one number of this machine."""
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
