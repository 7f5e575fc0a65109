"""Checks charts from inside, which are hostile: only known keys with the right types are passed on.

The keys are those that Daytona's clients parse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from corral.inside.jsonbounds import count_values
from corral.sessions.interpreter.frames import MAX_ITEMS, parse_json

MAX_CHARTS = 64
MAX_CHART_BYTES = 4 * 1024 * 1024
MAX_CHARTS_BYTES = 8 * 1024 * 1024
"""The limit for all charts of one snippet together."""
MAX_CHARTS_ITEMS = 2 * MAX_ITEMS
_VALUE_BYTES = 40
"""How much memory a value takes, besides its text."""
CHART_KINDS = frozenset({"line", "scatter", "bar", "pie", "box_and_whisker", "composite_chart", "unknown"})

_TEXTS = ("title", "png", "x_label", "y_label", "x_scale", "y_scale")
_NUMBERS = ("x_ticks", "y_ticks")
_LABELS = ("x_tick_labels", "y_tick_labels")
_ELEMENT_TEXTS = ("label", "value", "group")
_ELEMENT_NUMBERS = ("angle", "radius", "min", "first_quartile", "median", "third_quartile", "max")
_DEPTH = 3


def parse_charts(
    data: bytes, *, cut: bool = False, allowance: Callable[[int], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Parse lines of JSON as charts. Other values are left out; a message takes the place of a chart that is too large.

    Args:
        data: The lines.
        cut: There was more data, so the last line is incomplete.
        allowance: Returns True if so many more bytes may be held, as in `corral.base.process`.
    """
    lines = data.split(b"\n", MAX_CHARTS)
    if len(lines) > MAX_CHARTS:
        cut = bool(lines.pop()) or cut
    elif cut:
        lines.pop()
    values = 0
    for line in lines:
        if not line:
            continue
        count = count_values(line, most=MAX_ITEMS)
        held = len(line) + count * _VALUE_BYTES
        if len(line) > MAX_CHART_BYTES or count > MAX_ITEMS or values + count > MAX_CHARTS_ITEMS:
            yield _left_out(f"a chart of {len(line)} bytes is left out: too large, or too many values")
        elif allowance is not None and not allowance(held):
            yield _left_out("a chart is left out: too much is held for this key at the same time")
        elif (chart := check_chart(parse_json(line))) is not None:
            values += count
            yield chart
    if cut:
        yield _left_out(
            f"more charts are left out: {MAX_CHARTS} are kept, and of all together {MAX_CHARTS_BYTES} bytes"
        )


def _left_out(why: str) -> dict[str, Any]:
    """A chart that every client can read, with a message as its title."""
    return {"type": "unknown", "title": f"[corral: {why}]", "elements": []}


def check_chart(value: object, *, depth: int = 0) -> dict[str, Any] | None:
    """A chart with the known keys only, each of its type, since typed clients read it. None if it is not a chart."""
    if not isinstance(value, dict) or depth > _DEPTH:
        return None
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in CHART_KINDS:
        return None
    chart: dict[str, Any] = {"type": kind}
    chart.update({key: value[key] for key in _TEXTS if isinstance(value.get(key), str)})
    chart.update({key: _keep(value[key], _is_number) for key in _NUMBERS if isinstance(value.get(key), list)})
    chart.update({key: _keep(value[key], _is_text) for key in _LABELS if isinstance(value.get(key), list)})
    given = value.get("elements")
    elements = given if isinstance(given, list) else []
    if kind == "composite_chart":
        parts = (check_chart(element, depth=depth + 1) for element in elements)
        chart["elements"] = [part for part in parts if part is not None]
    else:
        chart["elements"] = [_check_element(element) for element in elements if isinstance(element, dict)]
    return chart


def _check_element(value: dict[str, Any]) -> dict[str, Any]:
    element: dict[str, Any] = {key: value[key] for key in _ELEMENT_TEXTS if isinstance(value.get(key), str)}
    element.update({key: value[key] for key in _ELEMENT_NUMBERS if _is_number(value.get(key))})
    if isinstance(value.get("outliers"), list):
        element["outliers"] = _keep(value["outliers"], _is_number)
    if isinstance(value.get("points"), list):
        element["points"] = [point for point in value["points"] if _is_point(point)]
    return element


def _keep(values: list[Any], fits: Callable[[object], bool]) -> list[Any]:
    return [value for value in values if fits(value)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_point(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_number(part) for part in value)
