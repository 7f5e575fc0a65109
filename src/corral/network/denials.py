"""The file in which a gate writes what it refused, before it answers the program, and how the host side reads it.

A first line has counters; after it come slots of a fixed size, written in turn, so that the file is bounded and the
oldest are forgotten. Each attempt has a number, counted from 1. Repeats of the last one share its slot. One process
writes at a time; any number may read meanwhile: what is half written does not parse, and is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass
from typing import Final

from corral.inside.nolinks import opened

RULES: Final = frozenset(
    ("policy", "private", "no network", "connections", "rate", "bytes", "tls", "host", "secret", "protocol")
)
MAX_HOST_CHARACTERS: Final = 253
_SLOT_BYTES: Final = 512
_SLOTS: Final = 256
_HEAD: Final = "corral-denials 1 {count:020d} {transferred:020d}"
_MOST: Final = 10**18

FileOrPath = int | str | os.PathLike[str]


@dataclass(frozen=True)
class DeniedAttempt:
    """As `corral.results.Denial`, with the time (of Unix) of the last of them."""

    host: str
    port: int | None
    rule: str
    count: int
    time: float


class DenialLog:
    """The writing side, on a descriptor that is open for reading and writing. It is not closed here."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.count, self.transferred = _read_head(descriptor)
        self._last: tuple[str, int | None, str] | None = None
        self._repeats = 0
        self._slot = _find_last_slot(descriptor, self.count)

    def add(self, host: str, port: int | None, rule: str) -> None:
        """Write down an attempt that was refused. A full disk loses it, but not the count."""
        attempt = (show_host(host), port, rule)
        if attempt == self._last:
            self._repeats += 1
        else:
            self._last, self._repeats = attempt, 1
            self._slot = (self._slot + 1) % _SLOTS
        self.count += 1
        record = {"n": self.count, "c": self._repeats, "t": int(time.time()), "h": attempt[0], "p": port, "r": rule}
        line = json.dumps(record, separators=(",", ":")).encode("ascii")
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, line.ljust(_SLOT_BYTES - 1) + b"\n", (self._slot + 1) * _SLOT_BYTES)
        self._write_head()

    def save_transferred(self, size: int) -> None:
        """Write down how many bytes have passed, for the next gate of this sandbox."""
        if size != self.transferred:
            self.transferred = size
            self._write_head()

    def _write_head(self) -> None:
        head = _HEAD.format(count=self.count, transferred=self.transferred).encode("ascii")
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, head.ljust(_SLOT_BYTES - 1) + b"\n", 0)


def count(file: FileOrPath) -> int:
    """How many attempts were refused so far; 0 if there is no such file. Reads a few bytes."""
    if isinstance(file, int):
        return _read_head(file)[0]
    descriptor = _open(file)
    if descriptor is None:
        return 0
    with opened(descriptor):
        return _read_head(descriptor)[0]


def read_since(file: FileOrPath, before: int) -> tuple[DeniedAttempt, ...]:
    """The attempts after the first `before` that were refused, in their order, repeats counted; without those that are
    forgotten."""
    descriptor = file if isinstance(file, int) else _open(file)
    if descriptor is None:
        return ()
    try:
        data = os.pread(descriptor, (_SLOTS + 1) * _SLOT_BYTES, 0)
    except OSError:
        return ()
    finally:
        if not isinstance(file, int):
            os.close(descriptor)
    found = sorted(_read_slots(data, before), key=lambda pair: pair[0])
    return tuple(attempt for _, attempt in found)


def show_host(host: str) -> str:
    """A host as it may be printed: visible ASCII, bounded. A name from inside is anybody's text."""
    shown = "".join(character if "!" <= character <= "~" and character not in '"\\' else "?" for character in host)
    return shown[:MAX_HOST_CHARACTERS] or "?"


def _open(path: str | os.PathLike[str]) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def _read_head(descriptor: int) -> tuple[int, int]:
    """The counters; zeros if the file is new or not readable."""
    try:
        words = os.pread(descriptor, 64, 0).split()
        if words[:2] != [b"corral-denials", b"1"] or not all(word.isdigit() for word in words[2:4]):
            return 0, 0
        return min(int(words[2]), _MOST), min(int(words[3]), _MOST)
    except (OSError, IndexError):
        return 0, 0


def _find_last_slot(descriptor: int, number: int) -> int:
    """The slot that was written last; the one before the first if there is none."""
    try:
        data = os.pread(descriptor, (_SLOTS + 1) * _SLOT_BYTES, 0)
    except OSError:
        return -1
    for slot in range(_SLOTS):
        record = _read_record(data[(slot + 1) * _SLOT_BYTES : (slot + 2) * _SLOT_BYTES])
        if record is not None and record[0] == number:
            return slot
    return -1


def _read_slots(data: bytes, before: int) -> list[tuple[int, DeniedAttempt]]:
    found = []
    for start in range(_SLOT_BYTES, len(data), _SLOT_BYTES):
        record = _read_record(data[start : start + _SLOT_BYTES])
        if record is None or record[0] <= before:
            continue
        number, attempt = record
        if number - attempt.count < before:  # some of its repeats are older
            attempt = DeniedAttempt(attempt.host, attempt.port, attempt.rule, number - before, attempt.time)
        found.append((number, attempt))
    return found


def _read_record(line: bytes) -> tuple[int, DeniedAttempt] | None:
    """One slot; None if it is empty, half written or not ours."""
    if not line.endswith(b"\n") or not line.startswith(b"{"):
        return None
    try:
        raw = json.loads(line)
        number, repeats, moment, port = raw["n"], raw["c"], raw["t"], raw["p"]
        host, rule = raw["h"], raw["r"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    numbers = (number, repeats, moment) if port is None else (number, repeats, moment, port)
    if not all(type(each) is int and 0 <= each <= _MOST for each in numbers) or not 1 <= repeats <= number:
        return None
    if not isinstance(host, str) or rule not in RULES or (port is not None and port > 65535):
        return None
    return number, DeniedAttempt(show_host(host), port, rule, repeats, float(moment))
