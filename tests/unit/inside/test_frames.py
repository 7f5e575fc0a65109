"""Frames between a host and the agent inside."""

import os
import zlib

import pytest

from corral.inside.frames import PIECE_BYTES, Packer, Parser, pack, unpack


def test_frames_are_put_together_however_they_come() -> None:
    wire = pack(b"o", 7, b"abc") + pack(b"x", 8) + pack(b"e", 9, bytes(1000))
    for size in (1, 5, 64, len(wire)):
        parser, seen = Parser(), []
        for offset in range(0, len(wire), size):
            seen += list(parser.feed(wire[offset : offset + size]))
        assert seen == [(b"o", 7, b"abc"), (b"x", 8, b""), (b"e", 9, bytes(1000))]


def test_endless_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        list(Parser().feed(b"o" + (7).to_bytes(4, "big") + (1 << 31).to_bytes(4, "big")))


def test_compressed_piece_comes_back_and_one_that_grows_without_end_is_refused() -> None:
    text = b"all work and no play " * 1000
    packer = Packer()
    small = packer.pack(text)
    assert small is not None
    assert len(small) < len(text) // 10
    assert unpack(small) == text
    with pytest.raises(ValueError, match="more than a piece"):
        unpack(zlib.compress(bytes(100 * PIECE_BYTES)))
    with pytest.raises(ValueError, match="more than a piece"):
        unpack(small[:-8])


def test_what_does_not_become_smaller_is_left_as_it_is_and_not_tried_each_time() -> None:
    packer, noise, zeros = Packer(), os.urandom(PIECE_BYTES), bytes(PIECE_BYTES)
    assert packer.pack(bytes(100)) is None
    assert packer.pack(noise) is None
    tries = [packer.pack(zeros) is not None for _ in range(20)]
    assert tries[:2] == [False, False]
    assert tries[-1]
