"""Walls around a gate, for the case that a program inside takes it over: Landlock, where the kernel has it.

As root the gate is a user that owns nothing. As an ordinary user it is that user: without these walls it could read and
change all that the user can.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from corral.inside.nolinks import opened

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WHICH_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILES_OF_VERSION: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many kinds of access to files each version knows; later ones know as many as the last."""
_BIND_TCP: Final = 1
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_TREES: Final = ("/etc", "/usr", "/lib", "/lib32", "/lib64", "/var/lib/sss", "/nix/store")
"""What looking up a name needs."""
_LOOKED_UP_IN: Final = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf")


def find_version(libc: ctypes.CDLL) -> int:
    """Of Landlock; 0 if there is none."""
    return max(0, int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _WHICH_VERSION)))


def wall_in(libc: ctypes.CDLL, *, readable: Iterable[str]) -> None:
    """This process may read what looking up a name needs, Python, and `readable`; it changes and runs no file.

    Nor can it listen, signal other processes, or reach their abstract sockets, where the kernel knows of that. For a
    process with no_new_privs and a single thread. Raises: OSError.
    """
    version = find_version(libc)
    if not version:
        return
    files = (1 << _FILES_OF_VERSION.get(version, max(_FILES_OF_VERSION.values()))) - 1
    words = [files, *([_BIND_TCP] if version >= 4 else []), *([_ABSTRACT_SOCKETS | _SIGNALS] if version >= 6 else [])]
    attributes = struct.pack(f"={len(words)}Q", *words)
    with opened(_call(libc, _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)) as ruleset:
        beside = (str(Path(path).resolve().parent) for path in _LOOKED_UP_IN)
        for path in {*_TREES, *beside, sys.base_prefix, *readable}:
            _permit_reading(libc, ruleset, path)
        _call(libc, _RESTRICT_SELF, ruleset, 0)


def _permit_reading(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there need not be read
    with opened(descriptor):
        access = _READ_FILE | _READ_FOLDER if Path(path).is_dir() else _READ_FILE
        _call(libc, _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "Landlock")
    return result
