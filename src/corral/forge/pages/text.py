"""Text of candidates, made harmless and visible.

This comes before the escaping for HTML: no sequence moves a cursor, no mark reverses a line, invisible characters
become visible, and every character can be encoded.
"""

from __future__ import annotations

import html
import io
import re
import unicodedata
from functools import partial

from corral import spec
from corral.base.cleaning import Cleaner

_TO_CHECK = re.compile(
    r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u052f\u2010-\u2027\u2030-\u205e\u2190-\u2bff\u4e00-\u9fff]"
)
_KINDS_TO_SHOW = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_JOINER = "\u200d"  # joins emoji, and does not change the direction of text


def make_cleaner() -> Cleaner[str]:
    """`clean` for a stream in pieces: a sequence or a line's end may be cut in two."""
    return Cleaner(io.IncrementalNewlineDecoder(None, translate=True).decode, partial(_TO_CHECK.sub, _show_mark))


def clean(text: str) -> str:
    """The text without terminal sequences; a lone carriage return starts a line. Control characters become their
    pictures, invisible and unpaired ones their number."""
    return make_cleaner().clean(text, final=True)


def clean_line(text: str, *, limit: int = 200) -> str:
    """`clean` for names and reasons: one line of bounded length."""
    found = " ".join(clean(text[: limit * 8]).split())
    return found if len(found) <= limit and len(text) <= limit * 8 else f"{found[: limit - 1]}…"


def _show_mark(found: re.Match[str]) -> str:
    character, code = found[0], ord(found[0])
    if character == _JOINER or unicodedata.category(character) not in _KINDS_TO_SHOW:
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


def escape(text: object) -> str:
    """For HTML, as content and in quoted attributes."""
    return html.escape(str(text), quote=True)


def cut_middle(text: str, *, limit: int) -> str:
    """At most `limit` characters, of the beginning and of the end; a line between them says how many are left out."""
    if len(text) <= limit:
        return text
    head = text[: limit // 2].rpartition("\n")[0] or text[: limit // 2]
    tail_from = len(text) - limit // 2
    tail = text[tail_from:].partition("\n")[2] or text[tail_from:]
    return f"{head}\n\n… {len(text) - len(head) - len(tail)} characters left out …\n\n{tail}"


def show_size(size: float | None) -> str:
    """Bytes for people."""
    return "–" if size is None else spec.show_size(size)


def show_seconds(seconds: float | None) -> str:
    """Seconds for people, in columns and as watch.js shows them; those of `cli.display` may be ages, with days."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
