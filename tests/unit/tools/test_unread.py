"""Reading a record piece by piece: nothing is lost but what is said to be, and no character is torn."""

from hypothesis import given
from hypothesis import strategies as st

from corral.sessions.record import Entry, EntryKind
from corral.tools.unread import Mark, Reading


def make_entries(*pieces: tuple[EntryKind, bytes], at: int = 0) -> list[Entry]:
    entries = []
    for kind, data in pieces:
        entries.append(Entry(at, kind, data, 0.0, at + len(data) + 1))
        at += len(data) + 1
    return entries


def read(
    entries: list[Entry], mark: Mark, *, most: int, newest: bool = False, whole: bool = True
) -> tuple[Reading, Mark]:
    reading = Reading(mark, max_bytes=most, newest=newest)
    for entry in entries:
        if entry.offset >= mark.position and not reading.take(entry):
            break
    return reading, reading.finish(whole=whole)


def test_what_does_not_fit_waits() -> None:
    entries = make_entries(("note", b"{}"), ("stdout", b"one two three "), ("stderr", b"four "), ("stdout", b"five"))
    first, mark = read(entries, Mark(), most=8)
    assert (first.join("stdout", "stderr"), mark.waiting) == (b"one two ", True)
    second, mark = read(entries, mark, most=8)
    assert (second.join("stdout"), second.join("stderr")) == (b"three ", b"fo")
    third, mark = read(entries, mark, most=100)
    assert (third.join("stdout", "stderr"), mark.rest) == (b"ur five", ())
    assert [reading.lost_bytes for reading in (first, second, third)] == [0, 0, 0]


def test_newest_skips_to_the_end_and_says_how_much() -> None:
    entries = make_entries(*[("stdout", b"%03d " % number) for number in range(100)])
    reading, mark = read(entries, Mark(), most=10, newest=True)
    assert reading.join("stdout") == b"7 098 099 "[-10:]
    assert reading.lost_bytes == 390
    assert mark.rest == ()


def test_what_the_record_dropped_is_counted() -> None:
    entries = make_entries(("stdout", b"late"), at=1000)
    reading, _ = read(entries, Mark(position=100), most=10)
    assert (reading.join("stdout"), reading.lost_bytes) == (b"late", 900)


def test_half_a_character_waits_for_its_other_half_while_the_program_runs() -> None:
    text = "é€😀".encode()
    for cut in range(1, len(text)):
        entries = make_entries(("stdout", text[:cut]), ("stderr", b"x"))
        reading, mark = read(entries, Mark(), most=100, whole=False)
        reading.join("stdout").decode()  # no half character
        assert reading.join("stderr") == b"x"
        more = make_entries(("stdout", text[cut:]), at=entries[-1].next_offset)
        later, mark = read(more, mark, most=100)
        assert (reading.join("stdout") + later.join("stdout")).decode() == "é€😀"
        later.join("stdout").decode()


def test_of_a_program_that_has_ended_all_is_given() -> None:
    reading, mark = read(make_entries(("stdout", b"caf\xc3")), Mark(), most=100)
    assert (reading.join("stdout"), mark.rest) == (b"caf\xc3", ())


@given(
    pieces=st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=12)), max_size=12),
    most=st.integers(1, 20),
)
def test_readings_of_any_size_give_everything_once_and_each_stream_in_order(
    pieces: list[tuple[EntryKind, bytes]], most: int
) -> None:
    entries = make_entries(*pieces)
    mark = Mark()
    given_out = {"stdout": b"", "stderr": b""}
    for _ in range(1000):
        position, rest = mark.position, mark.rest
        reading, mark = read(entries, mark, most=most)
        for kind in given_out:
            given_out[kind] += reading.join(kind)
        assert len(reading.join("stdout", "stderr")) <= most
        if not mark.rest and mark.position == (entries[-1].next_offset if entries else 0):
            break
        assert (position, rest) != (mark.position, mark.rest), "it does not get on"
    for kind, data in given_out.items():
        assert data == b"".join(piece for stream, piece in pieces if stream == kind)
