"""Separates the driver's events from what the code prints. All of it is hostile, so it is bounded before it is parsed.

A frame is the mark, a number, `+` (more follows) or `.` (the last), JSON, and the end of the line.
"""

from __future__ import annotations

import json
import math
from typing import Any

from corral.inside.jsonbounds import count_values

_MAX_FRAME_BYTES = 4096
_SURROGATES = (b"\\ud", b"\\uD", b"\xed")
"""A JSON text without any of these has no surrogates."""
_MAX_NUMBER_BYTES = 20
MAX_ITEMS = 100_000
"""Values in one event or chart; a chart of 20,000 points has 60,000."""
MAX_EVENT_BYTES = 12 * 1024 * 1024
"""The driver sends at most two thirds of that."""


class FrameReader:
    """One stream: bytes in, pieces of text and events out, in order."""

    def __init__(self, token: str) -> None:
        self._mark = b"\x1e" + token.encode("ascii") + b":"
        self._held = b""
        self._number = b""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | dict[str, Any]]:
        """Read a piece. What may be the beginning of a frame is held back until the rest arrives."""
        buffer = self._held + data
        found: list[bytes | dict[str, Any]] = []
        start = 0
        while (at := buffer.find(self._mark, start)) >= 0:
            if at > start:
                found.append(buffer[start:at])
            end = buffer.find(b"\n", at, at + _MAX_FRAME_BYTES)
            if end < 0 and len(buffer) - at < _MAX_FRAME_BYTES:
                self._held = buffer[at:]
                return found
            if end < 0:  # the mark without a frame: the code has printed it
                found.append(self._mark)
                start = at + len(self._mark)
                continue
            event = self._take(buffer[at + len(self._mark) : end])
            if event is not None:
                found.append(event)
            start = end + 1
        keep = self._beginning_of_mark(buffer, start)
        if keep > start:
            found.append(buffer[start:keep])
        self._held = buffer[keep:]
        return found

    def reset(self) -> int:
        """Output is missing here: drop the incomplete frame; returns how many bytes were dropped."""
        given_up = len(self._held)
        self._held = b""
        self._parts, self._size, self._number = [], 0, b""
        return given_up

    def flush(self) -> bytes:
        """The bytes that were held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _beginning_of_mark(self, buffer: bytes, start: int) -> int:
        """Where an incomplete mark begins at the end of the buffer; the end of the buffer without one."""
        for size in range(min(len(self._mark) - 1, len(buffer) - start), 0, -1):
            if buffer.endswith(self._mark[:size]):
                return len(buffer) - size
        return len(buffer)

    def _take(self, frame: bytes) -> dict[str, Any] | None:
        digits = 0
        while digits < len(frame) and digits < _MAX_NUMBER_BYTES and frame[digits : digits + 1].isdigit():
            digits += 1
        number, kind, payload = frame[:digits], frame[digits : digits + 1], frame[digits + 1 :]
        if not number or kind not in (b"+", b"."):
            return None
        if number != self._number:
            self._number, self._parts, self._size = number, [], 0
        self._size += len(payload)
        if self._size <= MAX_EVENT_BYTES:
            self._parts.append(payload)
        else:
            self._parts.clear()  # too large: the rest is dropped, and the result is not JSON
        if kind == b"+":
            return None
        data = b"".join(self._parts)
        self._number, self._parts, self._size = b"", [], 0
        event = parse_json(data)
        return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def parse_json(data: bytes | str) -> Any:
    """Parse hostile JSON to values that every encoder accepts: no NaN, no infinity, no lone surrogates.

    None if it is not JSON, or has too many values.
    """
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if count_values(data, most=MAX_ITEMS) > MAX_ITEMS:
        return None
    try:
        # As UTF-8: the parser would also accept UTF-16, in which nothing was counted.
        value = json.loads(data.decode("utf-8", "surrogatepass"), parse_constant=lambda _: None, parse_float=_finite)
        if any(sign in data for sign in _SURROGATES):
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                value = json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
