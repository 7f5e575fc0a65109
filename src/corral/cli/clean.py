"""Makes the output of sandboxed programs harmless on a terminal; files and pipes get the bytes unchanged."""

from __future__ import annotations

import codecs
import re
from functools import partial

from corral.base.cleaning import Cleaner

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def make_cleaner() -> Cleaner[bytes]:
    """For one stream: only text, newlines, tabs and carriage returns are passed on."""
    return Cleaner(codecs.getincrementaldecoder("utf-8")("replace").decode, partial(_CONTROL.sub, ""))


# A program in a real terminal may do all but set the clipboard, which could later be pasted into a shell of the host.
_CLIPBOARD = re.compile(rb"(?:\x1b\]|\xc2\x9d)52;[^\x07\x1b]*(?:\x07|\x1b\\)?")
_CLIPBOARD_BEGUN = re.compile(rb"(?:\x1b|\xc2|(?:\x1b\]|\xc2\x9d)(?:5(?:2(?:;[^\x07\x1b]*\x1b?)?)?)?)\Z")
_LONGEST_CLIPBOARD = 1 << 20
_SECOND_SCREEN = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")


class TerminalGuard:
    """For a real terminal inside: passes everything but writes to the clipboard."""

    def __init__(self) -> None:
        self._held = b""
        self._tail = b""
        self.second_screen = False
        """True if the program has left the terminal on its alternate screen."""

    def clean(self, data: bytes) -> bytes:
        """The part of this piece that is safe to show."""
        for found in _SECOND_SCREEN.finditer(self._tail + data):
            self.second_screen = found[1] == b"h"
        self._tail = (self._tail + data)[-8:]
        data = self._held + data
        self._held = b""
        if (begun := _CLIPBOARD_BEGUN.search(data)) and len(data) - begun.start() <= _LONGEST_CLIPBOARD:
            data, self._held = data[: begun.start()], data[begun.start() :]
        return _CLIPBOARD.sub(b"", data)
