"""Which user of this machine is at the other end of a local connection."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_TABLE = Path("/proc/self/net/tcp")
_LISTENING = "0A"


def look_up_user(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user id of the peer of a loopback connection; None if it is not known. Reads a file."""
    try:
        return find_user(peer[:2], own[:2], _TABLE.read_text("ascii"))
    except (OSError, ValueError):
        return None


def may_connect(own: tuple[str, int], peer: tuple[str, int]) -> tuple[bool, int | None]:
    """True if the peer of a loopback connection is this process's user or root; and its user id, if found.

    Where there is no such table (macOS), everybody may.
    """
    try:
        user = find_user(peer, own, _TABLE.read_text("ascii"))
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


def find_user(local: tuple[str, int], remote: tuple[str, int], table: str) -> int | None:
    """The owner of a connection, by the kernel's table; None if it is not there, or was closed: then the kernel names
    root as its owner, and has no inode for it."""
    wanted = [_show(local), _show(remote)]
    for line in table.splitlines()[1:]:
        columns = line.split()
        if columns[1:3] == wanted and columns[3] != _LISTENING:
            return int(columns[7]) if columns[9] != "0" else None
    return None


def _show(address: tuple[str, int]) -> str:
    """An address as the kernel prints it: the four bytes as one number of this machine."""
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
