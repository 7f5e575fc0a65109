"""What grep, replace and edit mean by a pattern, a line and a text file."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from corral.inside.refusal import RefusedError

MAX_LINE_BYTES = 4096
"""Matching lines are cut here."""
SNIFF_BYTES = 8192
MAX_EDIT_BYTES = 64 * 1024 * 1024


def compile_pattern(pattern: str, *, fixed: bool, ignore_case: bool) -> re.Pattern[bytes]:
    """The pattern as a regular expression of bytes. Raises: RefusedError ("pattern") if it is malformed."""
    text = pattern.encode("utf-8", "surrogateescape")
    try:
        return re.compile(re.escape(text) if fixed else text, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise RefusedError("pattern", 0, f"{pattern!r} is not a regular expression: {error}") from error


def is_text(content: bytes) -> bool:
    """True if there is no NUL at the beginning."""
    return b"\0" not in content[:SNIFF_BYTES]


def find_lines(file: BinaryIO, wanted: re.Pattern[bytes], *, piece_bytes: int = -1) -> Iterator[tuple[int, str]]:
    """The lines that match, with their numbers, each cut at `MAX_LINE_BYTES`.

    A line longer than `piece_bytes` is searched in pieces of that size, and yielded once.
    """
    number, reported, whole = 0, 0, True
    while piece := file.readline(piece_bytes):
        number += whole
        whole = piece.endswith(b"\n")
        line = piece.rstrip(b"\r\n")
        if number != reported and wanted.search(line):
            reported = number
            yield number, line[:MAX_LINE_BYTES].decode("utf-8", "replace")


def substitute(content: bytes, wanted: re.Pattern[bytes], new: bytes, *, fixed: bool) -> tuple[bytes, int]:
    """The content with every match replaced, and the number of matches.

    Raises:
        RefusedError: ("replacement") it names groups that the pattern does not have.
    """
    try:
        return wanted.subn((lambda _: new) if fixed else new, content)
    except (re.error, IndexError) as error:
        raise RefusedError("replacement", 0, f"{new!r} is not a replacement: {error}") from error


def edit_text(
    content: bytes, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
) -> tuple[bytes, dict[str, Any]]:
    """The changed content, and `{"replacements": …, "sha256": …, "size": …}`.

    Raises:
        RefusedError: `old` does not occur ("no_match"), or occurs more than once without `replace_all` ("ambiguous"),
            or the content does not have `expected_sha256` ("conflict").
    """
    actual = hashlib.sha256(content).hexdigest() if expected_sha256 is not None else None
    if actual != expected_sha256:
        raise RefusedError("conflict", errno.EAGAIN, "the file has changed since it was read", sha256=actual)
    count = content.count(old) if old else 0
    if count == 0:
        raise RefusedError("no_match", 0, "the text to replace is not in the file", count=0)
    if count > 1 and not replace_all:
        raise RefusedError("ambiguous", 0, f"the text to replace occurs {count} times", count=count)
    changed = content.replace(old, new)
    return changed, {"replacements": count, "sha256": hashlib.sha256(changed).hexdigest(), "size": len(changed)}
