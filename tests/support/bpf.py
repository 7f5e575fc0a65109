"""An interpreter of classic BPF: what the kernel would answer, without a kernel."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from corral.engine.seccomp.numbers import audit_arch

_DATA: Final = struct.Struct("<IIQ6Q")  # struct seccomp_data
_INSTRUCTION: Final = struct.Struct("<HBBI")
_LOAD, _AND, _GOTO, _RETURN = 0x20, 0x54, 0x05, 0x06
_IF_EQ, _IF_GT, _IF_GE = 0x15, 0x25, 0x35


class _Op(NamedTuple):
    """One `struct sock_filter`."""

    code: int
    jt: int
    jf: int
    k: int


def simulate(program: bytes, *, arch: str, nr: int, args: Sequence[int] = ()) -> int:
    """What the kernel would return for this call: the filter, interpreted.

    Raises: UnsupportedArchError for an arch without an audit number; ValueError for a program that is not ours.
    """
    padded = (*args, 0, 0, 0, 0, 0, 0)[:6]
    data = _DATA.pack(nr & 0xFFFF_FFFF, audit_arch(arch), 0, *(arg & 0xFFFF_FFFF_FFFF_FFFF for arg in padded))
    code = _decode(program)
    accumulator = at = 0
    while at < len(code):
        op = code[at]
        at += 1
        if op.code == _RETURN:
            return op.k
        if op.code == _LOAD:
            accumulator = int.from_bytes(data[op.k : op.k + 4], "little")
        elif op.code == _AND:
            accumulator &= op.k
        elif op.code == _GOTO:
            at += op.k
        else:
            at += op.jt if _holds(op, accumulator) else op.jf
    raise ValueError("the program has no return at its end")


@lru_cache(maxsize=8)  # the same few filters are asked thousands of times
def _decode(program: bytes) -> list[_Op]:
    return [_Op(*fields) for fields in _INSTRUCTION.iter_unpack(program)]


def _holds(op: _Op, accumulator: int) -> bool:
    if op.code == _IF_EQ:
        return accumulator == op.k
    if op.code == _IF_GT:
        return accumulator > op.k
    if op.code == _IF_GE:
        return accumulator >= op.k
    raise ValueError(f"instruction {op.code:#x} is not interpreted")
