"""Runs INSIDE a sandbox, as part of `driver.py`: the code's output, and the channel of requests and events."""

from __future__ import annotations

import _thread
import fcntl
import io
import json
import os
import select
import sys
import threading
import time

from corral.inside.writing import write_all

if False:  # for type checkers alone: nothing is imported that is not needed
    from typing import Any

FRAME_BYTES = 4000  # below PIPE_BUF, with the mark and the number before it
LINE_BYTES = 64 * 1024
BURST_SECONDS = 0.01
BURST_BYTES = 64 * 1024
MAIN_THREAD = _thread.get_ident()
SPAWNS = frozenset(
    ("os.system", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "pty.spawn")
)


def encode_odd(error: UnicodeError) -> tuple[bytes | str, int]:
    """Encode bytes of file names that are not UTF-8 as they are, and other lone surrogates as `\\uXXXX`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    if all(0xDC80 <= ord(char) <= 0xDCFF for char in text):
        return bytes(ord(char) - 0xDC00 for char in text), error.end
    return "".join(f"\\u{ord(char):04x}" for char in text), error.end


class Streams:
    """Buffers the code's output for descriptors 1 and 2.

    A line is written at once, a burst of lines together: a small write costs its reader as much as a large one. While a
    burst is held back, nothing may overtake it: not the other stream, not an event, not a child process.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # code that the garbage collector calls in between may print, too
        self.bell = _thread.allocate_lock()
        self.bell.acquire()
        self.armed = False
        self.direct = False
        self.fd = 1
        self.buffer = bytearray()
        self.last = 0.0
        self.guarded = 0
        self.interrupted = False

    def start(self) -> None:
        _thread.start_new_thread(self.sweep, ())  # not one of `threading`: the code counts those
        os.register_at_fork(after_in_child=self.after_fork)
        sys.addaudithook(self.audit)

    def audit(self, event: str, args: Any) -> None:
        if event in SPAWNS:
            self.direct = True  # for the rest of the run
            self.flush()

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        self.direct = True
        self.buffer = bytearray()

    def sweep(self) -> None:
        while True:
            self.bell.acquire()
            time.sleep(BURST_SECONDS)
            with self.lock:
                self.armed = False
                try:
                    self.put()
                except Exception:  # the code has closed its stream, and there is no caller to report that to
                    continue

    # An interrupt in the middle of these would leave the lock held: it is delayed until they are done.

    def enter(self) -> None:
        if _thread.get_ident() == MAIN_THREAD:
            self.guarded += 1
        self.lock.acquire()

    def leave(self) -> None:
        self.lock.release()
        if _thread.get_ident() == MAIN_THREAD:
            self.guarded -= 1
            if self.interrupted and not self.guarded:
                self.interrupted = False
                raise KeyboardInterrupt

    def write(self, fd: int, data: Any) -> None:
        self.enter()
        try:
            if self.fd != fd:
                self.put()
                self.fd = fd
            self.buffer += data
            is_burst = time.monotonic() - self.last < BURST_SECONDS
            if self.direct or len(self.buffer) >= BURST_BYTES or (self.buffer.endswith(b"\n") and not is_burst):
                self.put()
            elif not self.armed:
                self.armed = True
                self.bell.release()
        finally:
            self.leave()

    def put(self) -> None:
        if self.buffer:
            data, self.buffer = self.buffer, bytearray()
            self.last = time.monotonic()
            write_all(self.fd, data)

    def flush(self) -> None:
        if self.buffer:
            self.enter()
            try:
                self.put()
            finally:
                self.leave()


class Raw(io.RawIOBase):
    """The raw stream below `sys.stdout` and `sys.stderr`. It is never closed."""

    def __init__(self, streams: Streams, fd: int, name: str) -> None:
        self.streams = streams
        self.fd = fd
        self.name = name
        self.mode = "wb"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.fd

    def flush(self) -> None:
        self.streams.flush()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.streams.write(self.fd, view)
        return len(view)


def open_text(streams: Streams, fd: int, name: str) -> io.TextIOWrapper:
    """A stream for `sys.stdout` or `sys.stderr`."""
    raw: Any = Raw(streams, fd, name)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="corral", newline="\n", write_through=True)


def keep_apart(fd: int) -> int:
    """Duplicate a descriptor to a high number, which the code is unlikely to use."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    except OSError:
        return os.dup(fd)


class Channel:
    """Where requests come from and events go."""

    def __init__(self) -> None:
        self.requests = keep_apart(0)
        self.streams = {1: keep_apart(1), 2: keep_apart(2)}
        empty = os.open(os.devnull, os.O_RDWR)
        os.dup2(empty, 0)
        if empty > 2:
            os.close(empty)
        self.buffer = b""
        self.mark = b""
        self.number = 0

    def read(self) -> dict[str, Any] | None:
        """The next request, None at the end."""
        while b"\n" not in self.buffer:
            try:
                piece = os.read(self.requests, 65536)
            except BlockingIOError:
                select.select([self.requests], [], [])
                continue
            if not piece or len(self.buffer) > LINE_BYTES:
                return None
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        request: dict[str, Any] = json.loads(line)
        return request

    def send(self, data: bytes, fds: tuple[int, ...] = (1,)) -> None:
        """Send one event, in as many frames as it needs."""
        self.number += 1
        for start in range(0, len(data), FRAME_BYTES):
            more = b"+" if start + FRAME_BYTES < len(data) else b"."
            frame = self.mark + b"%d%s" % (self.number, more) + data[start : start + FRAME_BYTES] + b"\n"
            for fd in fds:
                write_all(self.streams[fd], frame)

    def repair(self) -> None:
        """Restore descriptors 1 and 2 if the code has changed them."""
        for fd, kept in self.streams.items():
            try:
                same = os.path.sameopenfile(fd, kept)
            except OSError:
                same = False
            if not same:
                os.dup2(kept, fd)
