"""The policy as a Docker seccomp profile (`docker run --security-opt seccomp=profile.json`).

libseccomp gives no order among the rules of one syscall, and takes one comparison per argument in each. So the cases of
a rule, which are tried in order, become regions that don't overlap: a region fixes some bits of some arguments, which
is exactly one masked comparison each, or says that an argument is not 0.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from corral.engine.seccomp.policy import CONTAINER_POLICY, UNKNOWN
from corral.engine.seccomp.rule import ALLOW, Match, Rule

_ARGUMENTS: Final = 6
_WIDTH: Final = 64
_ARGUMENT_MASK: Final = (1 << _WIDTH) - 1
_ALL: Final = (1 << _WIDTH * _ARGUMENTS) - 1


class _Region(NamedTuple):
    """All calls whose six arguments, as one number of 384 bits, have `value` under `mask`, and are not 0 in `set_to`.

    `set_to` is a mask of whole arguments: to say of a pointer that it is not NULL takes one region instead of 64.
    """

    mask: int = 0
    value: int = 0
    set_to: int = 0

    def meet(self, other: "_Region") -> "_Region | None":
        """The calls in both."""
        if (self.value ^ other.value) & self.mask & other.mask:
            return None
        both = _Region(self.mask | other.mask, self.value | other.value, self.set_to | other.set_to)
        return None if any(both.says_null(whole) for whole in _wholes(both.set_to)) else both

    def says_null(self, whole: int) -> bool:
        """True if a whole argument is fixed to 0."""
        return self.mask & whole == whole and not self.value & whole

    def minus(self, other: "_Region") -> Iterator["_Region"]:
        """The calls only in this one, in parts that don't overlap: one for each bit that `other` fixes more."""
        if self.meet(other) is None:
            yield self
            return
        mask, value, set_to = self
        for whole in _wholes(_ALL):
            if other.says_null(whole) and not mask & whole:
                yield _Region(mask, value, set_to | whole)
                mask |= whole
        for bit in _bits(other.mask & ~mask):
            yield _Region(mask | bit, value | (bit & ~other.value), set_to)
            mask, value = mask | bit, value | (bit & other.value)


def docker_profile() -> dict[str, Any]:
    """A profile for all machines of the table; anything not named gets ENOSYS, other ABIs are killed."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": UNKNOWN.errno,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [*_unconditional(), *_conditional()],
    }


def _unconditional() -> Iterator[dict[str, Any]]:
    groups: dict[tuple[int, str], list[str]] = {}
    for name, rule in CONTAINER_POLICY.items():
        if not rule.cases:
            groups.setdefault((rule.errno, rule.reason), []).append(name)
    for (errno, reason), names in groups.items():
        yield _entry(names, errno, reason)


def _conditional() -> Iterator[dict[str, Any]]:
    for name, rule in CONTAINER_POLICY.items():
        for errno, region in _regions(rule) if rule.cases else ():
            yield _entry([name], errno, rule.reason) | {"args": _comparisons(region)}


def _entry(names: list[str], errno: int, reason: str) -> dict[str, Any]:
    if errno == ALLOW:
        action: dict[str, Any] = {"action": "SCMP_ACT_ALLOW"}
    else:
        action = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno}
    return {"names": names, **action} | ({"comment": reason} if reason else {})


def _regions(rule: Rule) -> Iterator[tuple[int, _Region]]:
    """The whole space of arguments, divided by what is decided about it."""
    left = [_Region()]
    for case in rule.cases:
        for wanted in _wanted(case.when):
            yield from ((case.errno, hit) for region in left if (hit := region.meet(wanted)))
            left = [part for region in left for part in region.minus(wanted)]
    yield from ((rule.errno, region) for region in left)


def _wanted(when: Iterable[Match]) -> Iterator[_Region]:
    """The calls for which all matches hold: one region for each choice of values."""
    for values in product(*([(match, value) for value in match.values] for match in when)):
        region = _Region()
        for match, value in values:
            shift = _shift(match.argument) + match.shift
            region = _Region(region.mask | match.mask << shift, region.value | value << shift)
        yield region


def _shift(argument: int) -> int:
    # The first argument on top: bits are split off from there, and it is what most rules ask first. The other way
    # round `socket` alone takes 2,300 regions.
    return _WIDTH * (_ARGUMENTS - 1 - argument)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = 1 << (mask.bit_length() - 1)
        yield bit
        mask &= ~bit


def _wholes(mask: int) -> Iterator[int]:
    """The arguments that a mask covers whole."""
    for index in range(_ARGUMENTS):
        whole = _ARGUMENT_MASK << _shift(index)
        if mask & whole == whole:
            yield whole


def _comparisons(region: _Region) -> list[dict[str, Any]]:
    compared = []
    for index in range(_ARGUMENTS):
        mask, value, set_to = (part >> _shift(index) & _ARGUMENT_MASK for part in region)
        if set_to:
            assert not mask, "one comparison for each argument: a rule may not ask for NULL and for bits of it"
            compared.append({"index": index, "value": 0, "op": "SCMP_CMP_NE"})
        elif mask:
            compared.append({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
    return compared
