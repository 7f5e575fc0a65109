"""Output pipes: a packet at a time while the order is exact, everything at once when speed comes first."""

import os

from corral.inside.ready import EXACT_BYTES, Loop, OutputReading

LINES = [b"%06d\n" % number for number in range(3000)]


def test_packets_are_read_one_by_one_until_much_was_printed() -> None:
    reading = OutputReading()
    reader, writer = reading.open_pipe()
    os.set_blocking(writer, False)
    os.write(writer, b"first\n")
    assert reading.read(reader) == b"first\n"
    assert reading.next_turn(reader, b"first\n") == "edge"
    reading.count(EXACT_BYTES, [], Loop())
    assert reading.exact
    reading.count(1, [], Loop())
    assert not reading.exact
    os.close(writer)
    assert reading.read(reader) == b""
    os.close(reader)


def test_small_writes_share_a_large_pipe_and_are_read_at_once() -> None:
    reading = OutputReading()
    reader, writer = reading.open_pipe()
    loop = Loop()
    loop.watch(reader, lambda: None, edge=True)
    reading.count(EXACT_BYTES + 1, [reader], loop)
    os.set_blocking(writer, False)  # a pipe that is full fails the test instead of holding it up
    for line in LINES:
        os.write(writer, line)
    data = reading.read(reader)
    assert data == b"".join(LINES)
    assert reading.next_turn(reader, data) == "later"
    assert reading.read(reader) is None
    assert reading.next_turn(reader, None) == "rearm"
    os.close(writer)
    assert reading.read(reader) == b"", "the program's end is closed everywhere"
    os.close(reader)


def test_pipe_that_can_not_be_enlarged_is_read_without_naps() -> None:
    reading = OutputReading()
    reader, writer = reading.open_pipe()
    os.set_blocking(writer, False)
    reading.count(EXACT_BYTES + 1, [], Loop())  # its size stays what it was
    os.write(writer, b"x")
    assert reading.read(reader) == b"x"
    assert reading.next_turn(reader, b"x") == "again"
    for descriptor in (reader, writer):
        os.close(descriptor)
