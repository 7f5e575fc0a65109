"""INSIDE: what is known of one program and of its outputs.

Sent inside as text, before `inside.py`. Nothing of it is imported on the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import time

try:
    import zlib
except ImportError:  # a Python may be built without it
    zlib = None  # type: ignore[assignment]

from corral.backends.daytona.insidetree import SET_PIPE_SIZE, output_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW_BYTES = 1024 * 1024
"""So much of a program's output may be on its way to the host."""
LARGE_PIPE_BYTES = 1024 * 1024
PACKS = b"z" if zlib is not None else b""
"""How we say that we take what is compressed."""
WORTH_BYTES = 2048
PLAIN_FRAMES = 16
"""After one that did not become smaller, so many are not tried."""


def inflate(data: bytes) -> bytes:
    return zlib.decompress(data)


class Stream:
    """One of a program's outputs."""

    def __init__(self, call: Call, name: bytes, descriptor: int) -> None:
        self.call, self.name, self.descriptor = call, name, descriptor
        self.total = 0
        self.skipped = 0
        self.tail = bytearray()
        self.naps = False  # its pipe is large: it is looked at once in a while, not for each write
        self.left: int | None = None  # how much is still to be told after the program's end
        self.over = False
        self.quiet_since: float | None = None
        self.plain = 0

    def packed(self, number: int, data: bytes) -> tuple[bytes, int, bytes]:
        """A frame, compressed where that makes it smaller: a terminal is slow, and a network may be."""
        if zlib is not None and len(data) >= WORTH_BYTES:
            if self.plain:
                self.plain -= 1
            else:
                small = zlib.compress(data, 1)
                if len(small) < len(data) * 3 // 4:
                    return self.name.upper(), number, small
                self.plain = PLAIN_FRAMES
        return self.name, number, data


def due(naps: list[tuple[float, Stream]]) -> list[int]:
    """The descriptors that have napped long enough, out of the list."""
    now = time.monotonic()
    found: list[int] = []
    while naps and naps[0][0] <= now:
        stream = naps.pop(0)[1]
        if not stream.over:
            found.append(stream.descriptor)
    return found


class Call:
    """One program."""

    def __init__(self, number: int, wish: dict[str, Any]) -> None:
        self.number, self.wish = number, wish
        self.pty = bool(wish.get("pty"))
        self.limit = int(wish["limit"])
        self.quiet = bool(wish.get("quiet"))
        self.credit = WINDOW_BYTES
        self.began = time.monotonic()
        self.warden = 0
        self.pid = 0
        self.streams: dict[bytes, Stream] = {}
        self.blocked: list[Stream] = []
        self.read_bytes = 0
        self.writers: list[int] = []
        self.input: int | None = None
        self.typed: list[bytes] = []
        self.input_ends = False
        self.status = -1
        self.heard = b""
        self.end: dict[str, Any] | None = None
        self.told = False
        self.reason: str | None = None
        self.deadline: float | None = None
        self.killing_until: float | None = None

    def open(self, opened: list[int]) -> tuple[int, int, int]:
        """Make its three descriptors, and ours at their other ends. All are put down in `opened` as they come."""
        if self.pty:
            master, slave = os.openpty()
            opened += [master, slave]
            os.set_blocking(master, False)
            for descriptor in (master, slave):
                os.set_inheritable(descriptor, False)
            size = struct.pack("HHHH", self.wish["rows"], self.wish["columns"], 0, 0)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
            self.streams = {b"o": Stream(self, b"o", master)}
            self.input = master
            return slave, slave, slave
        out, out_end = output_pipe()
        opened += [out, out_end]
        err, err_end = output_pipe()
        opened += [err, err_end]
        self.streams = {b"o": Stream(self, b"o", out), b"e": Stream(self, b"e", err)}
        for end in (out_end, err_end):
            self.writers.append(os.dup(end))
            opened.append(self.writers[-1])
        if not self.wish["stdin"]:
            null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            opened.append(null)
            return null, out_end, err_end
        inner, self.input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.input, False)
        opened += [inner, self.input]
        return inner, out_end, err_end

    def loosen(self, epoll: select.epoll) -> None:
        """From exact order to speed: large pipes, asked about instead of heard from for each write."""
        self.end_packets()
        for stream in self.streams.values():
            if not stream.over:
                with contextlib.suppress(OSError, ValueError):  # over the user's allowance: then it stays slower
                    fcntl.fcntl(stream.descriptor, SET_PIPE_SIZE, LARGE_PIPE_BYTES)
                    epoll.modify(stream.descriptor, select.EPOLLIN | select.EPOLLONESHOT)
                    stream.naps = True

    def end_packets(self) -> None:
        """Small writes share a page from now on, and the program's ends are left to the program."""
        while self.writers:
            writer = self.writers.pop()
            fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) & ~os.O_DIRECT)
            os.close(writer)
