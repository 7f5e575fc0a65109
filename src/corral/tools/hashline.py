"""Editing by line number and hash: a model names the lines it has seen, and a line that has changed is refused.

A line is shown as `{number}:{hash}|{content}`. The hash is the beginning of the line's MD5: it detects accidents, not
attacks. The known format has two digits, which miss one change in 256, so ours are longer.

Texts may contain surrogates for bytes that are not UTF-8, and lines may end in CRLF: both are kept by an edit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

KNOWN_HASH_LENGTH = 2
DEFAULT_HASH_LENGTH = 6
"""The length in our own tools: one change in sixteen million is missed."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """The lines to replace, from `start_line` (1 is the first) to `end_line`, with their hashes and the new content.

    Without `end_line` one line is replaced. An empty `new_content` deletes; `insert_after` replaces nothing.
    """

    start_line: int
    start_hash: str
    new_content: str
    end_line: int | None = None
    end_hash: str | None = None
    insert_after: bool = False


@dataclass(frozen=True, slots=True)
class LineEdit:
    """The result of an edit by lines: the new content or an error, and a one-line summary."""

    content: str
    error: str | None = None
    summary: str = ""


def line_hash(line: str, *, length: int = KNOWN_HASH_LENGTH) -> str:
    """The first digits of the MD5 of a line, without its ending."""
    digest = hashlib.md5(_bare(line).encode("utf-8", "surrogateescape"), usedforsecurity=False)
    return digest.hexdigest()[:length]


def format_hashline_output(
    content: str, offset: int = 0, limit: int = 2000, *, hash_length: int = KNOWN_HASH_LENGTH
) -> str:  # fmt: skip
    """The lines from `offset` (0 is the first) on, at most `limit`, tagged with their numbers and hashes."""
    lines, _ = split_lines(content)
    if offset >= len(lines) and offset > 0:
        return f"Error: Offset {offset} exceeds file length ({len(lines)} lines)"
    shown = lines[offset : offset + limit]
    text = "\n".join(
        f"{number}:{line_hash(line, length=hash_length)}|{_bare(line)}"
        for number, line in enumerate(shown, start=offset + 1)
    )
    left = len(lines) - offset - len(shown)
    return f"{text}\n\n... ({left} more lines)" if left > 0 else text


def apply_hashline_edit_with_summary(
    content: str,
    start_line: int,
    start_hash: str,
    new_content: str,
    end_line: int | None = None,
    end_hash: str | None = None,
    insert_after: bool = False,  # noqa: FBT001, FBT002 - the known signature
) -> tuple[str, str | None, str]:
    """The new content and None, or the old content and an error; and a summary."""
    change = LineChange(start_line, start_hash, new_content, end_line, end_hash, insert_after)
    done = edit_lines(content, change)
    return done.content, done.error, done.summary


def apply_hashline_edit(
    content: str,
    start_line: int,
    start_hash: str,
    new_content: str,
    end_line: int | None = None,
    end_hash: str | None = None,
    insert_after: bool = False,  # noqa: FBT001, FBT002 - the known signature
) -> tuple[str, str | None]:
    """The new content and None, or the old content and an error."""
    return apply_hashline_edit_with_summary(
        content, start_line, start_hash, new_content, end_line, end_hash, insert_after
    )[:2]


def edit_lines(content: str, change: LineChange, *, hash_length: int = KNOWN_HASH_LENGTH) -> LineEdit:
    """Change lines, if the named lines still have the given hashes.

    A hash shorter than `hash_length` is refused as a mismatch.
    """
    lines, trailing = split_lines(content)
    error = _find_fault(lines, change, hash_length)
    if error is not None:
        return LineEdit(content, error)
    first = change.start_line - 1
    last = change.end_line - 1 if change.end_line is not None else first
    ending = "\r" if lines[first].endswith("\r") else ""
    fresh = [f"{_bare(line)}{ending}" for line in split_lines(change.new_content)[0]] if change.new_content else []
    if change.insert_after:
        changed = [*lines[: first + 1], *fresh, *lines[first + 1 :]]
        summary = f"Inserted {len(fresh)} line(s) after line {change.start_line}"
    else:
        changed = [*lines[:first], *fresh, *lines[last + 1 :]]
        summary = _summarise(last - first + 1, len(fresh), change.start_line)
    text = "\n".join(changed)
    return LineEdit(f"{text}\n" if trailing and changed else text, summary=summary)


def split_lines(content: str) -> tuple[list[str], bool]:
    """The lines, and True if the last one ends in a newline. An empty text is one empty line."""
    trailing = content.endswith("\n")
    return (content[:-1] if trailing else content).split("\n"), trailing


def _find_fault(lines: list[str], change: LineChange, hash_length: int) -> str | None:
    start, end = change.start_line, change.end_line
    if change.insert_after and (end is not None or change.end_hash is not None):
        return "end_line/end_hash cannot be combined with insert_after"
    if not 1 <= start <= len(lines):
        return f"Line {start} out of range (file has {len(lines)} lines)"
    if (fault := _compare(lines, start, change.start_hash, hash_length)) is not None:
        return fault
    if end is None:
        return None
    if end < start:
        return f"end_line ({end}) must be >= start_line ({start})"
    if end > len(lines):
        return f"End line {end} out of range (file has {len(lines)} lines)"
    return _compare(lines, end, change.end_hash, hash_length) if change.end_hash is not None else None


def _compare(lines: list[str], number: int, given: str, hash_length: int) -> str | None:
    length = max(len(given), hash_length)
    actual = line_hash(lines[number - 1], length=length)
    if given.lower() == actual:
        return None
    return (
        f"Hash mismatch at line {number}: expected '{given}', got '{actual}'. "
        "File may have changed — re-read it first."
    )  # fmt: skip


def _summarise(removed: int, added: int, line: int) -> str:
    if not added:
        return f"Deleted {removed} line(s) at line {line}"
    if added == removed:
        return f"Replaced {removed} line(s) at line {line}"
    return f"Replaced {removed} line(s) with {added} line(s) at line {line}"


def _bare(line: str) -> str:
    return line.removesuffix("\r")
