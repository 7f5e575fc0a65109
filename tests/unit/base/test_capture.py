"""Keeping output: order, both streams, and the limit."""

from collections.abc import Callable

import pytest

from corral.base.process import ALLOWANCE, Capture


def fill(limit: int, *pieces: tuple[str, bytes]) -> Capture:
    capture = Capture(limit)
    for stream, data in pieces:
        capture.add(stream, data)  # type: ignore[arg-type]
    return capture


def test_both_streams_are_kept_apart_and_in_order() -> None:
    capture = fill(1000, ("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c"), ("stdout", b"d"), ("stderr", b"e"))
    assert capture.stream("stdout") == b"acd"
    assert capture.stream("stderr") == b"be"
    assert capture.combined() == b"abcde"
    assert [(chunk.stream, chunk.data) for chunk in capture.chunks()] == [
        ("stdout", b"a"),
        ("stderr", b"b"),
        ("stdout", b"cd"),
        ("stderr", b"e"),
    ]
    assert not capture.truncated


def test_nothing_is_kept_of_nothing() -> None:
    capture = fill(10)
    assert (capture.combined(), capture.chunks(), capture.total("stdout"), capture.truncated) == (b"", [], 0, False)


def test_middle_is_cut_and_counted() -> None:
    capture = fill(2000, ("stdout", b"a" * 5000), ("stdout", b"b" * 5000))
    kept = capture.stream("stdout")
    assert capture.truncated
    assert capture.total("stdout") == 10_000
    dropped = int(kept.split(b"corral: ")[1].split()[0])
    marker = f"\n[corral: {dropped} bytes of stdout left out]\n".encode()
    assert kept.count(b"a") - marker.count(b"a") + kept.count(b"b") - marker.count(b"b") == 10_000 - dropped
    assert kept.startswith(b"aaa")
    assert kept.endswith(b"bbb")


def test_one_stream_too_long_leaves_the_other_whole() -> None:
    capture = fill(500, ("stderr", b"first"), ("stdout", b"x" * 10_000), ("stderr", b"last"))
    assert capture.stream("stderr") == b"firstlast"
    assert capture.combined().startswith(b"first")
    assert capture.combined().endswith(b"last")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 100, 1000])
def test_never_more_than_the_limit(limit: int) -> None:
    capture = fill(limit, *[("stdout", b"0123456789")] * 500)
    kept = capture.stream("stdout")
    marker = f"\n[corral: {5000 - limit} bytes".encode()[:10]
    assert marker in kept
    dropped = int(kept.split(b"corral: ")[1].split()[0])
    assert 5000 - dropped <= limit


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 100, 1000])
def test_output_up_to_the_limit_is_whole(limit: int) -> None:
    capture = fill(limit, ("stdout", b"x" * limit))
    assert (capture.truncated, capture.stream("stdout")) == (False, b"x" * limit)


def test_alternating_bytes_do_not_cost_a_hundredfold() -> None:
    capture = fill(1 << 20, *[("stdout", b"o"), ("stderr", b"e")] * 100_000)
    assert len(capture.chunks()) < 50_000, "pieces are joined when there are too many"
    assert capture.stream("stdout") == b"o" * 100_000


class Purse:
    """An allowance of so many bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> bool:
        if count > self.left:
            return False
        self.left -= count
        return True

    def ask(self, count: int, answer: Callable[[bool], None]) -> None:
        answer(self.take(count))


def allowed(purse: Purse, *, waits: bool = False) -> Capture:
    token = ALLOWANCE.set(purse)
    try:
        return Capture(10_000_000, waits=waits)
    finally:
        ALLOWANCE.reset(token)


def test_what_is_not_allowed_is_cut_out_and_the_last_words_are_kept() -> None:
    purse = Purse(256 * 1024)
    capture, silent = allowed(purse), allowed(purse)
    for number in range(1000):
        capture.add("stdout", b"%04d" % number * 256)
    kept = capture.stream("stdout")
    assert 200 * 1024 < len(kept) < 300 * 1024
    assert capture.truncated
    assert kept.startswith(b"0000")
    assert kept.endswith(b"0999")
    silent.add("stderr", b"x" * 5000)  # there is nothing left, and a little is always kept
    assert silent.stream("stderr") == b"x" * 5000


def test_pieces_cost_more_than_their_bytes_and_are_joined_when_there_is_no_room_for_them() -> None:
    capture = allowed(Purse(32 * 1024))
    for _ in range(5000):
        capture.add("stdout", b"o")
        capture.add("stderr", b"e")
    assert (capture.stream("stdout"), capture.stream("stderr")) == (b"o" * 5000, b"e" * 5000)
    assert 100 < len(capture.chunks()) < 400


def test_a_capture_that_waits_is_short_and_loses_nothing() -> None:
    capture = allowed(Purse(64 * 1024), waits=True)
    printed = bytearray()
    while not capture.short:
        room = capture.room("stdout")
        assert room is not None
        printed += b"x" * room
        capture.add("stdout", b"x" * room)
    assert capture.short <= 4096, "a reader that takes what there is room for goes beyond it by one packet"
    capture.add("stderr", b"e" * 20_000)
    capture.grant(capture.short)
    assert capture.short == 0
    assert (capture.stream("stdout"), capture.stream("stderr")) == (printed, b"e" * 20_000)
    capture.add("stdout", b"y" * 1000)
    assert capture.short == 1000
    capture.stop_waiting()
    assert capture.short == 0
    assert capture.room("stdout") is None
    capture.add("stdout", b"z" * 1_000_000)
    assert capture.truncated
    assert capture.stream("stdout").endswith(b"z" * 16_000)
    assert len(capture.stream("stdout")) < 200_000
