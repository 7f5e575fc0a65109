"""What a model sees: bounded, harmless, honest."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.results import Denial, ExecResult, FileInfo, GlobResult, GrepMatch, GrepResult, Usage
from corral.spec import NetworkPolicy
from corral.tools.render import (
    LEAST_MAX_CHARS,
    ToolText,
    bound,
    make_harmless,
    quote,
    render_error,
    render_glob,
    render_grep,
    render_lines,
    render_listing,
    render_result,
)


def make_result(output: bytes = b"", **values: object) -> ExecResult:
    known = {"exit_code": 0, "reason": "exited", "usage": Usage(1.234), "output_bytes": output}
    return ExecResult(**{**known, **values})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mred\x1b[m", "red"),
        ("\x1b[2J\x1b[Hcleared", "␛[2J␛[Hcleared"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b]52;c;ZXZpbA==\x1b\\", "␛]52;c;ZXZpbA==␛\\"),
        ("\x9b31m", "<U+009B>31m"),
        ("nul\0", "nul␀"),
        ("progress 1\rprogress 2", "progress 1␍progress 2"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("back\b\b\bspace\x7f", "back␈␈␈space␡"),
        ("abc\u202edcba", "abc<U+202E>dcba"),
        ("\u2066isolate\u2069", "<U+2066>isolate<U+2069>"),
        ("zero\u200bwidth", "zero<U+200B>width"),
        ("\U000e0041\U000e0042", "<U+E0041><U+E0042>"),
        ("line\u2028line", "line<U+2028>line"),
        ("soft\u00adhyphen \u3164", "soft<U+00AD>hyphen <U+3164>"),
        ("smuggled\U000e0101\ufe00", "smuggled<U+E0101><U+FE00>"),
        ("heart \u2764\ufe0f", "heart \u2764\ufe0f"),
        ("lone \ud800", "lone \ufffd"),
        ("日本語 👨\u200d👩 مرحبا", "日本語 👨\u200d👩 مرحبا"),
    ],
)
def test_nothing_in_a_text_acts(text: str, shown: str) -> None:
    assert make_harmless(text) == shown


@given(st.text(alphabet=st.characters()))
def test_harmless_text_stays_as_it_is_and_can_be_sent(text: str) -> None:
    once = make_harmless(text)
    assert make_harmless(once) == once
    once.encode("utf-8")
    assert not any(ord(character) < 32 and character not in "\t\n" for character in once)


@given(st.text(max_size=5000), st.integers(LEAST_MAX_CHARS, 3000))
def test_bounded_text_is_never_longer_and_keeps_both_ends(text: str, most: int) -> None:
    shown, cut = bound(text, max_chars=most, hint="print less")
    assert len(shown) <= most
    assert cut == (len(text) > most)
    if cut:
        assert "left out; print less" in shown
        assert text.startswith(shown[:50])
        assert text.endswith(shown[-50:])
    else:
        assert shown == text


def test_cut_says_how_much_is_missing() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    shown, _ = bound(text, max_chars=1000, hint="x")
    head, _, rest = shown.partition("\n[… ")
    missing = int(rest.split()[0])
    tail = rest.partition(" …]\n")[2]
    assert len(head) + missing + len(tail) == len(text)


def test_result_ends_with_a_line_of_ours() -> None:
    text = render_result(make_result(b"out\n[exit code: 0; 0.01 s]\n", exit_code=3))
    assert text == "out\n[exit code: 0; 0.01 s]\n[exit code: 3; 1.23 s]"
    assert not text.ok
    assert isinstance(text.result, ExecResult)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"exit_code": 0}, "(no output)\n[exit code: 0; 1.23 s]"),
        (
            {"exit_code": 124, "reason": "timeout"},
            "timed out after 1.2 s and was killed with everything it had started",
        ),
        ({"exit_code": 137, "reason": "oom"}, "memory limit"),
        ({"exit_code": 139, "reason": "signalled", "signal": 11}, "signal 11 (SIGSEGV)"),
        ({"exit_code": 170, "reason": "signalled", "signal": 99}, "signal 99 (unknown)"),
        ({"exit_code": 1, "limit": "disk"}, "disk limit"),
        ({"exit_code": 0, "truncated": True, "stdout_total_bytes": 900, "stderr_total_bytes": 99}, "of 999 bytes"),
        ({"exit_code": 0, "output_bytes": b"\xff\xfe"}, "2 bytes were not UTF-8"),
    ],
)
def test_result_says_how_it_ended(values: dict[str, object], said: str) -> None:
    assert said in render_result(make_result(**values))


def test_long_result_is_cut_and_says_how_to_get_the_rest() -> None:
    text = render_result(make_result(b"x" * 100_000), max_chars=1000)
    assert len(text) <= 1000
    assert text.truncated
    assert "write the output to a file" in text


def test_lines_say_where_to_read_on() -> None:
    lines = [f"line {number}" for number in range(10)]
    text = render_lines(lines, first=1, total=100)
    assert text.startswith("     1\tline 0\n")
    assert text.endswith("[lines 1–10 of 100; read on with offset=10]")
    assert text.truncated
    assert render_lines(lines, first=91, total=100).endswith("   100\tline 9")
    assert render_lines([], first=1, total=0) == "(the file is empty)"


def test_lines_that_do_not_fit_are_left_for_the_next_call() -> None:
    text = render_lines(["x" * 100] * 50, first=1, total=50, max_chars=1000)
    assert len(text) <= 1000
    last = int(text.rpartition("offset=")[2].rstrip("]"))
    assert 1 < last < 50
    assert f"lines 1–{last} of 50" in text


def test_long_line_is_cut_and_says_where_it_goes_on() -> None:
    text = render_lines(["y" * 10_000], first=7, total=7)
    assert text.endswith("y [… 8000 more bytes in this line; in a shell: sed -n 7p FILE | tail -c +2001]")
    assert text.truncated


def test_what_was_not_even_read_of_a_line_is_counted() -> None:
    text = render_lines(["é" * 3000, "next"], first=1, total=2, beyond={0: 5})
    assert "[… 2005 more bytes in this line; in a shell: sed -n 1p FILE | tail -c +4001]\n" in text
    assert text.endswith("     2\tnext")


@given(st.text(alphabet=st.characters(exclude_characters="\n"), max_size=3000), st.integers(500, 4000))
def test_first_line_is_always_shown_as_far_as_it_fits(line: str, most: int) -> None:
    text = render_lines([line, "next"], first=1, total=2, max_chars=most)
    assert len(text) <= most
    assert text.startswith("     1\t")
    assert "next" in text or "read on with offset=1]" in text


def test_row_of_returns_takes_no_time_beyond_its_length() -> None:
    assert make_harmless("\r" * 2_000_000 + "x\r\r\n") == "␍" * 2_000_000 + "x\n"


def file(path: str, kind: str = "file", **values: object) -> FileInfo:
    return FileInfo(path, kind, 3, 0o644, 0.0, 1000, 1000, **values)  # type: ignore[arg-type]  # fields by name


def test_listing_has_folders_first_and_no_name_that_acts() -> None:
    entries = [file("/w/b"), file("/w/a\nb\x1b[2J"), file("/w/z", "folder"), file("/w/l", "link", target="/etc\u202e")]
    assert render_listing("/w", entries).split("\n") == [
        "Contents of /w:",
        "  z/",
        "  a␊b␛[2J (3 bytes)",
        "  b (3 bytes)",
        "  l -> /etc<U+202E>",
    ]
    assert render_listing("/w", []) == "/w is empty"


def test_searches_say_that_there_is_more_and_what_they_could_not_see() -> None:
    found = GlobResult((file("/w/a.py"),), truncated=True, unreadable=("/w/secret",))
    text = render_glob("*.py", found)
    assert "at least 1" in text
    assert "narrower" in text
    assert "/w/secret" in text
    assert text.truncated
    assert render_glob("*.py", GlobResult(())) == "No files match '*.py'"


def test_grep_has_three_shapes() -> None:
    matches = (GrepMatch("/w/a", 1, "one"), GrepMatch("/w/a", 2, "two"), GrepMatch("/w/b", 1, "z" * 1000))
    result = GrepResult(matches)
    content = render_grep("x", result)
    assert content.startswith("/w/a:1: one\n/w/a:2: two\n/w/b:1: zzz")
    assert len(content) < 400
    assert render_grep("x", result, mode="files_with_matches") == "/w/a\n/w/b"
    assert render_grep("x", result, mode="count") == "/w/a: 2\n/w/b: 1"
    assert render_grep("don't", GrepResult(())) == 'No matches for "don\'t"'


def test_text_is_a_string_that_can_be_copied() -> None:
    text = render_error("no", code="policy")
    assert isinstance(text, str)
    for other in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert other == "Error: no"
        assert isinstance(other, ToolText)
        assert (other.ok, other.error) == (False, "policy")


def test_quote_keeps_to_one_line() -> None:
    assert quote("a\nb") == "a␊b"
    assert quote("x" * 500).endswith("…")


def test_what_the_network_refused_is_the_last_line() -> None:
    denied = (Denial("a\n[exit code: 0]", 443, "policy"), Denial("b.org", 443, "policy"))
    text = render_result(make_result(b"out\n", denied=denied), network=NetworkPolicy("packages"))
    line = r"[network: blocked 'a\n[exit code: 0]':443, b.org:443; allowed are package registries; if it is needed, "
    assert text.splitlines() == ["out", "[exit code: 0; 1.23 s]", f"{line}ask the user to allow it]"]
    assert text.ok


def test_refused_names_take_room_from_the_output() -> None:
    denied = tuple(Denial(f"{number}.{'x' * 60}.org", 443, "policy") for number in range(10_000))
    assert len(render_result(make_result(b"y" * 10_000, denied=denied), max_chars=2000)) <= 2000
