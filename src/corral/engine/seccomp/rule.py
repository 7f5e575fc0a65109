"""The vocabulary of the policy: what is decided about one syscall, and on which arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALLOW: Final = 0
"""The errno of a syscall that is let through."""
PRETEND: Final = 0x1_0000
"""Instead of an errno: nothing is done, and the caller hears that it succeeded. The low 16 bits are what it hears."""

_LOW_32: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Match:
    """Holds when the low 32 bits of an argument, masked, are one of `values`; or the high ones.

    Mostly the low ones alone, because such an argument is an `int` (or shorter) in the kernel, which drops the rest: a
    comparison of all 64 would miss `TIOCSTI | 1 << 32`, which the kernel takes for TIOCSTI. A pointer has both halves:
    whether it is NULL takes two matches.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = _LOW_32
    high: bool = False

    @property
    def shift(self) -> int:
        """Where in the argument the compared half begins."""
        return 32 if self.high else 0

    def holds(self, args: Sequence[int]) -> bool:
        """True if these arguments match."""
        return args[self.argument] >> self.shift & self.mask in self.values


@dataclass(frozen=True, slots=True)
class Case:
    """When every match holds, answer with `errno` (`ALLOW` lets the call through)."""

    when: tuple[Match, ...]
    errno: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The first case that holds decides; if none does, `errno` (`ALLOW` lets the call through)."""

    errno: int
    reason: str = ""
    cases: tuple[Case, ...] = ()

    @property
    def denies_always(self) -> bool:
        """True if the call is refused with any arguments."""
        return self.errno != ALLOW and all(case.errno != ALLOW for case in self.cases)

    def decide(self, args: Sequence[int]) -> int:
        """The errno for these arguments: the meaning of the rule, which the compiled filters must keep."""
        for case in self.cases:
            if all(match.holds(args) for match in case.when):
                return case.errno
        return self.errno
