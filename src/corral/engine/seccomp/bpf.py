"""The policy as classic BPF.

    arch is not ours              -> kill (the 32-bit tables have other numbers: nothing below would hold)
    number, by binary search      -> allow | errno | argument checks
    number beyond the table, x32  -> ENOSYS

Classic BPF jumps forward only, so the program is written from its end to its start: what an instruction jumps to is
there already, and a verdict is written once for all who come to it. That keeps the program short, and so cheap to
install: the kernel compiles it each time. Only loads of number and arch come before the verdict of an
unconditional rule: the kernel proves at install time that such a call is always allowed, and skips the filter for it.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Final, NamedTuple

from corral.engine.seccomp.numbers import audit_arch, numbers
from corral.engine.seccomp.policy import POLICY, UNKNOWN
from corral.engine.seccomp.rule import ALLOW, Case, Match, Rule

RET_ALLOW: Final = 0x7FFF_0000
RET_ERRNO: Final = 0x0005_0000
RET_KILL_PROCESS: Final = 0x8000_0000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_GOTO: Final = 0x05  # BPF_JMP | BPF_JA
_IF_EQ: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_GE: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

# struct seccomp_data
_NR: Final = 0
_ARCH: Final = 4
_ARGS: Final = 16

_INSTRUCTION: Final = struct.Struct("<HBBI")
_MAX_JUMP: Final = 255
_LOW_32: Final = 0xFFFF_FFFF


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
    return RET_ALLOW if errno == ALLOW else RET_ERRNO | errno & 0xFFFF


class _Writer:
    """A program, from its end. A place is the number of instructions from there to the end."""

    def __init__(self) -> None:
        self._backwards: list[_Op] = []
        self._verdicts: dict[int, int] = {}

    def add(self, op: _Op) -> int:
        """Put an instruction before all others; its own place."""
        self._backwards.append(op)
        return len(self._backwards)

    def answer(self, errno: int) -> int:
        """Where the verdict for `errno` is returned."""
        place = self._verdicts.get(errno)
        if place is None or not self._in_reach(place):
            place = self._verdicts[errno] = self.add(_Op(_RETURN, k=verdict(errno)))
        return place

    def branch(self, code: int, k: int, *, yes: int, no: int) -> int:
        """A comparison that goes on at one of two places."""
        # The one hop may push the other target out of reach, hence the slack.
        yes = yes if self._in_reach(yes, slack=1) else self._hop(yes)
        no = no if self._in_reach(no) else self._hop(no)
        return self.add(_Op(code, jt=self._distance(yes), jf=self._distance(no), k=k))

    def finish(self) -> bytes:
        return b"".join(_INSTRUCTION.pack(*op) for op in reversed(self._backwards))

    def _hop(self, place: int) -> int:
        # A conditional jump holds 8 bits, an unconditional one 32.
        return self.add(_Op(_GOTO, k=self._distance(place)))

    def _in_reach(self, place: int, *, slack: int = 0) -> bool:
        return self._distance(place) + slack <= _MAX_JUMP

    def _distance(self, place: int) -> int:
        return len(self._backwards) - place


@cache
def compile_filter(arch: str) -> bytes:
    """The policy for `arch` as an array of `struct sock_filter`. Raises: UnsupportedArchError."""
    rules = {number: POLICY.get(name, UNKNOWN) for name, number in numbers(arch).items()}
    program = _Writer()
    _search(_ranges(rules), program)
    ours = program.add(_Op(_LOAD, k=_NR))
    foreign = program.add(_Op(_RETURN, k=RET_KILL_PROCESS))
    program.branch(_IF_EQ, audit_arch(arch), yes=ours, no=foreign)
    program.add(_Op(_LOAD, k=_ARCH))
    return program.finish()


def _ranges(rules: Mapping[int, Rule]) -> list[_Range]:
    """Neighbours that are decided alike, together; the last range has no end, which takes in x32."""
    decided = (_Range(number, rules.get(number, UNKNOWN)) for number in range(max(rules) + 2))
    alike = groupby(decided, key=lambda each: (each.rule.errno, each.rule.cases))
    return [next(group) for _, group in alike]


def _search(ranges: Sequence[_Range], program: _Writer) -> int:
    """Write a balanced search for the number; its place."""
    if len(ranges) == 1:
        return _judge(ranges[0].rule, program)
    middle = len(ranges) // 2
    high, low = _search(ranges[middle:], program), _search(ranges[:middle], program)
    return program.branch(_IF_GE, ranges[middle].start, yes=high, no=low)


def _judge(rule: Rule, program: _Writer) -> int:
    place = program.answer(rule.errno)
    for case in reversed(rule.cases):
        place = _try(case, otherwise=place, program=program)
    return place


def _try(case: Case, *, otherwise: int, program: _Writer) -> int:
    place = program.answer(case.errno)
    for match in reversed(case.when):
        place = _compare(match, yes=place, no=otherwise, program=program)
    return place


def _compare(match: Match, *, yes: int, no: int, program: _Writer) -> int:
    for value in reversed(match.values):
        no = program.branch(_IF_EQ, value, yes=yes, no=no)
    if match.mask != _LOW_32:
        program.add(_Op(_AND, k=match.mask))
    # Both machines are little-endian: the low half of an argument comes first.
    return program.add(_Op(_LOAD, k=_ARGS + 8 * match.argument + match.shift // 8))
