"""Medians and their confidence intervals, without assumptions about the distribution. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from corral.errors import SpecError

Over = Literal["median", "mean", "best", "worst"]
"""How several rounds of one candidate become one number; `best` is best-of-k."""

_CONFIDENCE = 0.95


def find_median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    ordered = _check(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(low / 2 + high / 2, low), high)  # halved first: the sum of what is finite may not be


def find_mean(values: Sequence[float]) -> float:
    """The mean, which never leaves the range of the values. Raises: as `find_median`."""
    ordered = _check(values)
    # Divided first, for the same reason.
    return min(max(math.fsum(value / len(ordered) for value in ordered), ordered[0]), ordered[-1])


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that has the true median with a confidence of 95 %, from the order of the values alone.

    Of n values, the number that lie below the true median follows the binomial distribution with p = 1/2, regardless of
    what they measure. So the k-th smallest and the k-th largest enclose it with the probability 1 − 2·P(B ≤ k − 1). The
    largest k that is still sure enough is taken. With fewer than six values no k is: then it is the whole range.

    Raises:
        ValueError: as `find_median`.
    """
    ordered = _check(values)
    count, rank, ways, outside = len(ordered), 0, 1, 1
    while rank + 1 < (count + 1) // 2:
        ways = ways * (count - rank) // (rank + 1)
        outside += ways  # the binomial coefficients that are left out at each end
        if 1 - (outside << 1) / (1 << count) < _CONFIDENCE:  # whole numbers: 2^n fits no float for many values
            break
        rank += 1
    return ordered[rank], ordered[count - 1 - rank]


def describe_seconds(values: Sequence[float]) -> dict[str, float]:
    """The times in a standing: `median`, and for several values also `low` and `high`. Empty for no values."""
    if not values:
        return {}
    found = {"median": find_median(values)}
    if len(values) > 1:
        found["low"], found["high"] = median_interval(values)
    return found


def check_over(over: str) -> None:
    """Raises: SpecError if it is not an `Over`."""
    if over not in get_args(Over):
        raise SpecError(f"over={over!r} is not a way to join rounds", hint=f"give one of {', '.join(get_args(Over))}")


def join_rounds(points: Sequence[float], over: Over) -> float:
    """One number for several rounds, where more is better. Raises: as `find_median`."""
    if over == "median":
        return find_median(points)
    if over == "mean":
        return find_mean(points)
    return max(_check(points)) if over == "best" else min(_check(points))


def find_strengths(wins: Mapping[tuple[str, str], float], names: Sequence[str]) -> dict[str, float]:
    """Bradley-Terry strengths from comparisons; (a, b) → how often a won over b, where a tie is half for each.

    Each name also has one comparison with an imaginary opponent of strength 1 that ends in a tie. Without it, a name
    that wins all would be infinitely strong. Strengths mean: a beats b with the probability s(a) / (s(a) + s(b)).
    """
    strengths = dict.fromkeys(names, 1.0)
    pairs: dict[str, dict[str, float]] = {name: {} for name in names}
    won = dict.fromkeys(names, 0.5)
    for (first, second), count in wins.items():
        won[first] += count
        for one, other in ((first, second), (second, first)):
            pairs[one][other] = pairs[one].get(other, 0.0) + count
    for _ in range(1000):  # it converges in tens; this is a guard
        old = strengths
        strengths = {
            name: won[name]
            / (1 / (old[name] + 1) + math.fsum(n / (old[name] + old[other]) for other, n in met.items()))
            for name, met in pairs.items()
        }
        if all(math.isclose(old[name], strengths[name], rel_tol=1e-12) for name in names):
            break
    return strengths


def _check(values: Sequence[float]) -> list[float]:
    if not values:
        raise ValueError("there are no values")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a value is not finite")
    return sorted(float(value) for value in values)
