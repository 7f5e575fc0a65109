"""Terminal sequences are removed alike for terminals and pages, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.cleaning import Cleaner
from corral.cli.clean import make_cleaner as make_for_terminal
from corral.forge.pages.text import make_cleaner as make_for_page


def make_cleaner() -> Cleaner[str]:
    return Cleaner(lambda piece, final: piece, str)


def clean(*pieces: str) -> str:
    cleaner = make_cleaner()
    return "".join([*map(cleaner.clean, pieces), cleaner.clean("", final=True)])


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("a\x1bPq", "aPq"),
        ("a\x1b]0;x\ny\x07b", "ab"),
        ("all done\x1b]0;" + "x" * 290, "all done]0;" + "x" * 290),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;" + "x" * 5000 + "\x07.", "]0;" + "x" * 5000 + "."),
        ("\x1b\x1b[m[31m", "[31m"),
    ],
)
def test_a_terminal_and_a_page_show_the_same_text(raw: str, seen: str) -> None:
    page, terminal = make_for_page(), make_for_terminal()
    shown = page.clean(raw) + page.clean("", final=True)
    assert shown.replace("␛", "").replace("␇", "") == seen  # a page shows pictures of what is left, a terminal nothing
    assert terminal.clean(raw.encode()) + terminal.clean(b"", final=True) == seen


@given(st.lists(st.text(alphabet="ab\n\x1b[]P(0;31m\x07\x9c\\", max_size=8), max_size=12))
def test_a_stream_in_pieces_is_cleaned_as_the_whole(pieces: list[str]) -> None:
    assert clean(*pieces) == clean("".join(pieces))


@pytest.mark.parametrize("count", [4095, 4096, 4097])
@pytest.mark.parametrize("opened", ["\x1b[", "\x1b]", "\x1b("])
def test_where_a_stream_is_cut_does_not_change_which_sequence_is_too_long(opened: str, count: int) -> None:
    filler = {"\x1b[": "1", "\x1b]": "x", "\x1b(": " "}[opened]
    text = f"{opened}{filler * count}{'0' if opened.endswith('(') else 'm'}\x07 after"
    whole = clean(text)
    assert all(clean(text[:cut], text[cut:]) == whole for cut in range(0, len(text), 97))
    assert clean(*text) == whole


def test_a_sequence_that_never_ends_takes_no_memory() -> None:
    cleaner = make_cleaner()
    seen = sum(len(cleaner.clean("x" * 1000)) for _ in ["", cleaner.clean("\x1b]")] * 20)
    assert seen > 35_000
