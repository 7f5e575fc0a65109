"""From totals to places. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corral.forge.numbers import DECIMALS


@dataclass(frozen=True, slots=True)
class Place:
    """Where one stands; `tied` if somebody else stands there too."""

    candidate: str
    rank: int
    total: float
    tied: bool


def rank(totals: Mapping[str, float], *, tie_margin: float = 0.0) -> list[Place]:
    """Places, best first. Whoever is within `tie_margin` of the best of a place shares it; the next place counts all
    before it (1, 1, 3). Measured from the best, never from neighbour to neighbour: a long chain of small differences
    does not make the first and the last equal. Among equals the order is that of their ids.
    """
    ordered = sorted((-round(total, DECIMALS), candidate) for candidate, total in totals.items())
    groups: list[list[tuple[float, str]]] = []
    for negative, candidate in ordered:
        if groups and round(negative - groups[-1][0][0], DECIMALS) <= tie_margin:
            groups[-1].append((negative, candidate))
        else:
            groups.append([(negative, candidate)])
    places: list[Place] = []
    for group in groups:
        number = len(places) + 1
        places += [Place(candidate, number, 0.0 - negative, len(group) > 1) for negative, candidate in group]
    return places
