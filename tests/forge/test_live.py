"""What is shown while a contest runs, from events alone."""

import io
import os

import pytest

from corral.cli.forge.live import LiveTable, PlainLines
from corral.forge.events import ForgeEvent


def start(count: int, **more: object) -> ForgeEvent:
    candidates = [{"id": f"c{number}", "name": "", "description": ""} for number in range(count)]
    return ForgeEvent("run-started", 0.0, data={"candidates": candidates, "repeat": 1, **more})


def tell(kind: str, candidate: str = "c0", at: float = 1.0, **data: object) -> ForgeEvent:
    return ForgeEvent(kind, at, candidate, 1, data)


@pytest.fixture(autouse=True)
def small_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((60, 12)))


def test_table_follows_a_candidate_through_its_phases() -> None:
    live = LiveTable(io.StringIO())
    live(start(2))
    assert "waiting" in live.lines()[1]
    live(tell("phase", phase="run"))
    live(tell("output", stream="stdout", text="half a "))
    live(tell("output", stream="stdout", text="line\nand more\n"))
    live(tell("meter", cpu_seconds=0.5, memory_bytes=3 * 1024 * 1024))
    row = live.lines()[1]
    assert row.startswith("c0 ")
    assert " run " in row
    assert "500 ms" in row
    assert "3.0 MiB" in row
    assert row.endswith("and more")
    live(tell("attempt-ended", outcome="crashed", reason="exit code 1", seconds=2.0, cpu_seconds=1.0))
    assert "crashed" in live.lines()[1]
    assert live.lines()[1].endswith("exit code 1")
    assert live.lines()[-1].startswith("1 of 2 done")


def test_table_is_never_higher_or_wider_than_the_terminal() -> None:
    live = LiveTable(io.StringIO())
    live(start(200))
    live(tell("phase", "c150", phase="run"))
    live(tell("output", "c150", stream="stdout", text="宽" * 5000))
    lines = live.lines()
    assert len(lines) <= 11
    assert lines[1].startswith("c150 "), "who does something is shown first"
    assert "192 not shown" in lines[-1]
    assert all(len(line) <= 59 for line in lines)


def test_nothing_that_a_terminal_would_obey() -> None:
    out = io.StringIO()
    live, plain = LiveTable(io.StringIO()), PlainLines(out)
    for view in (live, plain):
        view(start(1))
        view(tell("output", stream="stdout", text="\x1b[2J\x07\u202eevil\n"))
        view(tell("attempt-ended", outcome="crashed", reason="\x1b]0;x\x07", seconds=1.0))
    assert "\x1b" not in "".join(live.lines())
    assert "\x1b" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_plain_lines_are_whole_lines_and_streams_stay_apart() -> None:
    out = io.StringIO()
    plain = PlainLines(out)
    plain(start(1))
    plain(tell("output", stream="stdout", text="one\ntw"))
    plain(tell("output", stream="stderr", text="other\n"))
    plain(tell("output", stream="stdout", text="o\nrest"))
    plain(tell("retry", reason="no sandbox"))
    plain(tell("output-cut", bytes=9))
    plain(tell("attempt-ended", outcome="ok", reason="", seconds=0.5))
    plain(ForgeEvent("warning", 2.0, data={"text": "careful"}))
    assert out.getvalue().splitlines() == [
        "[c0] one", "[c0] other", "[c0] two", "[c0] retrying: no sandbox",
        "[c0] … further output is not shown", "[c0] rest", "[c0] ok in 500 ms", "warning: careful",
    ]  # fmt: skip


def test_rounds_are_told_apart() -> None:
    out = io.StringIO()
    plain, live = PlainLines(out), LiveTable(io.StringIO())
    for view in (plain, live):
        view(start(1, repeat=3))
        view(ForgeEvent("phase", 1.0, "c0", 2, {"phase": "run"}))
        view(ForgeEvent("output", 1.0, "c0", 2, {"stream": "stdout", "text": "said\n"}))
    assert out.getvalue() == "[c0 2] said\n"
    assert "run 0/3" in live.lines()[1]


def test_stream_that_has_gone_is_no_reason_to_stop() -> None:
    out = io.StringIO()
    out.close()
    for view in (LiveTable(out), PlainLines(out)):
        view(start(1))
        view(tell("output", stream="stdout", text="said\n"))
