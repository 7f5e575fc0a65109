"""The log of a program that runs on by itself: bounded, in order, and honest about how it ended."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.engine import keptlog, wire
from corral.engine.errors import ExhaustedError
from corral.engine.keptlog import KeptLog, make_room
from corral.engine.recordfile import DiskBudget
from support.leftovers import nothing_left_open


@dataclass(slots=True)
class Kept:
    """A log with a made-up program on the other side."""

    log: KeptLog
    stem: Path
    writer: int
    init: socket.socket

    def print(self, data: bytes) -> None:
        while data:
            written = os.write(self.writer, data[: 1 << 16])
            data = data[written:]
            assert self.log.take()

    def about(self) -> dict[str, object]:
        read: dict[str, object] = json.loads(Path(f"{self.stem}.json").read_text())
        return read


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    reader, writer = os.pipe()
    ours, init = wire.make_pair()
    log = KeptLog(str(tmp_path / "1"), reader, ours, ["sh", "-c", "x"])
    with ours, init:
        yield Kept(log, tmp_path / "1", writer, init)
        os.close(writer)
        log.close_reader()


def test_output_is_kept_in_order(kept: Kept) -> None:
    kept.print(b"one\n")
    kept.print(b"\xff\0two\n")
    assert Path(f"{kept.stem}.log").read_bytes() == b"one\n\xff\0two\n"


def test_log_is_for_its_owner_only(kept: Kept) -> None:
    assert Path(f"{kept.stem}.log").stat().st_mode & 0o777 == 0o600


def test_long_log_turns_over_and_never_grows_beyond_twice_the_limit(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keptlog, "MAX_LOG_BYTES", 200_000)
    for number in range(100):
        kept.print(b"%06d\n" % number * 2000)
    now, before = Path(f"{kept.stem}.log"), Path(f"{kept.stem}.log.1")
    assert now.stat().st_size <= 200_000
    assert before.stat().st_size <= 200_000
    together = before.read_bytes() + now.read_bytes()
    assert together.endswith(b"000099\n" * 2000)
    numbers = [int(line) for line in together.split(b"\n")[1:-1]]
    assert numbers == sorted(numbers)
    assert sorted(path.name for path in kept.stem.parent.iterdir()) == ["1.json", "1.log", "1.log.1"]


def test_end_of_output_is_noticed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    ours, init = wire.make_pair()
    with ours, init:
        log = KeptLog(str(tmp_path / "1"), reader, ours, [])
        os.close(writer)
        assert not log.take()
        log.close_reader()


def test_running_program_says_so(kept: Kept) -> None:
    wire.send(kept.init, {"started": 7})
    assert not kept.log.hear()
    assert kept.about()["state"] == "running"
    assert kept.about()["pid"] == 7
    assert not kept.log.ended


def test_end_is_written_down(kept: Kept) -> None:
    wire.send(kept.init, {"ended": True, "code": 3, "reason": "exited"})
    assert kept.log.hear()
    assert kept.log.ended
    assert (kept.about()["state"], kept.about()["exit_code"]) == ("ended", 3)


def test_program_that_could_not_be_started_is_failed(kept: Kept) -> None:
    wire.send(kept.init, {"error": "cwd", "text": "no such folder"})
    assert kept.log.hear()
    assert (kept.about()["state"], kept.about()["text"]) == ("failed", "no such folder")


def test_sandbox_that_ends_leaves_the_program_gone(kept: Kept) -> None:
    kept.init.close()
    assert kept.log.hear()
    assert kept.about()["state"] == "gone"


@pytest.mark.parametrize("packet", [b"I{", b"X", b"I[]", b"I" + b" " * 70_000])
def test_garbage_from_inside_counts_as_gone(kept: Kept, packet: bytes) -> None:
    kept.init.send(packet)
    assert kept.log.hear()
    assert kept.about()["state"] == "gone"


def test_descriptors_from_inside_are_closed(kept: Kept) -> None:
    with nothing_left_open():
        wire.send(kept.init, {"started": 7}, (0, 1))
        kept.log.hear()


def test_folder_that_vanished_does_not_stop_the_program(kept: Kept) -> None:
    for path in kept.stem.parent.iterdir():
        path.unlink()
    kept.print(b"still read\n")
    wire.send(kept.init, {"ended": True, "code": 0, "reason": "exited"})
    assert kept.log.hear()


def test_so_many_logs_are_kept_and_of_those_that_ended_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keptlog, "MAX_LOGS", 2)
    budget = DiskBudget(1 << 20)
    logs: dict[int, KeptLog] = {}
    for number in range(1, 5):
        make_room(logs)
        reader, writer = os.pipe()
        ours, init = wire.make_pair()
        logs[number] = KeptLog(str(tmp_path / str(number)), reader, ours, ["true"], budget)
        os.write(writer, b"said")
        assert logs[number].take()
        os.close(writer)
        if number > 1:  # the first runs on
            init.close()
            assert logs[number].hear()
            logs[number].close_reader()
        ours.close()
        init.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.json", "1.log", "4.json", "4.log"]
    logs[4].ended = False
    with pytest.raises(ExhaustedError, match="2 background programs"):
        make_room(logs)
    logs[1].close_reader()
