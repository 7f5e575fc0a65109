"""What a gate gives up before it reads the first byte of a sandbox."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable
from typing import Final

from corral.network.walls import wall_in

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_HEADER: Final = struct.pack("=II", 0x20080522, 0)
_SPARE_DESCRIPTORS: Final = 128
"""For the gate's own, and for lookups, which open a few each."""
_MAX_FILE_BYTES: Final = 1024 * 1024
"""It writes to one file, which is smaller."""


def confine(name: str, *, uid: int | None, gid: int | None, readable: Iterable[str] = ()) -> None:
    """Become a user who owns nothing, if one is given; whoever we are, gain nothing, leave no dump, and of files see
    only what `walls` names, and `readable`.

    Capabilities belong to a thread: to be called while there is one. Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(name.encode("ascii")[:15])
    _prctl(libc, _PR_SET_NAME, ctypes.addressof(buffer))
    # 1 instead of 0: with 0 the kernel still starts the host's program for core dumps, where there is one.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    wall_in(libc, readable=readable)
    if uid is not None:
        group = uid if gid is None else gid
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(uid, uid, uid)
    # Always: with SECBIT_NO_SETUID_FIXUP, which the launcher has as root, a change of user keeps all of them.
    if libc.capset(_CAPABILITY_HEADER, struct.pack("=6I", 0, 0, 0, 0, 0, 0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "capset")
    _prctl(libc, _PR_SET_DUMPABLE, 0)  # last: a change of user sets it again


def bound_descriptors(connections: int) -> int:
    """Let this process open what that many connections need; returns for how many there is room."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _SPARE_DESCRIPTORS
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(1, (wanted - _SPARE_DESCRIPTORS) // 2)


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl {option}")
