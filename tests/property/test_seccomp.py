"""The compiled filter decides as the policy does, for every call."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from corral.engine.seccomp.bpf import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, compile_filter
from corral.engine.seccomp.numbers import ARCHES, numbers
from corral.engine.seccomp.policy import POLICY, decide
from corral.engine.seccomp.rule import ALLOW
from support.bpf import simulate

FILTERS = {arch: compile_filter(arch) for arch in ARCHES}
BORDERS = sorted({v for rule in POLICY.values() for case in rule.cases for match in case.when for v in match.values})
WORDS = st.one_of(
    st.sampled_from(BORDERS),
    st.sampled_from(BORDERS).map(lambda value: value ^ 1),
    st.sampled_from(BORDERS).map(lambda value: value | 1 << 32),
    st.integers(0, 2**64 - 1),
)
ARGS = st.tuples(*[WORDS] * 6)


@pytest.mark.parametrize("arch", ARCHES)
@settings(max_examples=200)
@given(data=st.data(), args=ARGS)
def test_filter_says_what_the_policy_says(arch: str, data: st.DataObject, args: tuple[int, ...]) -> None:
    name = data.draw(st.sampled_from(sorted(numbers(arch))))
    got = simulate(FILTERS[arch], arch=arch, nr=numbers(arch)[name], args=args)
    wanted = decide(name, args)
    assert got == (RET_ALLOW if wanted == ALLOW else RET_ERRNO + wanted), name


@pytest.mark.parametrize("arch", ARCHES)
@given(nr=st.integers(0, 2**32 - 1), args=ARGS)
def test_number_that_nobody_knows_never_runs(arch: str, nr: int, args: tuple[int, ...]) -> None:
    assume(nr not in numbers(arch).values())
    assert simulate(FILTERS[arch], arch=arch, nr=nr, args=args) != RET_ALLOW


def test_kill_is_not_a_number_of_an_errno() -> None:
    assert RET_KILL_PROCESS & RET_ALLOW != RET_ALLOW
