"""Editing by line number and hash: the known format and messages, and what they did not survive."""

import pytest

from corral.tools.hashline import LineChange, apply_hashline_edit, edit_lines, format_hashline_output, line_hash

A, B, C = (line_hash(letter) for letter in "abc")


def test_the_known_hash_has_two_digits_of_md5() -> None:
    assert [line_hash(text) for text in ("a", "b", "", "hit")] == ["0c", "92", "d4", "f0"]
    assert line_hash("a", length=6) == "0cc175"


@pytest.mark.parametrize(
    ("content", "offset", "limit", "shown"),
    [
        ("a\nb\nc\n", 0, 2000, "1:0c|a\n2:92|b\n3:4a|c"),
        ("a\nb\nc\n", 0, 2, "1:0c|a\n2:92|b\n\n... (1 more lines)"),
        ("a\nb\nc", 2, 9, "3:4a|c"),
        ("", 0, 2, "1:d4|"),
        ("a", 5, 2, "Error: Offset 5 exceeds file length (1 lines)"),
    ],
)
def test_format(content: str, offset: int, limit: int, shown: str) -> None:
    assert format_hashline_output(content, offset, limit) == shown


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ("a\nb\nc\n", (2, B, "X"), "a\nX\nc\n"),
        ("a\nb\nc", (3, C, "X"), "a\nb\nX"),
        ("a\nb\nc\n", (2, B, ""), "a\nc\n"),
        ("a\nb\nc\n", (1, A, "X\nY", 2, B), "X\nY\nc\n"),
        ("a\nb\nc\n", (1, A, "X", 2), "X\nc\n"),
        ("a\nb\nc\n", (1, A, "X", None, None, True), "a\nX\nb\nc\n"),
        ("a\nb\nc\n", (1, A, "X\n"), "X\nb\nc\n"),
        ("a\r\nb\r\n", (1, A, "q\nr"), "q\r\nr\r\nb\r\n"),
        ("a\n\udce9b\n", (1, A, "X"), "X\n\udce9b\n"),
    ],
)
def test_edits(content: str, arguments: tuple[object, ...], expected: str) -> None:
    assert apply_hashline_edit(content, *arguments) == (expected, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            (2, "zz", "X"),
            "Hash mismatch at line 2: expected 'zz', got '92'. File may have changed — re-read it first.",
        ),
        ((9, A, "X"), "Line 9 out of range (file has 3 lines)"),
        ((0, A, "X"), "Line 0 out of range (file has 3 lines)"),
        ((2, B, "X", 1, A), "end_line (1) must be >= start_line (2)"),
        ((1, A, "X", 30, C), "End line 30 out of range (file has 3 lines)"),
        (
            (1, A, "X", 3, "zz"),
            "Hash mismatch at line 3: expected 'zz', got '4a'. File may have changed — re-read it first.",
        ),
        ((1, A, "X", 2, None, True), "end_line/end_hash cannot be combined with insert_after"),
    ],
)
def test_errors_leave_the_content_alone(arguments: tuple[object, ...], error: str) -> None:
    assert apply_hashline_edit("a\nb\nc\n", *arguments) == ("a\nb\nc\n", error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new", "options", "summary"),
    [
        ("X", {}, "Replaced 1 line(s) at line 1"),
        ("X\nY", {}, "Replaced 1 line(s) with 2 line(s) at line 1"),
        ("", {}, "Deleted 1 line(s) at line 1"),
        ("X", {"end_line": 2, "end_hash": B}, "Replaced 2 line(s) with 1 line(s) at line 1"),
        ("X\nY", {"insert_after": True}, "Inserted 2 line(s) after line 1"),
    ],
)
def test_summaries(new: str, options: dict[str, object], summary: str) -> None:
    assert edit_lines("a\nb\nc\n", LineChange(1, A, new, **options)).summary == summary  # type: ignore[arg-type]


def test_a_hash_shorter_than_asked_for_proves_nothing() -> None:
    assert edit_lines("a\n", LineChange(1, "0c", "X"), hash_length=6).error is not None
    assert edit_lines("a\n", LineChange(1, "0CC175", "X"), hash_length=6).error is None
