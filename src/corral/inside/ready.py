"""A loop that watches descriptors and timers, and how it reads the output of programs.

Output pipes keep the order of two streams. Each pipe starts with room for a single packet, so that a program which
writes to both in turn waits until the first piece is read; edge-triggered epoll then reports the pipes in the order of
the writes. Once a program has printed much, its pipes are enlarged, small writes share a page, and speed matters more.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

_IN, _OUT, _EDGE, _ONCE = 1, 4, 1 << 31, 1 << 30
"""epoll's numbers; the first two are poll's as well."""
_HAS_PACKETS = sys.platform == "linux"
"""Elsewhere the order between two streams is only close."""
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_ONE_PACKET_BYTES = 4096
_TERMINAL_PIECE_BYTES = 4095
"""The most that one read of a terminal returns."""
EXACT_BYTES = 64 * 1024
"""How much output is read in exact order; then pipes are enlarged."""
_LARGE_PIPE_BYTES = (1024 * 1024, 256 * 1024, 64 * 1024)
READ_BYTES = _LARGE_PIPE_BYTES[0]
NAP_SECONDS = 0.001
"""How long output may collect, once a program has printed much: a read for each line would cost more than the line."""


Turn = Literal["edge", "again", "later", "rearm"]
"""When to read a descriptor again: at its next edge, after the other descriptors, after a nap, or when it is readable,
for which it must be armed again."""


class Ready:
    """An epoll with a callback for each descriptor. For one thread.

    Of several descriptors that are ready at once, a callback may close one whose turn is still to come, and the next
    may open another with the same number. That one is not ready, and reading from it would block the loop.
    """

    def __init__(self) -> None:
        self._poll: Any = select.epoll() if hasattr(select, "epoll") else _Poll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._events: dict[int, int] = {}
        self._held: set[int] = set()

    def watch(self, descriptor: int, callback: Callable[[], None], *, edge: bool = False) -> None:
        """Call back when a descriptor can be read; with `edge`, once for each arrival."""
        self._add(descriptor, callback, _IN | (_EDGE if edge else 0))

    def watch_writing(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back when a descriptor can be written, unless it is watched already."""
        if descriptor not in self._callbacks:
            self._add(descriptor, callback, _OUT)

    def _add(self, descriptor: int, callback: Callable[[], None], events: int) -> None:
        self._callbacks[descriptor] = callback
        self._events[descriptor] = events
        self._poll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching, if it is watched. To be called before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is None:
            return
        del self._events[descriptor]
        if descriptor in self._held:
            self._held.remove(descriptor)
            return
        with contextlib.suppress(OSError):
            self._poll.unregister(descriptor)

    def hand_over(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Replace the callback of a descriptor. What is ready now may be reported to neither: read it."""
        if descriptor in self._callbacks:
            self._callbacks[descriptor] = callback
        else:  # its last callback has failed
            self.watch(descriptor, callback, edge=True)

    def hold(self, descriptor: int) -> None:
        """Do not call back until `release`; data waits in the descriptor."""
        self._poll.unregister(descriptor)
        self._held.add(descriptor)

    def release(self, descriptor: int) -> None:
        """Watch a held descriptor again."""
        self._held.remove(descriptor)
        self._poll.register(descriptor, self._events[descriptor])

    def loosen(self, descriptor: int) -> None:
        """Call back once, and then only after the next call of this."""
        self._events[descriptor] = _IN | _ONCE
        if descriptor not in self._held:
            self._poll.modify(descriptor, _IN | _ONCE)

    def serve(self, patience: float) -> bool:
        """Wait, and call back for all ready descriptors; False if there was none."""
        ready = [(descriptor, self._callbacks.get(descriptor)) for descriptor, _ in self._poll.poll(patience)]
        for descriptor, callback in ready:
            still_watched = self._callbacks.get(descriptor) is callback and descriptor not in self._held
            if callback is not None and still_watched:
                self._call(callback, descriptor)
        return bool(ready)

    def _call(self, callback: Callable[[], None], descriptor: int | None = None) -> None:
        callback()


class Loop(Ready):
    """A `Ready` with timers, and with callbacks that wait for one turn."""

    def __init__(self) -> None:
        super().__init__()
        self._again: list[Callable[[], None]] = []
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def again(self, callback: Callable[[], None]) -> None:
        """Call back after everything that is ready now."""
        self._again.append(callback)

    def call_at(self, key: object, moment: float, callback: Callable[[], None]) -> None:
        """Call back at a moment of the monotonic clock, unless cancelled; one timer for each key."""
        self._timers[key] = (moment, callback)

    def cancel(self, key: object) -> None:
        """Remove a timer, if there is one."""
        self._timers.pop(key, None)

    def turn(self, patience: float) -> None:
        """Wait at most so many seconds, and make all callbacks that are due."""
        now = time.monotonic()
        waiting, self._again = self._again, []
        patience = min([patience, *(moment - now for moment, _ in self._timers.values())])
        self.serve(0.0 if waiting else max(0.0, patience))
        # After all ready descriptors: that keeps the order of output.
        for callback in waiting:
            self._call(callback)
        now = time.monotonic()
        for key in [key for key, (moment, _) in self._timers.items() if moment <= now]:
            due = self._timers.pop(key, None)
            if due is not None:  # else a callback before it has cancelled it
                self._call(due[1])


class _Poll:
    """Replaces epoll on other systems: without edges, so that a descriptor is reported until it is empty, and the order
    of two pipes is only approximate."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._once: set[int] = set()

    def register(self, descriptor: int, events: int) -> None:
        self._once.discard(descriptor)
        if events & _ONCE:
            self._once.add(descriptor)
        self._poll.register(descriptor, events & (_IN | _OUT))

    modify = register

    def unregister(self, descriptor: int) -> None:
        self._once.discard(descriptor)
        with contextlib.suppress(KeyError):  # it was reported once
            self._poll.unregister(descriptor)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        ready = self._poll.poll(None if seconds < 0 else math.ceil(seconds * 1000))
        for descriptor, _ in ready:
            if descriptor in self._once:
                self._poll.unregister(descriptor)
        return ready


class OutputReading:
    """How the output of one program is read: first in exact order, then fast. For one thread."""

    def __init__(self) -> None:
        self.exact = True
        self._printed = 0
        self._writers: list[int] = []
        self._may_hang_up = False
        self._capacity: dict[int, int] = {}

    def open_pipe(self) -> tuple[int, int]:
        """A pipe that holds one packet: our end, and the program's.

        A copy of the program's end is kept, since packet mode is switched off there; so there is no end of file before
        `close_writers`.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT) if _HAS_PACKETS else os.pipe()
        try:
            self._writers.append(os.dup(writer))
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        os.set_blocking(reader, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(reader, _F_SETPIPE_SZ, _ONE_PACKET_BYTES)
        return reader, writer

    def read(self, descriptor: int, *, terminal: bool = False, most: int | None = None) -> bytes | None:
        """The output that is there: None if there is nothing now, empty at the end. In exact order, a single packet.

        With `most`, not much more than that; it may not be less than a packet.
        """
        limit = READ_BYTES if most is None else min(most, READ_BYTES)
        try:
            data = os.read(descriptor, limit)
            if not terminal or self.exact:
                return data
            pieces = [data]
            total = len(data)
            with contextlib.suppress(OSError):  # nothing more, or its end, which the next read reports again
                while len(pieces[-1]) >= _TERMINAL_PIECE_BYTES and total < limit:
                    pieces.append(os.read(descriptor, READ_BYTES))
                    total += len(pieces[-1])
            return b"".join(pieces)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # EIO: the last program has closed the terminal

    def count(self, size: int, outputs: Collection[int], loop: Loop) -> None:
        """Count printed bytes. After `EXACT_BYTES`, change from exact order to speed: enlarge the pipes."""
        self._printed += size
        if self.exact and self._printed > EXACT_BYTES:
            self.exact = False
            self.close_writers()
            for descriptor in outputs:
                self._capacity[descriptor] = _enlarge(descriptor)
                loop.loosen(descriptor)

    def close_writers(self) -> None:
        """Close our copies of the program's ends, and switch packet mode off. Idempotent."""
        writers, self._writers = self._writers, []
        self._may_hang_up = True
        for writer in writers:
            if _HAS_PACKETS:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) & ~os.O_DIRECT)
            os.close(writer)

    def read_on(
        self, loop: Loop, descriptor: int, data: bytes | None, read: Callable[[], None], *, most: int | None = None
    ) -> None:
        """Have the loop call `read` when it is time, after a read of at most `most` bytes that returned `data`."""
        turn = self.next_turn(descriptor, data, most=most)
        if turn == "again":
            loop.again(read)
        elif turn == "later":
            loop.call_at((self, descriptor), time.monotonic() + NAP_SECONDS, read)
        elif turn == "rearm":
            loop.loosen(descriptor)

    def next_turn(self, descriptor: int, data: bytes | None, *, most: int | None = None) -> Turn:
        """When to read again, after a read of at most `most` bytes that returned `data`."""
        if self.exact and data and self._may_hang_up:
            return "again"  # one edge may report the last data and the end
        if self.exact:
            # A pipe with room for one packet has an edge for each: reading again would only overtake the other stream.
            return "again" if data and waiting_bytes(descriptor) > 0 and not _holds_one_packet(descriptor) else "edge"
        if data is None:
            return "rearm"
        if most is not None and len(data) >= min(most, READ_BYTES):
            return "again"  # there may be more than was asked for
        capacity = self._capacity.get(descriptor, 0)
        # A pipe that could not be enlarged is soon full, and the program waits: no nap then.
        return "again" if capacity < _LARGE_PIPE_BYTES[-1] or len(data) > capacity // 4 else "later"


def _holds_one_packet(reader: int) -> bool:
    """True if a pipe still has room for one packet only: then each packet has its own edge."""
    try:
        return fcntl.fcntl(reader, _F_GETPIPE_SZ) <= _ONE_PACKET_BYTES
    except OSError:
        return False


def _enlarge(reader: int) -> int:
    """Enlarge a pipe as far as the user's allowance permits; returns its size."""
    for size in _LARGE_PIPE_BYTES:
        with contextlib.suppress(OSError):
            return fcntl.fcntl(reader, _F_SETPIPE_SZ, size)
    return _LARGE_PIPE_BYTES[-1] if os.isatty(reader) else _ONE_PACKET_BYTES


def waiting_bytes(descriptor: int) -> int:
    """How many bytes can be read without waiting."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)
