"""Output on a terminal: colours where wanted, tables that fit, and readable units."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Literal, TextIO

import click

from corral import spec
from corral.results import Event

Style = Literal["bold", "dim", "red", "green", "cyan", "magenta"]

# Only colours that can be read on dark and on light; no yellow, no white, no background.
_CODES: dict[Style, str] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "magenta": "35", "cyan": "36"}
# C0 and C1 controls, and marks that reverse the direction of text, with which a name can look like another.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PAINT = re.compile(r"\x1b\[[0-9;]*m")

_LEAST_COLUMNS = 8
"""The minimum width of a column."""

Alignment = Literal["left", "right"]


def colour_wanted(stream: TextIO) -> bool:
    """True on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *styles: Style, stream: TextIO | None = None) -> str:
    """The text in these styles, where colours are wanted."""
    if not colour_wanted(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def plain(text: str) -> str:
    """Untrusted text on one line, without control sequences."""
    return _UNSAFE.sub("?", text.replace("\n", " ").replace("\t", " "))


def columns() -> int:
    """The width of the output. Without a terminal 80."""
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, 120)) if sys.stdout.isatty() else 80


def unicode_wanted(stream: TextIO | None = None) -> bool:
    """True if lines and ticks can be drawn."""
    return (getattr(stream or sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def width(text: str) -> int:
    """The width of a text in columns: colours take no column, wide characters two."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in _PAINT.sub("", text)
    )


def cut(text: str, limit: int) -> str:
    """The text in at most `limit` columns. A text that is cut ends with an ellipsis and loses its colours."""
    if width(text) <= limit:
        return text
    kept = _PAINT.sub("", text)
    ellipsis = "…" if unicode_wanted() else "~"
    while kept and width(kept) > limit - 1:
        kept = kept[:-1]
    return kept + ellipsis


def pad(text: str, size: int, align: Alignment = "left") -> str:
    """The text, filled up with spaces to `size` columns."""
    space = " " * max(0, size - width(text))
    return text + space if align == "left" else space + text


def table(
    rows: Sequence[Sequence[str]], *, headers: Sequence[str] = (), align: Sequence[Alignment] = (), indent: int = 0,
    limit: int | None = None,
) -> list[str]:  # fmt: skip
    """Lines with aligned columns, the last one cut to fit (`limit`, else the terminal).

    If that is not enough on a terminal, the widest others are cut too, so that no line wraps. The first column, where
    ids stand, stays whole.
    """
    if not rows:
        return []
    everything = [list(row) for row in ([headers, *rows] if headers else rows)]
    count = max(len(row) for row in everything)
    for row in everything:
        row.extend([""] * (count - len(row)))
    sizes = [max(width(row[index]) for row in everything) for index in range(count)]
    sides: list[Alignment] = [align[index] if index < len(align) else "left" for index in range(count)]
    room = (limit or columns()) - indent - sum(sizes[:-1]) - 2 * (count - 1)
    sizes[-1] = min(sizes[-1], max(_LEAST_COLUMNS, room))
    if limit is not None or sys.stdout.isatty():  # a reader of a pipe may look for a whole name
        _narrow(sizes, over=max(0, sizes[-1] - room))
    lines = []
    for number, row in enumerate(everything):
        cells = [row[0], *(cut(cell, size) for cell, size in zip(row[1:-1], sizes[1:-1], strict=True))]
        cells += [cut(row[-1], sizes[-1])] if count > 1 else []
        line = "  ".join(pad(cell, size, side) for cell, size, side in zip(cells, sizes, sides, strict=True))
        line = " " * indent + line.rstrip()
        lines.append(paint(line, "dim") if headers and number == 0 else line)
    return lines


def print_table(
    rows: Sequence[Sequence[str]], *, headers: Sequence[str] = (), align: Sequence[Alignment] = (), indent: int = 0,
    whole_in_a_pipe: bool = False,
) -> None:  # fmt: skip
    """Print a table. With `whole_in_a_pipe`, its last column is not cut for a reader of a pipe, who may search it."""
    limit = sys.maxsize if whole_in_a_pipe and not sys.stdout.isatty() else None
    for line in table(rows, headers=headers, align=align, indent=indent, limit=limit):
        click.echo(line)


def _narrow(sizes: list[int], *, over: int) -> None:
    """Shorten the widest columns between the first and the last."""
    while over > 0 and len(sizes) > 2:
        widest = max(range(1, len(sizes) - 1), key=sizes.__getitem__)
        if sizes[widest] <= _LEAST_COLUMNS:
            return
        sizes[widest] -= 1
        over -= 1


def show_size(count: int | float | None) -> str:
    """A size in readable units."""
    return "?" if count is None else spec.show_size(count)


def show_seconds(seconds: float | None) -> str:
    """A duration in readable units."""
    if seconds is None:
        return "?"
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{seconds:.0f} s"


class Progress:
    """A progress line on stderr, removed at the end of its block. Silent without a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._active = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def take(self, event: Event) -> None:
        """For `on_event=`: shows what is done before a sandbox exists, and nothing once it does."""
        if event.kind == "packages":
            self.show(f"packages: {event.details['doing']}")
        else:
            self.clear()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._active:
            sys.stderr.write(f"\r\x1b[2K{cut(plain(text), columns() - 1)}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False
