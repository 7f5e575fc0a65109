"""Tables fit, units can be read, foreign text stays on its line."""

import pytest

from corral.cli.display import cut, plain, show_seconds, show_size, table, width


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (300 << 20, "300 MiB"), (None, "?"), (5 << 40, "5.0 TiB")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert show_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0042, "4.2 ms"),
        (0.25, "250 ms"),
        (1.5, "1.50 s"),
        (42, "42 s"),
        (90, "1 min 30 s"),
        (7200, "2 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_foreign_text_stays_on_its_line() -> None:
    assert plain("a\nb\tc\x1b[31md\u202ee\x7f") == "a b c?[31md?e?"


def test_a_table_fits() -> None:
    rows = [["one", "x" * 200], ["漢字", "y"]]
    lines = table(rows, headers=["NAME", "TEXT"], limit=40)
    assert all(width(line) <= 40 for line in lines)
    assert lines[1].endswith("…")
    assert lines[2] == "漢字  y"


def test_long_names_are_cut_before_a_line_wraps_and_ids_are_not() -> None:
    sandbox_id = "8a0d32be-e1fb-4cb1-92f0-dca7adc95a27"
    rows = [[sandbox_id, "n" * 60, "running", "572 ms", "labels of it"]]
    (line,) = table(rows, limit=80)
    assert width(line) == 80
    assert line.startswith(f"{sandbox_id}  nnnnn")
    assert "…  running  572 ms  labels" in line
    (narrow,) = table(rows, limit=40)
    assert sandbox_id in narrow


def test_columns_stand_below_each_other() -> None:
    assert table([["a", "1"], ["bbb", "22"]], align=["left", "right"]) == ["a     1", "bbb  22"]


def test_cut_counts_wide_characters() -> None:
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("short", 5) == "short"
