"""Whether values that were read have the kinds that we write. A run's folder may have been sent, or mended by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NUMBER = (int, float, type(None))
"""A number, or none."""


def check_kinds(values: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Look at those that are there. Raises: TypeError, and ValueError for what is not a number in spite of its kind."""
    for name, allowed in kinds.items():
        if name not in values:
            continue
        value = values[name]
        if not isinstance(value, allowed):
            raise TypeError(f"{name} is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")


def check_all(values: Mapping[Any, Any], *allowed: type) -> None:
    """The same for a table whose names are anybody's. Raises: as `check_kinds`."""
    check_kinds(values, dict.fromkeys(values, allowed))
