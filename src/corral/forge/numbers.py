"""Numbers as they are told: to people, in `--json`, and in a run's folder. What a float has beyond this is noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DECIMALS = 6
"""Of points and of seconds: totals are compared rounded to so many, too."""
_SHOWN = 3


def round_all(value: Any) -> Any:
    """The same value with every float in it rounded; lists, tuples and mappings are gone through."""
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, Mapping):
        return {key: round_all(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(round_all(found) for found in value) if type(value) in (list, tuple) else value
    return value


def show_number(value: float) -> str:
    """For people: 0.248, 12, 98.681."""
    return f"{value:.{_SHOWN}f}".rstrip("0").rstrip(".") if abs(value) >= 10**-_SHOWN or value == 0 else f"{value:.1g}"
