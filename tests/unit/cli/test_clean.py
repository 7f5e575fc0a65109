"""What programs print reaches a terminal as text only."""

import pytest

from corral.cli.clean import TerminalGuard, make_cleaner


def clean(*pieces: bytes) -> bytes:
    cleaner = make_cleaner()
    return "".join([*(cleaner.clean(piece) for piece in pieces), cleaner.clean(b"", final=True)]).encode()


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        (b"plain\ttext\r\n", b"plain\ttext\r\n"),
        (b"\x1b[31mred\x1b[0m", b"red"),
        (b"\x1b]0;another title\x07after", b"after"),
        (b"\x1b]52;c;cm0gLXJm\x1b\\after", b"after"),
        (b"\x1bP+q544e\x1b\\after", b"after"),
        (b"\x1bcreset", b"reset"),
        (b"\x1b(0lines", b"lines"),
        (b"bell\x07 back\x08 null\x00", b"bell back null"),
        ("c1 \x9b31m".encode(), b"c1 31m"),
        ("turned \u202etxt.exe".encode(), b"turned txt.exe"),
        (b"broken \xff utf-8", "broken \ufffd utf-8".encode()),
        ("wide 漢字 é".encode(), "wide 漢字 é".encode()),
        (b"ends with \x1b", b"ends with "),
        (b"ends with \x1b[31", b"ends with [31"),
        (b"invalid \xff in \x1b]0;a ti\xfftle\x07it", "invalid \ufffd in it".encode()),
    ],
)
def test_only_text_gets_through(hostile: bytes, shown: bytes) -> None:
    assert clean(hostile) == shown


@pytest.mark.parametrize("hostile", [b"a\x1b[31mb\x1b]0;t\x07c\x1b]52;c;AA\x1b\\d", "é\x1b[0m漢".encode()])
def test_a_sequence_cut_anywhere_is_found(hostile: bytes) -> None:
    whole = clean(hostile)
    for cut in range(len(hostile)):
        assert clean(hostile[:cut], hostile[cut:]) == whole
    assert clean(*(bytes([byte]) for byte in hostile)) == whole


def test_an_open_sequence_does_not_swallow_the_rest() -> None:
    shown = clean(b"\x1b]0;", *[b"x" * 1000] * 20, b"the end\n")
    assert shown.endswith(b"the end\n")
    assert b"\x1b" not in shown


def test_a_terminal_keeps_colours_but_not_the_clipboard() -> None:
    guard = TerminalGuard()
    pieces = [b"\x1b[31mred\x1b]5", b"2;c;cm0g", b"LXJm\x07", b"after\x1b]0;title\x07"]
    assert b"".join(guard.clean(piece) for piece in pieces) == b"\x1b[31mredafter\x1b]0;title\x07"


def test_a_terminal_knows_when_it_was_left_on_the_second_screen() -> None:
    guard = TerminalGuard()
    guard.clean(b"\x1b[?10")
    guard.clean(b"49h")
    assert guard.second_screen
    guard.clean(b"\x1b[?1049l")
    assert not guard.second_screen
