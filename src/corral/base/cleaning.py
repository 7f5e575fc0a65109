"""Removes terminal sequences from a stream of text. The output of sandboxed programs is hostile.

A sequence can set the clipboard, rename the window, hide text, or make the terminal type for the user. The readers,
`cli/clean.py` for terminals and `forge/pages/text.py` for pages, say how control characters are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import AnyStr, Generic

_MOST = 4096
"""A sequence with a longer text is shown, so that it can't hide the rest and little is held back."""
_PARTS = rf"[0-?]{{0,{_MOST}}}[\ -/]{{0,{_MOST}}}", rf"[\]PX^_][^\x07\x1b\x9c]{{0,{_MOST}}}", rf"[\ -/]{{0,{_MOST}}}"
_SEQUENCE = re.compile(
    rf"""\x1b(?:
        \[{_PARTS[0]}[@-~]                # CSI: colours, cursor, modes
      | {_PARTS[1]}(?:\x07|\x1b\\|\x9c)   # OSC, DCS, SOS, PM, APC: a text up to its end mark
      | {_PARTS[2]}[0-OQ-WYZ\\`-~]        # the short ones
    )""",
    re.VERBOSE,
)
_BEGUN = re.compile(rf"\x1b(?:\[{_PARTS[0]}|{_PARTS[1]}\x1b?|{_PARTS[2]})\Z")


class Cleaner(Generic[AnyStr]):
    """Cleans one stream in pieces, also where a sequence is split. `show` gets the rest, with other controls in it."""

    def __init__(self, decode: Callable[[AnyStr, bool], str], show: Callable[[str], str]) -> None:
        self._decode: Callable[[AnyStr, bool], str] = decode
        self._show, self._held = show, ""

    def clean(self, piece: AnyStr, *, final: bool = False) -> str:
        """The text that is complete so far; with `final` all of it."""
        text = self._held + self._decode(piece, final)
        begun = None if final else _BEGUN.search(text)
        end = len(text) if begun is None else begun.start()
        self._held = text[end:]
        return self._show(_SEQUENCE.sub("", text[:end]))
