"""Small pieces of HTML. Text is cleaned and escaped here, and nowhere later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from corral.forge.numbers import show_number
from corral.forge.pages.text import clean, clean_line, escape, show_size


def name(text: object, *, limit: int = 80) -> str:
    """A foreign name in a line of ours: isolated, so that a right-to-left name does not reorder the rest."""
    return f"<bdi>{escape(clean_line(str(text), limit=limit))}</bdi>"


def line(text: object, *, limit: int = 400) -> str:
    """A foreign sentence."""
    return escape(clean_line(str(text), limit=limit))


def block(text: object, *, limit: int = 20_000) -> str:
    """A foreign text of several lines."""
    found = str(text)
    cut = found if len(found) <= limit else f"{found[:limit]}…"
    return escape(clean(cut))


def bar(share: float, *, kind: str = "") -> str:
    """A share from 0 to 100 as a small bar, hidden from screen readers: the number stands beside it."""
    width = min(100.0, max(0.0, share))
    return (
        f'<svg class="bar {escape(kind)}" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rail" width="100" height="4"/><rect class="fill" width="{width:.1f}" height="4"/></svg>'
    )


def table(label: str, heads: Iterable[tuple[str, str]], rows: str, *, more: str = "") -> str:
    """A table that scrolls by itself on a narrow page.

    `heads` are the head of each column and its class; heads and `rows` are HTML, `more` are attributes.
    """
    cells = "".join(f'<th scope="col" class="{kind}">{head}</th>' for head, kind in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table{more}>'
        f"<thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, in two columns. The values are HTML already."""
    found = "".join(f"<div><dt>{escape(key)}</dt><dd>{value}</dd></div>" for key, value in pairs)
    return f'<dl class="facts">{found}</dl>'


def flatten(values: Mapping[str, Any], *, before: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as `timeouts.run` and the like, with their values as text."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, before=f"{before}{key}.")
        else:
            is_size = key.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool)
            yield f"{before}{key}", show_size(value) if is_size else _show_value(value)


def _show_value(value: object) -> str:
    if value is None or value in ("", [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_show_value(found)}" for key, found in value.items())
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(found, Mapping) for found in value) else ", ").join(map(_show_value, value))
    return show_number(value) if isinstance(value, float) else str(value)


def data_block(id_: str, value: object) -> str:
    """Data for the script. No text in it can end the block."""
    text = json.dumps(value, separators=(",", ":"))  # plain ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{escape(id_)}">{text}</script>'
