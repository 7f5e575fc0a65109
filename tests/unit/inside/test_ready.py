"""The callbacks of a loop: whose turn it is when several descriptors are ready at once."""

import os
from collections.abc import Iterator

import pytest

from corral.inside.ready import Loop, OutputReading, Ready

Pipe = tuple[int, int]


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    """Three pipes; in each lies something to read."""
    made = [os.pipe() for _ in range(3)]
    for _, writer in made:
        os.write(writer, b"x")
    yield made
    for pair in made:
        for descriptor in pair:
            os.close(descriptor)


def test_all_that_is_ready_has_its_turn(pipes: list[Pipe]) -> None:
    ready, heard = Ready(), set[int]()
    assert not ready.serve(0)
    for reader, _ in pipes:
        ready.watch(reader, lambda reader=reader: heard.add(os.read(reader, 1)[0] and reader))  # type: ignore[misc]
    assert ready.serve(0)
    assert heard == {reader for reader, _ in pipes}
    assert not ready.serve(0)


def test_what_was_ready_before_it_was_watched_is_reported_once(pipes: list[Pipe]) -> None:
    """An edge: nothing arrives after it is watched. A program may end before its channel is watched."""
    ready, heard = Ready(), list[str]()
    ready.watch(pipes[0][0], lambda: heard.append("edge"), edge=True)
    assert ready.serve(0)
    assert not ready.serve(0)
    assert heard == ["edge"]


def test_a_descriptor_that_is_handed_over_reports_to_the_new_callback(pipes: list[Pipe]) -> None:
    ready, heard = Ready(), list[str]()
    (one, _), (two, writer), _ = pipes

    def hand_over() -> None:
        heard.append("one")
        ready.hand_over(two, lambda: heard.append("new"))

    ready.watch(one, hand_over, edge=True)
    ready.watch(two, lambda: heard.append("old"), edge=True)
    assert ready.serve(0)
    assert heard == ["one"]  # the new owner reads what was ready
    os.write(writer, b"y")
    assert ready.serve(0)
    assert heard == ["one", "new"]


def test_a_descriptor_whose_callback_has_failed_can_be_handed_over(pipes: list[Pipe]) -> None:
    ready, heard = Ready(), list[str]()
    ready.hand_over(pipes[0][0], lambda: heard.append("new"))
    assert ready.serve(0)
    assert heard == ["new"]
    ready.unwatch(pipes[0][0])
    assert not ready.serve(0)


def test_the_end_that_comes_with_the_last_data_is_read() -> None:
    """There is one edge for both: the pipe of a background child stayed open."""
    reading = OutputReading()
    reader, writer = reading.open_pipe()
    reading.close_writers()  # as after the end of the program
    os.write(writer, b"last")
    os.close(writer)
    data = reading.read(reader)
    assert (data, reading.next_turn(reader, data)) == (b"last", "again")
    assert reading.read(reader) == b""
    os.close(reader)


def test_one_that_takes_the_number_of_a_closed_one_is_not_taken_for_ready(pipes: list[Pipe]) -> None:
    ready, heard = Ready(), list[str]()
    (one, _), (two, _), (empty, writer) = pipes
    os.read(empty, 1)

    def close_the_other(number: int, own: int) -> None:
        heard.append("first")
        ready.unwatch(own)
        ready.unwatch(number)
        os.dup2(empty, number)  # closes it, and opens another one in its place
        ready.watch(number, lambda: heard.append(f"new {os.read(number, 1)!r}"))

    ready.watch(one, lambda: close_the_other(two, one))
    ready.watch(two, lambda: close_the_other(one, two))
    ready.serve(0)
    assert heard == ["first"], "to read from the new one would wait for ever"
    os.write(writer, b"y")
    ready.serve(0)
    assert heard == ["first", "new b'y'"]


def test_what_is_held_waits(pipes: list[Pipe]) -> None:
    ready, heard = Ready(), list[int]()
    (one, _), (two, _), _ = pipes

    def hold(other: int, number: int) -> None:
        heard.append(number)
        ready.unwatch(number)
        ready.hold(other)

    ready.watch(one, lambda: hold(two, one))
    ready.watch(two, lambda: hold(one, two))
    ready.serve(0)
    ready.serve(0)
    assert len(heard) == 1
    waiting = two if heard == [one] else one
    ready.release(waiting)
    ready.watch(heard[0], lambda: None)
    ready.serve(0)
    assert heard[1:] == [waiting]
    ready.unwatch(one)
    ready.unwatch(two)
    assert not ready.serve(0)


def test_a_timer_that_is_due_can_be_cancelled_by_another_one() -> None:
    """Both are due in the same turn; an error here would end the thread that reads every program's output."""
    loop, called = Loop(), []

    def cancel_the_other() -> None:
        called.append("first")
        loop.cancel("second")

    loop.call_at("first", 0.0, cancel_the_other)
    loop.call_at("second", 0.0, lambda: called.append("second"))
    loop.turn(0.0)
    assert called == ["first"]
