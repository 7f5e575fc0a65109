"""Charts as SVG, without a library or a script. Colours follow the reader's light or dark mode.

The `kind` of a mark decides its shape as well as its colour, so no reader has to tell hues apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.forge.overview import CandidateRow, MarkKind
from corral.forge.pages.text import clean_line, escape

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 20.0, 14.0, 46.0
_LOG_ABOVE = 30.0
"""If the largest value is more than this many times the smallest, the axis is logarithmic."""
_MAX_LABELS = 24
_MAX_ROWS = 40
_ROW_HEIGHT = 30.0
_LETTER = 6.1
"""About the width of a letter, to keep labels apart."""


class Mark(NamedTuple):
    """One candidate, and where it is in a chart."""

    row: CandidateRow
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: tuple[float, ...] = field(default=())

    def at(self, value: float) -> float:
        """Where a value is drawn."""
        low, high, here = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        share = 0.5 if high == low else (here - low) / (high - low)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def make_axis(values: Sequence[float], *, start: float, end: float, binary: bool = False) -> Axis:
    """An axis for values from 0 on, with round numbers beside it; logarithmic if they are far apart."""
    step_base = 1024.0 if binary else 1000.0
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    top = max(positive, default=1.0)
    bottom = min(positive, default=top)
    if positive and top / bottom > _LOG_ABOVE:
        ticks = _log_ticks(bottom, top, 2.0 if binary else 10.0)
        return Axis(ticks[0], ticks[-1], start, end, log=True, ticks=ticks[:: math.ceil(len(ticks) / 7)])
    unit = step_base ** math.floor(math.log(top, step_base)) if binary else 1.0
    ticks = tuple(tick * unit for tick in _linear_ticks(top / unit))
    return Axis(0.0, ticks[-1], start, end, ticks=ticks)


def _linear_ticks(top: float) -> tuple[float, ...]:
    power = 10.0 ** math.floor(math.log10(top / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if top / (power * factor) <= 5)
    return tuple(step * number for number in range(math.ceil(top / step * 1.0001) + 1))


def _log_ticks(bottom: float, top: float, base: float) -> tuple[float, ...]:
    first, last = math.floor(math.log(bottom, base)), math.ceil(math.log(top, base))
    return tuple(base**power for power in range(first, max(last, first + 1) + 1))


def draw_scatter(
    marks: Sequence[Mark], *, chart_id: str, title: str, x_label: str, y_label: str, show: Callable[[float], str],
    binary: bool = False,
) -> str:  # fmt: skip
    """Points: how good (up) against what it cost (to the right). The best place is at the upper left."""
    x_axis = make_axis([mark.x for mark in marks], start=_LEFT, end=_WIDTH - _RIGHT, binary=binary)
    y_axis = Axis(0.0, 100.0, _HEIGHT - _BOTTOM, _TOP, ticks=(0.0, 25.0, 50.0, 75.0, 100.0))
    parts = [_grid(x_axis, y_axis, show)]
    # The winner is drawn last, on top of the others.
    for row, x, y in sorted(marks, key=lambda mark: ("out", "ranked", "winner").index(mark.row.kind)):
        note = f"{clean_line(row.name)}: {y:.1f} points, {show(x)}"
        parts.append(_mark(row.kind, x_axis.at(x), y_axis.at(y), row.id, note))
    parts += _labels(marks, x_axis, y_axis)
    parts.append(_axis_titles(x_label + (" (logarithmic)" if x_axis.log else ""), y_label))
    said = "; ".join(f"{clean_line(row.name, limit=60)} {y:.1f} at {show(x)}" for row, x, y in marks[:20])
    return _svg(chart_id, title, said or "no points", _HEIGHT, "".join(parts))


def draw_rounds(rows: Sequence[CandidateRow], *, chart_id: str, title: str, show: Callable[[float], str]) -> str:
    """Each round's time as a dot, the median as a bar, its interval as a line."""
    shown = rows[:_MAX_ROWS]
    left = _LEFT + 78.0
    height = 20 + _ROW_HEIGHT * len(shown) + _BOTTOM
    values = [value for row in shown for value in (*row.times, *(row.interval or ()))]
    axis = make_axis(values, start=left, end=_WIDTH - _RIGHT)
    parts = [_columns(axis, show, top=10.0, bottom=height - _BOTTOM)]
    for number, row in enumerate(shown):
        parts.append(_round_row(row, 10 + _ROW_HEIGHT * (number + 0.5), axis, left, show))
    label = "time of the run" + (" (logarithmic)" if axis.log else "")
    parts.append(_text("axis", (left + _WIDTH) / 2, height - 8, label))
    said = "; ".join(
        f"{clean_line(row.name, limit=60)}: median {show(row.median_seconds)} of {len(row.times)} rounds"
        for row in shown[:20] if row.median_seconds is not None
    )  # fmt: skip
    return _svg(chart_id, title, said or "no times", height, "".join(parts))


def _round_row(row: CandidateRow, y: float, axis: Axis, left: float, show: Callable[[float], str]) -> str:
    parts = [_text("label", left - 12, y + 4, clean_line(row.name, limit=19), anchor="end")]
    if row.interval is not None:
        low, high = row.interval
        parts.append(_line(f"interval {row.kind}", axis.at(low), axis.at(high), y, y))
    for number, value in enumerate(row.times, start=1):
        parts.append(
            f'<circle class="dot {row.kind}" cx="{axis.at(value):.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape(f'{clean_line(row.name)}, round {number}: {show(value)}')}</title></circle>"
        )
    if row.median_seconds is not None:
        x = axis.at(row.median_seconds)
        parts.append(_line(f"median {row.kind}", x, x, y - 9, y + 9))
    return f'<g data-candidate="{escape(row.id)}">{"".join(parts)}</g>'


def _grid(x_axis: Axis, y_axis: Axis, show: Callable[[float], str]) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(_line("grid", _LEFT, _WIDTH - _RIGHT, y, y))
        parts.append(_text("tick", _LEFT - 8, y + 4, f"{tick:.0f}", anchor="end"))
    return "".join(parts) + _columns(x_axis, show, top=_TOP, bottom=_HEIGHT - _BOTTOM)


def _columns(axis: Axis, show: Callable[[float], str], *, top: float, bottom: float) -> str:
    """A vertical line and a label for each tick of a horizontal axis."""
    parts = []
    for tick in axis.ticks:
        x = axis.at(tick)
        parts.append(_line("grid", x, x, top, bottom))
        # Without trailing zeros: 10.0 s is 10 s.
        parts.append(_text("tick", x, bottom + 18, re.sub(r"(\.\d*?)0+(?= )", r"\1", show(tick)).replace(". ", " ")))
    return "".join(parts)


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str, *, anchor: str = "middle", more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _mark(kind: MarkKind, x: float, y: float, candidate: str, note: str) -> str:
    if kind == "winner":
        points = []
        for corner in range(10):
            angle, radius = math.pi * corner / 5 - math.pi / 2, 9.5 if corner % 2 == 0 else 4.2
            points.append(f"{x + radius * math.cos(angle):.1f},{y + radius * math.sin(angle):.1f}")
        shape = f'<polygon class="mark winner" points="{" ".join(points)}"/>'
    elif kind == "ranked":
        shape = f'<circle class="mark ranked" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    else:
        shape = f'<path class="mark out" d="M{x - 4.5:.1f} {y - 4.5:.1f}l9 9m0 -9l-9 9"/>'
    return f'<g data-candidate="{escape(candidate)}"><title>{escape(note)}</title>{shape}</g>'


def _labels(marks: Sequence[Mark], x_axis: Axis, y_axis: Axis) -> list[str]:
    """Names beside the points, where there is room. Each point also has its name as a tooltip."""
    places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in marks]
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    parts: list[str] = []
    for mark, (x, y) in zip(marks, places, strict=True):
        if len(parts) == _MAX_LABELS:
            break
        name = clean_line(mark.row.name, limit=22)
        width = len(name) * _LETTER
        for anchor, left, base in (
            ("start", x + 11, y + 4), ("end", x - 11 - width, y + 4), ("middle", x - width / 2, y - 11),
            ("middle", x - width / 2, y + 20), ("start", x + 9, y - 9), ("start", x + 9, y + 17),
        ):  # fmt: skip
            box = (left, base - 11, left + width, base + 3)
            inside = box[0] >= _LEFT and box[2] <= _WIDTH - 2 and box[1] >= 0 and box[3] <= _HEIGHT - _BOTTOM
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                at = {"start": left, "end": left + width, "middle": left + width / 2}[anchor]
                parts.append(_text("label", at, base, name, anchor=anchor))
                break
    return parts


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _axis_titles(x_label: str, y_label: str) -> str:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f' transform="rotate(-90 14 {middle:.1f})"'
    below = _text("axis", (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label)
    return below + _text("axis", 14, middle, y_label, more=turned)


def _svg(chart_id: str, title: str, said: str, height: float, content: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-labelledby="{chart_id}-title {chart_id}-said">'
        f'<title id="{chart_id}-title">{escape(title)}</title><desc id="{chart_id}-said">{escape(said)}</desc>'
        f"{content}</svg>"
    )
