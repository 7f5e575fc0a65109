"""What the report and the live page share: untrusted text and files, made safe to show."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.forge.pages.artifact import find_image_type, find_kind, show_file
from corral.forge.pages.text import clean, clean_line, cut_middle, escape, make_cleaner, show_seconds, show_size
from support.forge_runs import make_png


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;https://example.org\x1b\\link", "link"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("a\x00b\x07c\x7f", "a␀b␇c␡"),
        ("\u202eevil\u2066", "⟨U+202E⟩evil⟨U+2066⟩"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("lone \ud800 half", "lone ⟨U+D800⟩ half"),
        ("tab\tand\nline, שלום, 日本語, 👩\u200d🚀", "tab\tand\nline, שלום, 日本語, 👩\u200d🚀"),
        ("two\u2028lines", "two⟨U+2028⟩lines"),
        ("not finished \x1b]0;title", "not finished ␛]0;title"),
    ],
)
def test_text_shows_what_it_is(raw: str, seen: str) -> None:
    assert clean(raw) == seen


@given(st.text())
def test_cleaned_text_can_be_written_and_cleaned_again(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert clean(cleaned) == cleaned
    assert "\x1b" not in cleaned
    assert "<" not in escape(cleaned)


@given(st.lists(st.text(alphabet="ab\r\n\x1b[]0;31m\x07\\", max_size=8), max_size=12))
def test_a_stream_in_pieces_is_cleaned_as_the_whole(pieces: list[str]) -> None:
    cleaner = make_cleaner()
    assert "".join(map(cleaner.clean, pieces)) + cleaner.clean("", final=True) == clean("".join(pieces))


def test_a_sequence_that_never_ends_holds_nothing_back_for_ever() -> None:
    cleaner = make_cleaner()
    seen = sum(len(cleaner.clean(piece)) for piece in ["\x1b]", *["x" * 1000] * 50])
    assert seen > 40_000


def test_names_are_one_line_and_bounded() -> None:
    assert clean_line("a\nb\r\tc") == "a b c"
    assert len(clean_line("x" * 10_000_000, limit=50)) == 50


def test_the_middle_is_cut_and_said() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    cut = cut_middle(text, limit=1000)
    assert cut.startswith("line 0\n")
    assert cut.endswith("line 999\n")
    head, _, rest = cut.partition("\n\n… ")
    count, _, tail = rest.partition(" characters left out …\n\n")
    assert int(count) == len(text) - len(head) - len(tail)
    assert len(cut) < 1100
    assert cut_middle("short", limit=1000) == "short"


def test_numbers_for_people() -> None:
    assert [show_size(size) for size in (None, 0, 1023, 1024, 5 * 1024**3)] == [
        "–",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
    ]
    seconds = [show_seconds(value) for value in (None, 0.0042, 0.25, 1.5, 42.0, 125.0, 7200.0)]
    assert seconds == ["–", "4.2 ms", "250 ms", "1.50 s", "42.0 s", "2 min 05 s", "2 h 00 min"]


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "/etc/passwd",
        "a/../../secret",
        "",
        ".",
        "a//b",
        "nul\0",
        "link",
        "folder/link",
        "fifo",
        "way/secret",
    ],
)
def test_only_regular_files_below_the_folder_are_opened(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder" / "link").symlink_to(tmp_path / "secret")
    (folder / "way").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    shown = show_file(folder, name, text_bytes=100, image_bytes=100)
    assert "secret" not in shown.text
    assert "could not be read" in shown.note


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("text")
    os.mkfifo(tmp_path / "fifo")
    own = Path("/proc/self/fd")
    before = len(list(own.iterdir()))
    for name in ("a/b", "a/c", "fifo", "a"):
        for _ in range(50):
            show_file(tmp_path, name, text_bytes=10, image_bytes=10)
    assert len(list(own.iterdir())) < before + 40  # other threads open and close some, too


def test_kinds_follow_from_the_bytes_and_never_from_the_name() -> None:
    assert find_image_type(make_png()) == "image/png"
    assert find_image_type(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert find_image_type(b"GIF89a...") == "image/gif"
    assert find_image_type(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert find_image_type(b"<svg onload=alert(1)>") is None
    assert find_kind(b"<!doctype html><script>") == "text"
    assert find_kind(b"a\0b") == "binary"
    assert find_kind("ä".encode() * 4096) == "text"  # the last one is cut in two
    assert find_kind(b"x" + "ä".encode() * 4096) == "text"
    assert find_kind(b"\xff\xfe\xfd") == "binary"


def test_big_files_are_shown_in_part_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_bytes(b"line\n" * 100_000)
    (tmp_path / "big.png").write_bytes(make_png() + b"\0" * 100_000)
    (tmp_path / "big.bin").write_bytes(b"\0" * 100_000)
    text = show_file(tmp_path, "big.txt", text_bytes=1000, image_bytes=1000)
    assert (text.kind, len(text.text), text.note) == ("text", 1000, "the first 1000 B of 488 KiB")
    image = show_file(tmp_path, "big.png", text_bytes=1000, image_bytes=1000)
    assert (image.kind, image.data) == ("binary", b"")
    assert "too big" in image.note
    assert "512 of 100000 bytes" in show_file(tmp_path, "big.bin", text_bytes=1000, image_bytes=1000).note
