"""Removes terminal sequences from a stream of text. The output of sandboxed programs is hostile.

A sequence can set the clipboard, rename the window, hide text, or make the terminal type for the user. What is left is
shown as its reader needs it: see `cli/clean.py` for terminals and `forge/pages/text.py` for pages.
"""

from __future__ import annotations

import re

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


def remove_sequences(text: str) -> str:
    """A whole text without its sequences. The escape character of an unfinished one stays, as do other controls."""
    return _SEQUENCE.sub("", text)


class Cleaner:
    """`remove_sequences` for a stream in pieces: a sequence that is split between two pieces is still found."""

    def __init__(self) -> None:
        self._held = ""

    def clean(self, piece: str, *, final: bool = False) -> str:
        """The text that is complete so far; with `final` all of it."""
        text = self._held + piece
        begun = None if final else _BEGUN.search(text)
        end = len(text) if begun is None else begun.start()
        self._held = text[end:]
        return remove_sequences(text[:end])
