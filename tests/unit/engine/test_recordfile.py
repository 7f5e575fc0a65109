"""Records on disk: what is written is read, whatever was dropped, torn or refused by the disk."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.recordfile import MAX_NOTES_BYTES, DiskBudget, Frame, RecordReader, RecordWriter, parse


def read_all(folder: Path, since: int = 0) -> list[Frame]:
    reader = RecordReader(folder, since)
    frames: list[Frame] = []
    while found := reader.read():
        frames += found
    reader.close()
    return frames


def fill(writer: RecordWriter, count: int, size: int = 5000) -> list[int]:
    return [writer.append("stdout", f"{number}".encode().ljust(size)) for number in range(count)]


def test_reader_follows_the_writer_over_every_segment(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    reader = RecordReader(tmp_path / "r", 0)
    assert reader.read() == []
    offsets = []
    seen = []
    for number in range(1000):
        offsets.append(writer.append(("stdout", "stderr", "note")[number % 3], bytes(number)))
        if number % 7 == 0:
            seen += reader.read()
    while found := reader.read():
        seen += found
    assert [frame.offset for frame in seen] == offsets
    assert [len(frame.data) for frame in seen] == list(range(1000))
    assert seen[-1].next_offset == writer.next_offset


def test_oldest_is_dropped_and_notes_stay(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 500_000)
    slow = RecordReader(tmp_path / "r", 0)
    writer.append("note", b"first")
    assert [frame.data for frame in slow.read()] == [b"first"]
    fill(writer, 100)
    middle = writer.append("note", b"middle")
    offsets = fill(writer, 300)
    frames = read_all(tmp_path / "r")
    assert [frame.data for frame in frames[:2]] == [b"first", b"middle"]
    assert frames[1].offset == middle
    assert frames[2].offset == writer.first_offset > middle
    assert frames[-1].offset == offsets[-1]
    assert sum(path.stat().st_size for path in (tmp_path / "r").iterdir()) < 650_000
    rest = []
    while found := slow.read():
        rest += found
    assert rest[-1] == frames[-1]
    assert b"middle" in [frame.data for frame in rest]


def test_any_offset_leads_to_the_next_entry(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    offsets = fill(writer, 50, size=10_000)
    for offset in offsets[1:]:
        assert read_all(tmp_path / "r", offset)[0].offset == offset
        assert read_all(tmp_path / "r", offset - 5)[0].offset == offset
    assert read_all(tmp_path / "r", writer.next_offset) == []
    assert read_all(tmp_path / "r", writer.next_offset + 10**6) == []


def test_torn_frame_is_not_there_yet(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    writer.append("stdout", b"whole")
    writer.append("stdout", b"torn by a crash")
    writer.close()
    (segment,) = (tmp_path / "r").glob("*.seg")
    for cut in range(1, len(b"torn by a crash") + 24):
        with segment.open("r+b") as file:
            file.truncate(24 + 5 + 24 + 15 - cut)
        assert [frame.data for frame in read_all(tmp_path / "r")] == [b"whole"]


def test_full_disk_loses_entries_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    writer.append("stdout", b"before")
    reader = RecordReader(tmp_path / "r", 0)
    assert [frame.data for frame in reader.read()] == [b"before"]
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    writer.append("stdout", b"half of it fits")
    monkeypatch.setattr(os, "write", _no_space)
    writer.append("note", b"none of it fits")
    monkeypatch.setattr(os, "write", real)
    after = writer.append("stdout", b"after")
    found = reader.read()
    assert [(frame.data, frame.offset) for frame in found] == [(b"after", after)]
    assert [frame.data for frame in read_all(tmp_path / "r")] == [b"before", b"after"]


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_large_note_is_read_in_one_piece(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    assert writer.takes_note(3_000_000)
    writer.append("note", bytes(3_000_000))
    writer.append("stdout", b"next")
    assert [len(frame.data) for frame in read_all(tmp_path / "r")] == [3_000_000, 4]
    assert not writer.takes_note(MAX_NOTES_BYTES)


def test_deleted_record_is_an_error(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "r"), 10**6)
    writer.append("note", b"x")
    reader = RecordReader(tmp_path / "r", 0)
    writer.delete()
    assert not (tmp_path / "r").exists()
    with pytest.raises(FileNotFoundError):
        reader.read()


def test_records_of_a_sandbox_share_one_budget(tmp_path: Path) -> None:
    budget = DiskBudget(1_000_000)
    writers = [RecordWriter(str(tmp_path / str(number)), 10**7, budget) for number in range(8)]
    for writer in writers:
        for _ in range(30):
            writer.append("stdout", b"x" * 20_000)
            assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 1_000_000
    assert all(read_all(tmp_path / str(number)) for number in range(8))  # none is dropped in favour of another
    assert not writers[0].takes_note(500_000)
    for writer in writers[1:]:
        writer.delete()
    before = writers[0].stored_bytes
    for _ in range(40):
        writers[0].append("stdout", b"x" * 20_000)
    assert writers[0].stored_bytes > before + 700_000 > writers[0].first_offset  # there is room again


def test_ended_record_gives_up_its_only_part(tmp_path: Path) -> None:
    budget = DiskBudget(100_000)
    ended = RecordWriter(str(tmp_path / "ended"), 10**6, budget)
    ended.append("stdout", b"x" * 60_000)
    ended.append("end", b"{}")
    ended.close()
    RecordWriter(str(tmp_path / "next"), 10**6, budget).append("stdout", b"y" * 50_000)
    assert [frame.kind for frame in RecordReader(tmp_path / "ended", 0).notes()] == ["end"]
    assert ended.first_offset == ended.next_offset


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_without_harm(content: bytes) -> None:
    assert sum(24 + len(frame.data) for frame in parse(content)) <= len(content)


def test_a_reader_holds_little_at_a_time(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "record"), 10 * 1024 * 1024)
    for _ in range(40):
        writer.append("stdout", b"x" * 16_000)
    writer.close()
    reader, read = RecordReader(tmp_path / "record", 0), 0
    while frames := reader.read():
        held = sum(len(frame.data) for frame in frames)
        assert held <= 64 * 1024, "there may be as many readers as clients, each of them slow"
        read += held
    reader.close()
    assert read == 40 * 16_000
