"""One program of the agent: its descriptors, its outputs, and what is known of its end."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

from corral.inside.frames import WINDOW_BYTES, Packer
from corral.inside.ready import OutputReading
from corral.inside.starting import set_window

if TYPE_CHECKING:
    from typing import Any


class Stream:
    """One of a program's outputs."""

    def __init__(self, job: Job, name: bytes, descriptor: int) -> None:
        self.job, self.name, self.descriptor = job, name, descriptor
        self.total = 0
        self.skipped = 0
        self.tail = bytearray()
        self.left: int | None = None  # how many bytes are still to be sent after the program's end
        self.over = False
        self.quiet_since: float | None = None
        self.packer = Packer()


class Job:
    """A program that the host asked for.

    The request has `argv` (or `task` and `request`, see `Agent`), `env`, `cwd`, `stdin` and `limit` (how many bytes of
    each stream will be kept). It may have `pty` with `rows` and `columns`, `timeout`, `rlimits`, `inherit` (the agent's
    environment is added), `packs` (compress output), and `quiet`: output is not read before the end, so that only what
    is within the limit is sent.
    """

    def __init__(self, number: int, request: dict[str, Any]) -> None:
        self.number, self.request = number, request
        self.pty = bool(request.get("pty"))
        self.limit = int(request["limit"])
        self.quiet = bool(request.get("quiet"))
        self.packs = bool(request.get("packs"))
        self.credit = WINDOW_BYTES
        self.began = time.monotonic()
        timeout = request.get("timeout")
        self.deadline = None if timeout is None else self.began + timeout
        self.warden = 0
        self.pid = 0
        self.reading = OutputReading()
        self.streams: list[Stream] = []
        self.blocked: list[Stream] = []
        self.input: int | None = None
        self.typed: deque[bytes] = deque()
        self.input_ends = False
        self.status = -1
        self.heard = b""
        self.end: dict[str, Any] | None = None
        self.reported = False
        self.reason: str | None = None
        self.killing_until: float | None = None
        self.rest_asked = False

    def open(self, opened: list[int]) -> tuple[int, int, int]:
        """Open the program's three descriptors and our ends of them. Each is added to `opened` at once."""
        if self.pty:
            master, slave = os.openpty()
            opened += [master, slave]
            os.set_blocking(master, False)
            set_window(slave, self.request["rows"], self.request["columns"])
            self.input = os.dup(master)  # watched on its own
            opened.append(self.input)
            self.streams = [Stream(self, b"o", master)]
            return slave, slave, slave
        ends = []
        for name in (b"o", b"e"):
            reader, writer = self.reading.open_pipe()
            opened += [reader, writer]
            self.streams.append(Stream(self, name, reader))
            ends.append(writer)
        if not self.request["stdin"]:
            inner = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            opened.append(inner)
        else:
            inner, self.input = os.pipe()
            opened += [inner, self.input]
            os.set_blocking(self.input, False)
        return inner, ends[0], ends[1]
