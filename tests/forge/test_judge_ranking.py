"""Places follow from totals alone."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from corral.forge.judge.judge import rank
from corral.forge.numbers import DECIMALS

TOTALS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.one_of(st.sampled_from([0.0, 50.0, 50.5, 51.0, 100.0]), st.floats(min_value=0, max_value=100)),
    max_size=12,
)
MARGINS = st.one_of(st.just(0.0), st.floats(min_value=0, max_value=5))


@given(TOTALS, MARGINS)
def test_everybody_has_a_place_and_more_points_are_never_behind(totals: dict[str, float], margin: float) -> None:
    places = rank(totals, tie_margin=margin)
    assert sorted(place.candidate for place in places) == sorted(totals)
    for before, after in itertools.pairwise(places):
        assert before.total >= after.total
        assert before.rank <= after.rank
    assert all(abs(place.total - totals[place.candidate]) <= 10**-DECIMALS for place in places)


@given(TOTALS, MARGINS)
def test_a_place_counts_all_before_it_and_holds_those_near_its_best(totals: dict[str, float], margin: float) -> None:
    places = rank(totals, tie_margin=margin)
    for number in {place.rank for place in places}:
        group = [place for place in places if place.rank == number]
        assert number == 1 + sum(place.rank < number for place in places)
        assert all(place.tied == (len(group) > 1) for place in group)
        best = group[0].total
        assert all(round(best - place.total, DECIMALS) <= margin for place in group)
        behind = [place for place in places if place.rank > number]
        assert all(round(best - place.total, DECIMALS) > margin for place in behind)


@given(TOTALS, MARGINS, st.randoms())
def test_the_order_of_asking_does_not_matter(totals: dict[str, float], margin: float, chance: object) -> None:
    items = list(totals.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    assert rank(dict(items), tie_margin=margin) == rank(totals, tie_margin=margin)


def test_without_a_margin_only_equals_tie_and_noise_of_floats_is_no_difference() -> None:
    places = rank({"a": 0.1 + 0.2, "b": 0.3, "c": 0.29})
    assert [(place.candidate, place.rank) for place in places] == [("a", 1), ("b", 1), ("c", 3)]
    assert [place.tied for place in places] == [True, True, False]


def test_a_chain_of_small_steps_is_not_one_tie() -> None:
    places = rank({"a": 80.0, "b": 79.6, "c": 79.2, "d": 78.8}, tie_margin=0.5)
    assert [place.rank for place in places] == [1, 1, 3, 3]


def test_nobody_is_no_failure() -> None:
    assert rank({}) == []
