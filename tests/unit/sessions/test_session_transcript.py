"""What a session's record says, however its bytes are cut."""

import json

from hypothesis import given
from hypothesis import strategies as st

from corral.results import StreamName
from corral.sessions.record import Entry, EntryKind
from corral.sessions.transcript import KEPT_BYTES, Demux, Transcript

NONCE = "0123456789abcdef"


def mark(text: str) -> bytes:
    return f"\x1e{NONCE} {text}\x1e".encode()


class Record:
    """Entries, one after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._next = 0

    def add(self, kind: EntryKind, data: bytes) -> None:
        self.entries.append(Entry(self._next, kind, data, 0.0, self._next + len(data) + 1))
        self._next += len(data) + 1

    def note(self, **content: object) -> None:
        self.add("note", json.dumps(content).encode())

    def ask(self, command_id: str) -> None:
        self.note(command={"id": command_id, "text": f"text of {command_id}", "input": False, "echo": False}, ended=[])

    def both(self, text: str) -> None:
        self.add("stdout", mark(text))
        self.add("stderr", mark(text))

    def lose(self, size: int) -> None:
        self._next += size

    def transcript(self) -> Transcript:
        transcript = Transcript()
        for entry in self.entries:
            transcript.feed(entry)
            transcript.feed(entry)  # a second time does no harm
        return transcript


def opened() -> Record:
    record = Record()
    record.note(session={"nonce": NONCE, "folder": "/tmp/x", "user": None})
    return record


@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"\x1e", f"\x1e{NONCE}".encode(), f"\x1e{NONCE} q\x1e".encode()])
    ),
    st.integers(1, 30),
)
def test_marks_are_found_wherever_the_stream_is_cut(pieces: list[bytes], step: int) -> None:
    output = b"".join(pieces).replace(mark("b"), b"")
    stream = b"before" + mark("b one") + output + mark("e one 7") + b"after"
    demux = Demux.with_nonce(NONCE)
    found = [piece for at in range(0, len(stream), step) for piece in demux.feed("stdout", stream[at : at + step])]
    found += demux.flush()
    assert [piece.kind for piece in found if piece.kind != "output"] == ["begin", "end"]
    assert b"".join(piece.data for piece in found if piece.command == "one") == output + b"after"
    assert b"".join(piece.data for piece in found if piece.command is None) == b"before"
    assert next(piece.number for piece in found if piece.kind == "end") == 7


def test_command_ends_when_both_streams_have_said_so() -> None:
    record = opened()
    record.ask("one")
    record.both("b one")
    assert (record.transcript().commands["one"].begun, record.transcript().commands["one"].ended) == (True, False)
    record.add("stdout", mark("e one 3"))
    assert not record.transcript().commands["one"].ended
    record.add("stderr", mark("e one 3"))
    told = record.transcript().commands["one"]
    assert (told.text, told.ended, told.exit_code) == ("text of one", True, 3)
    assert record.transcript().unsealed() == [("one", 3)]


def test_noted_end_outlives_dropped_output() -> None:
    record = opened()
    record.ask("one")
    record.lose(1000)
    record.note(command={"id": "two", "text": "t", "input": False, "echo": False}, ended=[["one", 4]])
    transcript = record.transcript()
    assert (transcript.commands["one"].exit_code, transcript.unsealed()) == (4, [])
    assert not transcript.commands["two"].begun


def test_end_that_was_dropped_is_told_by_the_next_command() -> None:
    record = opened()
    record.ask("one")
    record.both("b one")
    record.ask("two")
    record.lose(1000)
    record.both("e two 0")
    commands = record.transcript().commands
    assert (commands["one"].exit_code, commands["two"].exit_code) == (-1, 0)


def test_mark_of_stderr_that_was_dropped_is_not_waited_for() -> None:
    record = opened()
    record.ask("one")
    record.both("b one")
    record.lose(1000)
    record.add("stdout", b"the rest" + mark("e one 5"))
    assert record.transcript().commands["one"].exit_code == 5
    assert record.transcript().commands["one"].ended


def test_command_whose_beginning_was_dropped_begins_with_the_gap() -> None:
    """Else what is missing of it would be said nowhere."""
    record = opened()
    record.ask("one")
    dropped = record.entries[-1].next_offset
    record.lose(1000)
    record.add("stdout", b"the rest" + mark("e one 5"))
    told = record.transcript().commands["one"]
    assert told.start is not None
    assert told.start[0] == dropped


def test_end_of_the_shell_ends_what_runs_and_not_what_waits() -> None:
    record = opened()
    record.ask("one")
    record.ask("two")
    record.both("b one")
    record.add("end", b'{"exit_code": 9, "reason": "exited", "signal": null}')
    transcript = record.transcript()
    assert transcript.end is not None
    assert (transcript.commands["one"].exit_code, transcript.commands["two"].exit_code) == (9, None)


def test_copy_goes_its_own_way() -> None:
    demux = Demux.with_nonce(NONCE)
    demux.feed("stdout", b"\x1e")
    other = demux.copy()
    names: tuple[StreamName, ...] = ("stdout", "stderr")
    assert [piece.data for piece in demux.feed(names[0], b"x")] == [b"\x1ex"]
    assert [piece.data for piece in other.feed(names[0], b"y")] == [b"\x1ey"]


def test_a_long_session_forgets_the_oldest_commands_that_have_ended() -> None:
    record = opened()
    for number in range(3000):
        record.note(
            command={"id": f"{number:016x}", "text": "x" * 2000, "input": False, "echo": False},
            ended=[(f"{number - 1:016x}", 0)] if number else [],
        )
        record.both(f"b {number:016x}")
        record.both(f"e {number:016x} 0")
    transcript = record.transcript()
    assert transcript.memory_bytes <= KEPT_BYTES
    kept = list(transcript.commands)
    assert kept == [f"{number:016x}" for number in range(3000 - len(kept), 3000)]
    assert 1000 < len(kept) < 3000
    assert transcript.unsealed() == [(kept[-1], 0)]


def test_what_waits_is_never_forgotten() -> None:
    record = opened()
    for number in range(80):
        command_id = f"{number:016x}"
        record.note(command={"id": command_id, "text": "x" * 64_000, "input": False, "echo": False}, ended=[])
    transcript = record.transcript()
    assert len(transcript.commands) == len(transcript.waiting) == 80
