"""Handing the filter to the kernel.

no_new_privs must be set before (`prctl(PR_SET_NO_NEW_PRIVS, 1)`), else the kernel asks for CAP_SYS_ADMIN and answers
EACCES. It binds the calling thread and all it forks or executes, can't be taken off, and refuses the syscall that would
add another: install it last before execve.
"""

import ctypes
import os
import sys
from typing import Final

from corral.engine.seccomp.bpf import compile_filter
from corral.engine.seccomp.numbers import ARCHES, UnsupportedArchError, numbers

_SECCOMP_SET_MODE_FILTER: Final = 1
_INSTRUCTION_SIZE: Final = 8
_MAX_INSTRUCTIONS: Final = 4096  # BPF_MAXINSNS
_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


class SeccompError(OSError):
    """The kernel refused the filter."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Prepared:
    """A filter laid out for the kernel before fork, so that the child only makes the syscall.

    Raises: ValueError when the bytes can't be a program; UnsupportedArchError on a machine without a syscall table.
    """

    __slots__ = ("_call", "_instructions", "_mode", "_pointer", "_program", "_seccomp", "_zero")

    def __init__(self, program: bytes | None = None) -> None:
        arch = native_arch()
        code = compile_filter(arch) if program is None else program
        count, rest = divmod(len(code), _INSTRUCTION_SIZE)
        if rest or not 0 < count <= _MAX_INSTRUCTIONS:
            raise ValueError(f"a filter of {len(code)} bytes is not 1 to {_MAX_INSTRUCTIONS} instructions of 8 bytes")
        self._instructions = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(count, ctypes.addressof(self._instructions))
        # Made here once: ctypes would otherwise allocate for each argument in the child.
        self._pointer = ctypes.byref(self._program)
        self._seccomp = ctypes.c_long(numbers(arch)["seccomp"])
        self._mode = ctypes.c_long(_SECCOMP_SET_MODE_FILTER)
        self._zero = ctypes.c_long(0)
        # A separate library object: errno and prototypes of the shared one may be used elsewhere.
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long

    def install(self) -> None:
        """Bind the calling thread. Raises: SeccompError with the kernel's errno (EACCES: no_new_privs is not set)."""
        if self._call(self._seccomp, self._mode, self._zero, self._pointer) != 0:
            errno = ctypes.get_errno()
            raise SeccompError(errno, f"seccomp filter refused: {os.strerror(errno)}")


def native_arch() -> str:
    """The table for this machine. Raises: UnsupportedArchError if it has no table."""
    machine = os.uname().machine
    arch = _ALIASES.get(machine, machine)
    if arch not in ARCHES:
        raise UnsupportedArchError(machine)
    if sys.maxsize < 1 << 32:
        # The kernel is 64-bit, this process is not: the filter would kill it at its next call.
        raise UnsupportedArchError(f"{machine} (32-bit process)")
    return arch
