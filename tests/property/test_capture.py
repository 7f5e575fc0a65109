"""Capture of any output."""

import re
from itertools import pairwise
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from corral.base.process import Capture

Stream = Literal["stdout", "stderr"]
PIECES = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=300)), max_size=60)
LIMITS = st.integers(min_value=1, max_value=4000)
MARKER = re.compile(rb"\n\[corral: (\d+) bytes of (stdout|stderr) left out\]\n")


def fill(limit: int, pieces: list[tuple[Stream, bytes]]) -> Capture:
    capture = Capture(limit)
    for stream, data in pieces:
        capture.add(stream, data)
    return capture


@given(limit=LIMITS, pieces=PIECES)
def test_totals_are_exact_and_what_is_cut_is_said(limit: int, pieces: list[tuple[Stream, bytes]]) -> None:
    capture = fill(limit, [(stream, data.replace(b"[corral", b"")) for stream, data in pieces])
    for stream in ("stdout", "stderr"):
        written = b"".join(data.replace(b"[corral", b"") for name, data in pieces if name == stream)
        kept = capture.stream(stream)
        assert capture.total(stream) == len(written)
        found = MARKER.search(kept)
        if found is None:
            assert kept == written
            continue
        head, tail = kept[: found.start()], kept[found.end() :]
        assert written.startswith(head)
        assert written.endswith(tail)
        assert len(head) + len(tail) + int(found[1]) == len(written)
        assert capture.truncated


@given(limit=LIMITS, pieces=PIECES)
def test_never_more_than_the_limit_of_each_stream(limit: int, pieces: list[tuple[Stream, bytes]]) -> None:
    capture = fill(limit, pieces)
    for stream in ("stdout", "stderr"):
        found = [*MARKER.finditer(capture.stream(stream))]
        marker = sum(len(match[0]) for match in found)
        assert len(capture.stream(stream)) - marker <= max(limit, 1)


@given(limit=LIMITS, data=st.binary(max_size=4000), cuts=st.lists(st.integers(0, 4000), max_size=10))
def test_one_stream_up_to_the_limit_is_whole_however_it_comes(limit: int, data: bytes, cuts: list[int]) -> None:
    data = data[:limit]
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [("stdout", data[start:end]) for start, end in pairwise(edges) if start < end]
    capture = fill(limit, pieces)  # type: ignore[arg-type]
    assert capture.stream("stdout") == data
    assert not capture.truncated


@given(pieces=PIECES)
def test_order_is_kept(pieces: list[tuple[Stream, bytes]]) -> None:
    capture = fill(1 << 20, pieces)
    assert capture.combined() == b"".join(data for _, data in pieces)
    assert b"".join(chunk.data for chunk in capture.chunks()) == capture.combined()


@given(limit=LIMITS, pieces=PIECES)
def test_pieces_are_the_combined_output(limit: int, pieces: list[tuple[Stream, bytes]]) -> None:
    capture = fill(limit, pieces)
    assert b"".join(chunk.data for chunk in capture.chunks()) == capture.combined()
    assert len(capture.combined()) == len(capture.stream("stdout")) + len(capture.stream("stderr"))
