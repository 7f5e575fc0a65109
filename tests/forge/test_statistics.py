"""Medians and how sure they are, against definitions, tables and each other."""

import math
import statistics
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import SpecError
from corral.forge.statistics import (
    Over,
    check_over,
    describe_seconds,
    find_mean,
    find_median,
    find_strengths,
    join_rounds,
    median_interval,
)

VALUES = st.lists(st.floats(min_value=-1e12, max_value=1e12), min_size=1, max_size=60)
NAMES = ("a", "b", "c", "d")


@given(VALUES)
def test_median_and_mean_are_those_of_the_standard_library(values: list[float]) -> None:
    assert find_median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-6)
    assert find_mean(values) == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-3)


@given(VALUES)
def test_all_lie_within_the_values(values: list[float]) -> None:
    low, high = median_interval(values)
    for one in (find_median(values), find_mean(values), low, high):
        assert min(values) <= one <= max(values)
    assert low <= find_median(values) <= high


@given(VALUES, st.randoms())
def test_order_of_the_values_does_not_matter(values: list[float], chance: object) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    for function in (find_median, find_mean, median_interval):
        assert function(shuffled) == function(values)


def cover(count: int, low: int, high: int) -> float:
    """How often the low-th and the high-th smallest of so many enclose the median, by counting all outcomes."""
    return sum(math.comb(count, below) for below in range(low, high)) / 2**count


# From tables of the sign test: which of n ordered values enclose the median with 95 %.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (25, 8, 18)]
)
def test_interval_is_that_of_the_tables(count: int, low: int, high: int) -> None:
    assert median_interval([float(number) for number in range(1, count + 1)]) == (low, high)
    assert cover(count, low, high) >= 0.95
    assert cover(count, low + 1, high - 1) < 0.95, "a narrower one would not have been enough"


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_values_give_their_range(count: int) -> None:
    assert median_interval([float(number) for number in range(count)]) == (0, count - 1)


def test_thousands_of_values_do_not_overflow() -> None:
    low, high = median_interval([float(number) for number in range(5000)])
    assert 2400 < low < high < 2600


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_no_values_and_values_that_are_none_are_refused(values: list[float]) -> None:
    for function in (find_median, find_mean, median_interval):
        with pytest.raises(ValueError, match="value"):
            function(values)


def test_seconds_of_one_round_have_no_interval() -> None:
    assert describe_seconds([]) == {}
    assert describe_seconds([2.0]) == {"median": 2.0}
    assert describe_seconds([1.0, 2.0, 9.0]) == {"median": 2.0, "low": 1.0, "high": 9.0}


def test_rounds_are_joined_in_four_ways() -> None:
    rounds = [0.0, 30.0, 90.0]
    assert [join_rounds(rounds, over) for over in get_args(Over)] == [30, 40, 90, 0]
    with pytest.raises(SpecError, match="over='most'"):
        check_over("most")


RESULTS = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda pair: pair[0] < pair[1]),
    st.floats(min_value=0, max_value=1),
)


@given(RESULTS)
def test_strengths_are_finite_and_above_zero(results: dict[tuple[str, str], float]) -> None:
    wins = {}
    for (one, other), value in results.items():
        wins[one, other], wins[other, one] = value, 1 - value
    strengths = find_strengths(wins, NAMES)
    assert set(strengths) == set(NAMES)
    assert all(math.isfinite(value) and value > 0 for value in strengths.values())


@given(st.permutations(NAMES))
def test_whoever_always_wins_is_strongest(order: list[str]) -> None:
    wins = {
        (one, other): float(order.index(one) < order.index(other)) for one in order for other in order if one != other
    }
    strengths = find_strengths(wins, NAMES)
    assert sorted(NAMES, key=lambda name: -strengths[name]) == list(order)


def test_strengths_explain_the_wins() -> None:
    """At the most likely strengths, each is expected to win as often as it did (the tie with the stranger included)."""
    wins = {("a", "b"): 3.0, ("b", "a"): 1.0, ("b", "c"): 2.0, ("c", "b"): 2.0}
    found = find_strengths(wins, ["a", "b", "c"])
    for name in found:
        met = [(other, won + wins[other, name]) for (winner, other), won in wins.items() if winner == name]
        expected = found[name] / (found[name] + 1) + sum(n * found[name] / (found[name] + found[o]) for o, n in met)
        assert expected == pytest.approx(0.5 + sum(won for (winner, _), won in wins.items() if winner == name))
