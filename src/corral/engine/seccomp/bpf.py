"""The policy as classic BPF, and an interpreter of it.

    arch is not ours              -> kill (the 32-bit tables have other numbers: nothing below would hold)
    number, by binary search      -> allow | errno | argument checks
    number beyond the table, x32  -> ENOSYS

A block of code always ends in returns and never falls out of its end, so that blocks are put together by concatenation
and jumps are the lengths of what they skip. Only loads of number and arch come before the verdict of an unconditional
rule: the kernel then proves at install time that it is always allowed, and skips the filter for it.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Final, NamedTuple

from corral.engine.seccomp.numbers import audit_arch, numbers
from corral.engine.seccomp.policy import POLICY, UNKNOWN
from corral.engine.seccomp.rule import ALLOW, Case, Match, Rule

__all__ = ["RET_ALLOW", "RET_ERRNO", "RET_KILL_PROCESS", "compile_filter", "simulate", "verdict"]

RET_ALLOW: Final = 0x7FFF_0000
RET_ERRNO: Final = 0x0005_0000
RET_KILL_PROCESS: Final = 0x8000_0000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_GOTO: Final = 0x05  # BPF_JMP | BPF_JA
_IF_EQ: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_GT: Final = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_IF_GE: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

# struct seccomp_data
_NR: Final = 0
_ARCH: Final = 4
_ARGS: Final = 16
_DATA: Final = struct.Struct("<IIQ6Q")

_INSTRUCTION: Final = struct.Struct("<HBBI")
_MAX_JUMP: Final = 255
_LOW_32: Final = 0xFFFF_FFFF
_LOW_64: Final = 0xFFFF_FFFF_FFFF_FFFF


class _Op(NamedTuple):
    """One `struct sock_filter`."""

    code: int
    jt: int = 0
    jf: int = 0
    k: int = 0


class _Range(NamedTuple):
    """The numbers from `start` up to the next range's, and their common rule."""

    start: int
    rule: Rule


def verdict(errno: int) -> int:
    """The filter's return value for an errno of the policy."""
    return RET_ALLOW if errno == ALLOW else RET_ERRNO | errno


@cache
def compile_filter(arch: str) -> bytes:
    """The policy for `arch` as an array of `struct sock_filter`. Raises: UnsupportedArchError."""
    rules = {number: POLICY.get(name, UNKNOWN) for name, number in numbers(arch).items()}
    program = [
        _Op(_LOAD, k=_ARCH),
        _Op(_IF_EQ, jt=1, k=audit_arch(arch)),
        _Op(_RETURN, k=RET_KILL_PROCESS),
        _Op(_LOAD, k=_NR),
        *_search(_ranges(rules)),
    ]
    return b"".join(_INSTRUCTION.pack(*op) for op in program)


def _ranges(rules: Mapping[int, Rule]) -> list[_Range]:
    """Neighbours that are decided alike, together; the last range has no end, which takes in x32."""
    decided = (_Range(number, rules.get(number, UNKNOWN)) for number in range(max(rules) + 2))
    alike = groupby(decided, key=lambda each: (each.rule.errno, each.rule.cases))
    return [next(group) for _, group in alike]


def _search(ranges: Sequence[_Range]) -> list[_Op]:
    if len(ranges) == 1:
        return _judge(ranges[0].rule)
    middle = len(ranges) // 2
    low, high = _search(ranges[:middle]), _search(ranges[middle:])
    border = ranges[middle].start
    if len(low) <= _MAX_JUMP:
        return [_Op(_IF_GE, jt=len(low), k=border), *low, *high]
    # A conditional jump holds 8 bits, an unconditional one 32.
    return [_Op(_IF_GE, jf=1, k=border), _Op(_GOTO, k=len(low)), *low, *high]


def _judge(rule: Rule) -> list[_Op]:
    cases = (op for case in rule.cases for op in _case(case))
    return [*cases, _Op(_RETURN, k=verdict(rule.errno))]


def _case(case: Case) -> list[_Op]:
    """Returns the verdict when all matches hold, else runs out of its end."""
    code = [_Op(_RETURN, k=verdict(case.errno))]
    for match in reversed(case.when):
        code = [*_match(match, skip=len(code)), *code]
    return code


def _match(match: Match, *, skip: int) -> list[_Op]:
    """Runs out of its end when an argument matches, else jumps `skip` instructions beyond it."""
    load = [_Op(_LOAD, k=_ARGS + 8 * match.argument)]  # both machines are little-endian: the low half comes first
    if match.mask != _LOW_32:
        load.append(_Op(_AND, k=match.mask))
    last = len(match.values) - 1
    tests = [_Op(_IF_EQ, jt=last - i, jf=skip if i == last else 0, k=value) for i, value in enumerate(match.values)]
    return [*load, *tests]


def simulate(program: bytes, *, arch: str, nr: int, args: Sequence[int] = ()) -> int:
    """What the kernel would return for this call: the filter, interpreted.

    Raises: UnsupportedArchError for an arch without an audit number; ValueError for a program that is not ours.
    """
    padded = (*args, 0, 0, 0, 0, 0, 0)[:6]
    data = _DATA.pack(nr & _LOW_32, audit_arch(arch), 0, *(arg & _LOW_64 for arg in padded))
    code = [_Op(*fields) for fields in _INSTRUCTION.iter_unpack(program)]
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
    raise ValueError("the program runs out of its end")


def _holds(op: _Op, accumulator: int) -> bool:
    if op.code == _IF_EQ:
        return accumulator == op.k
    if op.code == _IF_GT:
        return accumulator > op.k
    if op.code == _IF_GE:
        return accumulator >= op.k
    raise ValueError(f"instruction {op.code:#x} is not interpreted")
