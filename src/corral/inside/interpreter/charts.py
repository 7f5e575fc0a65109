"""Runs INSIDE a sandbox, as `driver.py` does (3.8 or newer, self-contained): matplotlib's figures as data and pictures.

Nothing happens until the code imports `matplotlib.pyplot`. Then `plt.show()` and the end of the run send the open
figures; each becomes a PNG and, where we can read its axes, a chart: a dict of plain values, as Daytona's clients parse
them. Other figures are charts of type `unknown`, with their picture.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import json
import math
import os
import sys
import traceback
import weakref

if False:  # for type checkers alone: nothing is imported that is not needed
    from collections.abc import Callable
    from typing import Any

PYPLOT = "matplotlib.pyplot"
CHART = "application/vnd.corral.chart.v1+json"
MAX_POINTS = 20000
MAX_ELEMENTS = 2000
MAX_TICKS = 200

STATE: dict[str, Any] = {"send": None, "close": False, "shown": None, "boxes": None, "imported": None}


# --------------------------------------------------------------------------------------------------- finding figures


def library(name: str) -> Any:
    """A module of matplotlib, which the code has imported."""
    return importlib.import_module("matplotlib." + name)


class Finder:
    """Lets pyplot be imported as usual, and then puts our `show` in."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != PYPLOT:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not Finder else None
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: Any, execute: Any = execute) -> None:
                    execute(module)
                    hook(module)

                spec.loader.exec_module = exec_module
                return spec
        return None


def install(send: Callable[[dict[str, Any]], None], *, close: bool) -> None:
    """`send` takes MIME bundles. With `close`, figures are closed at the end of a run."""
    STATE.update(send=send, close=close, shown=weakref.WeakSet(), boxes=weakref.WeakKeyDictionary())
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.meta_path.insert(0, Finder)


def hook(pyplot: Any) -> None:
    """Once, when pyplot has been imported."""
    Axes, Figure = library("axes").Axes, library("figure").Figure  # noqa: N806 - classes, named as they are

    def show(*args: Any, **kwargs: Any) -> None:
        """Show all figures that have changed since they were shown, and close them, as a window is closed."""
        show_open(pyplot)
        if kwargs.get("block", args[0] if args else None) is not False:
            pyplot.close("all")

    def show_one(self: Any, *args: Any, **kwargs: Any) -> None:
        """Show this figure."""
        emit(self)

    bxp = Axes.bxp

    @functools.wraps(bxp)
    def keep_boxes(self: Any, bxpstats: Any, *args: Any, **kwargs: Any) -> Any:
        stats = list(bxpstats)
        artists = bxp(self, stats, *args, **kwargs)
        try:
            STATE["boxes"].setdefault(self, []).append((stats, list(artists["medians"])))
        except Exception:
            pass  # one chart less, but no error in the code
        return artists

    if STATE["imported"] is not None:
        STATE["imported"]()
    pyplot.show = show
    Figure.show = show_one
    Axes.bxp = keep_boxes


def show_open(pyplot: Any) -> None:
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        # One with nothing but its background was created by accident, mostly by a savefig() after show().
        if len(figure.get_children()) > 1 and (figure not in STATE["shown"] or figure.stale):
            emit(figure)


def flush(*, show: bool = True) -> None:
    """At the end of a run."""
    pyplot = sys.modules.get(PYPLOT)
    if pyplot is None or not hasattr(pyplot, "get_fignums") or STATE["send"] is None:
        return
    try:
        if show:
            show_open(pyplot)
    finally:
        if STATE["close"]:
            pyplot.close("all")


def emit(figure: Any) -> None:
    data = describe(figure)
    if data:
        data["text/plain"] = repr(figure)
        STATE["send"](data)


def describe(value: Any) -> dict[str, Any]:
    """A figure as picture and chart; nothing for any other value."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not hasattr(module, "Figure") or not isinstance(value, module.Figure):
        return {}
    try:
        picture = draw(value)
    except Exception:
        traceback.print_exc()
        return {}
    try:
        chart = read_figure(value)
        json.dumps(chart, allow_nan=False)
    except Exception:
        chart = {"type": "unknown", "title": "", "elements": []}
    value.stale = False
    if STATE["shown"] is not None:
        STATE["shown"].add(value)
    return {"image/png": picture, CHART: chart}


def draw(figure: Any) -> str:
    if not hasattr(figure.canvas, "print_png"):
        library("backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


# -------------------------------------------------------------------------------------------------------- reading them


def read_figure(figure: Any) -> dict[str, Any]:
    """One chart for a figure; several in one are a composite."""
    charts: list[dict[str, Any]] = []
    for axes in figure.axes:
        if axes.get_label() != "<colorbar>" and axes.get_visible():
            charts += read_axes(axes)
    above = getattr(figure, "_suptitle", None)
    title = above.get_text() if above else ""
    thin(charts)
    if len(charts) == 1:
        chart = charts[0]
        chart["title"] = chart["title"] or title
        return chart
    kind = "composite_chart" if charts else "unknown"
    return {"type": kind, "title": title, "elements": charts}


def thin(charts: list[dict[str, Any]]) -> None:
    """Keep every second, third … of too many points: readers of a chart have limits, and a screen shows no more."""
    elements = [element for chart in charts for element in chart["elements"]]
    count = sum(len(element.get("points", ())) + len(element.get("outliers", ())) for element in elements)
    step = -(-count // MAX_POINTS)
    for element in elements if step > 1 else ():
        for name in ("points", "outliers"):
            if name in element:
                element[name] = element[name][::step]


def read_axes(axes: Any) -> list[dict[str, Any]]:
    """The charts on one pair of axes: mostly one, but bars may have a line over them."""
    if pies := read_pie(axes):
        return [{"type": "pie", "title": axes.get_title(), "elements": pies}]
    boxes, medians = read_boxes(axes)
    found: list[tuple[str, list[dict[str, Any]]]] = [("box_and_whisker", boxes), ("bar", read_bars(axes))]
    lines: list[dict[str, Any]] = []
    dots: list[dict[str, Any]] = []
    # The lines of a box plot are no line chart.
    for line in axes.lines if not medians else ():
        if line.get_visible() and line.get_transform() == axes.transData:
            bare = line.get_linestyle() in ("None", "none", " ", "")
            x, y = line.get_xdata(orig=False), line.get_ydata(orig=False)
            (dots if bare else lines).append({"label": label_of(line), "points": points(axes, x, y)})
    for collection in axes.collections if not medians else ():
        if is_scatter(axes, collection):
            offsets = collection.get_offsets()
            pairs = points(axes, [pair[0] for pair in offsets], [pair[1] for pair in offsets])
            dots.append({"label": label_of(collection), "points": pairs})
    found += [("scatter", dots), ("line", lines)]
    charts = [dict(frame(axes), type=kind, elements=elements[:MAX_ELEMENTS]) for kind, elements in found if elements]
    if not charts and axes.has_data():
        charts = [dict(frame(axes), type="unknown", elements=[])]
    return charts


def is_scatter(axes: Any, collection: Any) -> bool:
    """True for a scatter plot. Contours are collections of the same class, but their offsets are no data."""
    if type(collection).__name__ != "PathCollection" or not collection.get_visible():
        return False
    return bool(collection.get_offset_transform().contains_branch(axes.transData))


def frame(axes: Any) -> dict[str, Any]:
    """Title, labels, ticks and scales."""
    chart: dict[str, Any] = {"title": axes.get_title()}
    for letter, axis, bounds in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        low, high = sorted(bounds)
        ticks: list[float] = []
        labels: list[str] = []
        for place, text in zip(axis.get_ticklocs(), axis.get_ticklabels()):
            value = number(axis, place)
            if low <= place <= high and value is not None and len(ticks) < MAX_TICKS:
                ticks.append(value)
                labels.append(text.get_text())
        chart[letter + "_label"] = axis.get_label_text()
        chart[letter + "_ticks"] = ticks
        chart[letter + "_tick_labels"] = labels
        chart[letter + "_scale"] = "datetime" if is_date(axis) else categorical(axis) or axis.get_scale()
    return chart


def converter_of(axis: Any) -> str:
    find = getattr(axis, "get_converter", None)
    return type(find() if find else axis.converter).__name__


def is_date(axis: Any) -> bool:
    return "Date" in converter_of(axis)


def categorical(axis: Any) -> str | None:
    return "categorical" if converter_of(axis) == "StrCategoryConverter" else None


def number(axis: Any, value: Any) -> float | None:
    """A finite number, or None. Dates become seconds since 1970."""
    try:
        plain = float(value)
        if math.isfinite(plain) and is_date(axis):
            plain = library("dates").num2date(plain).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return plain if math.isfinite(plain) else None


def points(axes: Any, xs: Any, ys: Any) -> list[list[float]]:
    pairs: list[list[float]] = []
    for x, y in zip(xs, ys):
        first, second = number(axes.xaxis, x), number(axes.yaxis, y)
        if first is not None and second is not None:
            pairs.append([first, second])
        if len(pairs) >= MAX_POINTS:
            break
    return pairs


def label_of(artist: Any) -> str:
    """The label that a legend would show."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


def read_pie(axes: Any) -> list[dict[str, Any]]:
    wedges = [patch for patch in axes.patches if isinstance(patch, library("patches").Wedge) and patch.get_visible()]
    return [
        {"label": label_of(wedge), "angle": float(abs(wedge.theta2 - wedge.theta1)), "radius": float(wedge.r)}
        for wedge in wedges[:MAX_ELEMENTS]
    ]


def read_boxes(axes: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    elements: list[dict[str, Any]] = []
    alive: list[Any] = []
    for stats, medians in (STATE["boxes"] or {}).get(axes, ()):
        if not any(median in axes.lines for median in medians):
            continue  # cleared meanwhile
        alive += medians
        for each, median in zip(stats, medians):
            values = {
                "min": each.get("whislo"),
                "first_quartile": each.get("q1"),
                "median": each.get("med"),
                "third_quartile": each.get("q3"),
                "max": each.get("whishi"),
            }
            upright = median.get_ydata()[0] == median.get_ydata()[-1]
            axis = axes.xaxis if upright else axes.yaxis
            middle = sum(median.get_xdata() if upright else median.get_ydata()) / 2
            element: dict[str, Any] = {key: float(value) for key, value in values.items() if finite(value)}
            element["label"] = str(each.get("label") or "") or tick_label(axis, middle)
            element["outliers"] = [float(value) for value in list(each.get("fliers", ()))[:MAX_POINTS] if finite(value)]
            elements.append(element)
    return elements, alive


def finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def read_bars(axes: Any) -> list[dict[str, Any]]:
    elements: list[dict[str, Any]] = []
    for container in axes.containers:
        if not isinstance(container, library("container").BarContainer):
            continue
        lying = getattr(container, "orientation", None) == "horizontal"
        axis = axes.yaxis if lying else axes.xaxis
        for patch in container.patches[:MAX_ELEMENTS]:
            if lying:
                middle, length = patch.get_y() + patch.get_height() / 2, patch.get_width()
            else:
                middle, length = patch.get_x() + patch.get_width() / 2, patch.get_height()
            label = tick_label(axis, middle)
            elements.append({"label": label, "value": repr(plain_number(length)), "group": label_of(container)})
    return elements


def plain_number(value: Any) -> Any:
    value = float(value)
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else value


def tick_label(axis: Any, place: float) -> str:
    """The label of the tick at a place, or the number itself."""
    named = categorical(axis) or isinstance(axis.get_major_locator(), library("ticker").FixedLocator)
    best = None
    for tick, text in zip(axis.get_ticklocs(), axis.get_ticklabels()):
        away = abs(tick - place)
        if away < (0.5 if named else 1e-9) and (best is None or away < best[0]) and text.get_text():
            best = (away, text.get_text())
    return best[1] if best else f"{place:g}"


# ----------------------------------------------------------------------------------------- for programs that run once


def install_to_file(path: str) -> None:
    """Write charts as lines of JSON into a file, also those of figures that are open when the program ends."""
    import atexit

    def send(data: dict[str, Any]) -> None:
        if CHART in data:
            line = json.dumps(dict(data[CHART], png=data["image/png"]))
            with open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def at_end(pid: int = os.getpid()) -> None:
        if os.getpid() == pid:
            flush()

    install(send, close=False)
    # Only now: pyplot has registered the end of its figures, and the last registered is called first.
    STATE["imported"] = lambda: atexit.register(at_end)
