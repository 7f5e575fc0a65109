"""Charts as they come from inside: hostile values, of which only known keys of the right types are passed on.

The keys are those that Daytona's clients parse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.interpreter.frames import parse_json

MAX_CHARTS = 64
MAX_CHARTS_BYTES = 32 * 1024 * 1024
CHART_KINDS = frozenset({"line", "scatter", "bar", "pie", "box_and_whisker", "composite_chart", "unknown"})

_TEXTS = ("title", "png", "x_label", "y_label", "x_scale", "y_scale")
_NUMBERS = ("x_ticks", "y_ticks")
_LABELS = ("x_tick_labels", "y_tick_labels")
_ELEMENT_TEXTS = ("label", "value", "group")
_ELEMENT_NUMBERS = ("angle", "radius", "min", "first_quartile", "median", "third_quartile", "max")
_DEPTH = 3


def parse_charts(data: bytes) -> tuple[dict[str, Any], ...]:
    """Lines of JSON as charts; what is no chart is left out."""
    charts = []
    for line in data.split(b"\n", MAX_CHARTS)[:MAX_CHARTS]:
        chart = check_chart(parse_json(line)) if line else None
        if chart is not None:
            charts.append(chart)
    return tuple(charts)


def check_chart(value: object, *, depth: int = 0) -> dict[str, Any] | None:
    """A chart with the known keys alone, each of its type. It comes from inside, and typed clients read it."""
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
