"""Numbers: checked when they are given, and rounded when they are shown, in `--json` and in a run's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from corral.errors import SpecError

DECIMALS = 6
"""Of points and seconds. Totals are also compared with this precision."""
_SHOWN = 3


def round_all(value: Any) -> Any:
    """The same value with every float in it rounded, also inside lists, tuples and mappings."""
    return change_floats(value, lambda found: round(found, DECIMALS))


def change_floats(value: Any, change: Callable[[float], float | None]) -> Any:
    """The same value with every float in it changed, also inside lists, tuples and mappings."""
    if isinstance(value, float):
        return change(value)
    if isinstance(value, Mapping):
        return {key: change_floats(found, change) for key, found in value.items()}
    if isinstance(value, list):
        return [change_floats(found, change) for found in value]
    if isinstance(value, tuple):
        return tuple(change_floats(found, change) for found in value)
    return value


def show_number(value: float) -> str:
    """A number as people read it: 0.248, 12, 98.681."""
    return f"{value:.{_SHOWN}f}".rstrip("0").rstrip(".") if abs(value) >= 10**-_SHOWN or value == 0 else f"{value:.1g}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number. True and False are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is larger than any float
        return False


def check_number(value: object, *, what: str, kind: str, hint: str, least: float | None = None) -> None:
    """Raises: SpecError if it is not a finite number above 0, or of at least `least` where that is given."""
    if not is_number(value) or (value <= 0 if least is None else value < least):
        raise SpecError(f"{what}={value!r} is not a {kind}", hint=hint)
