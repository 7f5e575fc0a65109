"""Output pipes that tell the order of two streams.

Each pipe starts with room for a single packet, so that a program which writes to both in turn waits until the first
piece is taken; edge-triggered epoll then reports the pipes in the order in which they were written. Once a program has
printed much, its pipes get large and speed comes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_ONE_PACKET_BYTES = 4096
EXACT_BYTES = 64 * 1024
"""So much output is read in exact order; beyond it, pipes are enlarged."""
LARGE_PIPE_BYTES = 1024 * 1024


def make_output_pipe() -> tuple[int, int]:
    """A pipe that holds one packet, for exact order."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT)
    os.set_blocking(reader, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reader, _F_SETPIPE_SZ, _ONE_PACKET_BYTES)
    return reader, writer


def holds_one_packet(reader: int) -> bool:
    """Whether a pipe is still as we made it: then each packet makes an edge of its own."""
    try:
        return fcntl.fcntl(reader, _F_GETPIPE_SZ) <= _ONE_PACKET_BYTES
    except OSError:
        return False


def enlarge(reader: int) -> None:
    """From exact order to speed."""
    with contextlib.suppress(OSError):  # over the user's allowance: then it stays slower
        fcntl.fcntl(reader, _F_SETPIPE_SZ, LARGE_PIPE_BYTES)


def waiting_bytes(descriptor: int) -> int:
    """How much can be read without waiting."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)
