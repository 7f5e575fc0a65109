"""Lines from output, and settings from `.env`, with any content."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.forge.dotenv import parse_lines, read_dotenv
from corral.forge.output import MAX_LINE_CHARACTERS, LineSplitter
from corral.forge.service import NAMES


def test_lines_come_when_they_are_complete_and_streams_stay_apart() -> None:
    lines = LineSplitter()
    assert lines.feed("stdout", "one\ntw") == ["one"]
    assert lines.feed("stderr", "other\r\n") == ["other"]
    assert lines.feed("stdout", "o ä\nrest") == ["two ä"]
    assert lines.finish() == ["rest"]


def test_line_without_end_comes_in_parts() -> None:
    lines = LineSplitter()
    found = lines.feed("stdout", "x" * 10 * MAX_LINE_CHARACTERS)
    assert {len(line) for line in [*found, *lines.finish()]} == {MAX_LINE_CHARACTERS}


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=40)), max_size=20))
def test_nothing_is_lost_or_made_up(pieces: list[tuple[str, str]]) -> None:
    lines = LineSplitter()
    found = [line for stream, data in pieces for line in lines.feed(stream, data)] + lines.finish()
    for stream in ("stdout", "stderr"):
        text = "".join(data for name, data in pieces if name == stream)
        for line in text.replace("\r\n", "\n").split("\n"):
            assert not line.strip("\r\n") or any(line.rstrip("\r") in each for each in found)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"), ("A = 1 ", "1"), ("export A=1", "1"), ("A=", ""), ("A='x # y'", "x # y"), ('A="x"', "x"),
        ("A=x # y", "x"), ("A=x#y", "x#y"), ("A=#y", ""), ("A='x' # y", "x"), ("A='x", "'x"), ("A=a=b", "a=b"),
        ("A", None),
    ],
)  # fmt: skip
def test_line_of_an_env_file(line: str, value: str | None) -> None:
    assert list(parse_lines(f"# comment\n\n{line}\n")) == [(3, "A", value)]


def test_env_file_that_is_no_text_or_no_file_is_passed_over(tmp_path: Path) -> None:
    assert read_dotenv(NAMES, folder=tmp_path) == {}
    (tmp_path / ".env").write_bytes(b"\xff\xfe\nDAYTONA_TARGET=x\n")
    assert read_dotenv(NAMES, folder=tmp_path) == {"DAYTONA_TARGET": "x"}
    (tmp_path / "other" / ".env").mkdir(parents=True)
    assert read_dotenv(NAMES, folder=tmp_path / "other") == {}
