"""The agent: starts programs, forwards their output, and ends them with all processes that they started.

It is sent as text to any Python of 3.8 or later and exchanges frames (`inside.frames`) over its standard input and
output: a terminal that it makes raw, or a socket. Each program runs under a warden, a child of ours that is a
subreaper, so that all processes of the program stay below it and can be found. Output is forwarded only as fast as the
host acknowledges it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import struct
import sys
import time
import tty
from typing import TYPE_CHECKING

from corral.inside.agent.job import Job, Stream
from corral.inside.agent.warden import WAKE_SECONDS, watch_over
from corral.inside.frames import HAS_ZLIB, PIECE_BYTES, Parser, pack, unpack
from corral.inside.ready import Loop, waiting_bytes
from corral.inside.starting import set_window
from corral.inside.trees import become_subreaper, end_below, own_children, send_signal

if TYPE_CHECKING:
    from typing import Any

_READ_BYTES = 64 * 1024
_KILL_SECONDS = 10.0
_TERMINAL_QUIET_SECONDS = 0.1


class Agent:
    """The loop."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._loop = Loop()
        self._jobs: dict[int, Job] = {}
        self._wardens: dict[int, Job] = {}
        self._outgoing = bytearray()
        self._parser = Parser()
        self._awake_at = 0.0
        self._tasks: dict[str, Any] = {"__name__": "corral"}
        self._left = False  # the host has closed the connection, or detached
        self._folder: str | None = None  # set if the host owns the programs here
        self._removes = False
        self._deadline: float | None = None
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        self._loop.watch(reader, self._hear)

    # Frames.

    def _say(self, kind: bytes, number: int, data: bytes = b"") -> None:
        if not self._left:
            self._outgoing += pack(kind, number, data)

    def _tell(self, kind: bytes, number: int, message: dict[str, Any]) -> None:
        self._say(kind, number, json.dumps(message).encode())

    def _flush(self) -> None:
        while self._outgoing:
            try:
                count = os.write(self._writer, self._outgoing[:_READ_BYTES])
            except BlockingIOError:
                self._loop.watch_writing(self._writer, self._flush)
                return
            except OSError:
                self._leave()
                break
            del self._outgoing[:count]
        self._loop.unwatch(self._writer)

    def _hear(self) -> None:
        try:
            data = os.read(self._reader, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        for kind, number, content in self._parser.feed(data):
            self._obey(kind, number, content)

    def _leave(self) -> None:
        """The host has gone or detached: programs go on, and their output is dropped. Owned programs end."""
        self._left = True
        self._outgoing.clear()
        self._loop.unwatch(self._reader)
        for job in self._jobs.values():
            job.credit = 1 << 60
            self._unblock(job)
            if "task" in job.request:  # of ours, which gives up when its content is cut short
                job.input_ends = True
                self._feed(job)

    def _obey(self, kind: bytes, number: int, data: bytes) -> None:
        if number == 0:
            self._obey_for_all(kind, data)
            return
        if kind == b"S":
            self._start(number, json.loads(data.decode("utf-8", "surrogatepass")))
            return
        if kind == b"Z":
            self._end_rest(number)
            return
        job = self._jobs.get(number)
        if job is not None:
            self._obey_for(job, kind, data)

    def _obey_for(self, job: Job, kind: bytes, data: bytes) -> None:
        if kind == b"A":
            job.credit += int.from_bytes(data, "big")
            if job.credit > 0:
                self._unblock(job)
        elif kind in (b"I", b"J"):
            job.typed.append(data if kind == b"I" else unpack(data))
            self._feed(job)
        elif kind == b"E":
            if job.pty:
                job.typed.append(b"\x04")
            else:
                job.input_ends = True
            self._feed(job)
        elif kind == b"G":
            self._signal(job, int.from_bytes(data, "big"))
        elif kind == b"R":
            if job.pty and not job.streams[0].over:
                set_window(job.streams[0].descriptor, *struct.unpack(">HH", data))
        elif kind == b"K":
            self._kill(job, data.decode())

    def _obey_for_all(self, kind: bytes, data: bytes) -> None:
        if kind == b"D":
            self._leave()
        elif kind == b"O":
            self.own(**json.loads(data.decode("utf-8", "surrogatepass")))
        elif kind == b"L":
            exec(compile(data, "corral", "exec"), self._tasks)  # noqa: S102 - the host's own text
        else:
            self._say(b"P", 0)

    def own(self, *, folder: str, seconds: float | None, removes: bool) -> None:
        """From now on everything here ends with the host, after so many seconds, or when the folder is deleted.

        With `removes`, the folder and the lock beside it are then removed.
        """
        self._folder, self._removes = folder, removes
        self._deadline = None if seconds is None else time.monotonic() + seconds

    # Starting.

    def _start(self, number: int, request: dict[str, Any]) -> None:
        job = Job(number, request)
        opened: list[int] = []
        try:
            task = self._tasks[request["task"]] if "task" in request else None
            inner = job.open(opened)
            job.status, status_end = os.pipe()
            opened += [job.status, status_end]
            os.set_blocking(job.status, False)
            agent = os.getpid()
            job.warden = os.fork()
        except (OSError, KeyError) as error:
            job.reading.close_writers()
            for descriptor in opened:
                os.close(descriptor)
            self._tell(b"f", number, {"error": "fork", "text": getattr(error, "strerror", None) or str(error)})
            return
        if job.warden == 0:
            try:
                watch_over(request, inner, status_end, task, agent=agent)
            finally:
                os._exit(0)
        for descriptor in {*inner, status_end}:
            os.close(descriptor)
        self._jobs[number] = self._wardens[job.warden] = job
        self._loop.watch(job.status, lambda: self._listen_to_warden(job))
        for stream in job.streams:
            self._loop.watch(stream.descriptor, functools.partial(self._read, stream), edge=True)

    # Output.

    def _read(self, stream: Stream) -> None:
        """Read one piece, and schedule the next read."""
        job = stream.job
        if stream.over or stream in job.blocked:
            return
        if job.credit <= 0 and job.end is None:
            job.blocked.append(stream)
            self._loop.hold(stream.descriptor)
            return
        data = job.reading.read(stream.descriptor, terminal=job.pty, most=PIECE_BYTES)
        if data is None:
            self._find_nothing(stream)
        elif not data:
            self._forget_stream(stream)
            self._finish(job)
            return
        else:
            self._pass_on(stream, data)
        if stream.over:
            return
        if data and job.end is not None:
            self._read_soon(stream)
        else:
            read = functools.partial(self._read, stream)
            job.reading.read_on(self._loop, stream.descriptor, data, read, most=PIECE_BYTES)

    def _read_soon(self, *streams: Stream) -> None:
        for stream in streams:
            self._loop.again(functools.partial(self._read, stream))

    def _pass_on(self, stream: Stream, data: bytes) -> None:
        job = stream.job
        stream.quiet_since = None
        if not job.reported:
            self._take(job, stream, data)
            if stream.left is not None and not job.pty:
                stream.left -= len(data)
                if stream.left <= 0:
                    self._finish(job)
        living = [other.descriptor for other in job.streams if not other.over]
        job.reading.count(len(data), living, self._loop)

    def _take(self, job: Job, stream: Stream, data: bytes) -> None:
        room = job.limit - stream.total if job.quiet else len(data)
        stream.total += len(data)
        if room > 0:
            job.credit -= len(data[:room])
            self._send(stream, data[:room])
        if room < len(data):
            # Output is read at the end only: beyond its limit, only the end of a stream is kept, so only that is sent.
            stream.tail += data[max(0, room) :]
            excess = len(stream.tail) - (job.limit - job.limit // 2)
            if excess > _READ_BYTES:
                stream.skipped += excess
                del stream.tail[:excess]

    def _send(self, stream: Stream, data: bytes) -> None:
        for offset in range(0, len(data), PIECE_BYTES):
            piece = data[offset : offset + PIECE_BYTES]
            small = stream.packer.pack(piece) if stream.job.packs else None
            if small is None:
                self._say(stream.name, stream.job.number, piece)
            else:
                self._say(stream.name.upper(), stream.job.number, small)

    def _find_nothing(self, stream: Stream) -> None:
        """Nothing was there: after the program's end its output is complete. A terminal's last output comes later."""
        job = stream.job
        if job.end is None or job.reported:
            return
        if job.pty:
            now = time.monotonic()
            if stream.quiet_since is None:
                stream.quiet_since = now
            if now - stream.quiet_since < _TERMINAL_QUIET_SECONDS:
                return
        stream.left = 0
        self._finish(job)

    def _forget_stream(self, stream: Stream) -> None:
        stream.over = True
        stream.left = 0
        self._loop.unwatch(stream.descriptor)
        # A terminal is kept until the program has ended: one that closed its streams just before would get a hang-up.
        if not stream.job.pty or stream.job.end is not None:
            self._close_stream(stream)

    def _close_stream(self, stream: Stream) -> None:
        os.close(stream.descriptor)
        if stream.job.pty:
            self._drop_input(stream.job)

    def _unblock(self, job: Job) -> None:
        blocked, job.blocked = job.blocked, []
        for stream in blocked:
            self._loop.release(stream.descriptor)
            self._read_soon(stream)

    # Input.

    def _feed(self, job: Job) -> None:
        while job.typed and job.input is not None:
            piece = job.typed[0]
            try:
                count = os.write(job.input, piece[:_READ_BYTES])
            except BlockingIOError:
                self._loop.watch_writing(job.input, lambda: self._feed(job))
                return
            except OSError:
                self._close_input(job)
                return
            self._say(b"w", job.number, count.to_bytes(4, "big"))
            if count < len(piece):
                job.typed[0] = piece[count:]
            else:
                job.typed.popleft()
        if job.input is not None:
            self._loop.unwatch(job.input)
        if job.input_ends:
            self._close_input(job)

    def _close_input(self, job: Job) -> None:
        job.typed.clear()
        if job.input is not None and not job.pty:
            self._drop_input(job)
            self._say(b"c", job.number)

    def _drop_input(self, job: Job) -> None:
        if job.input is not None:
            self._loop.unwatch(job.input)
            os.close(job.input)
            job.input = None

    # Ends.

    def _signal(self, job: Job, number: int) -> None:
        if job.pid and job.end is None:
            try:
                os.killpg(job.pid, number)
            except OSError:
                send_signal([job.pid], number)

    def _kill(self, job: Job, reason: str) -> None:
        if job.end is None:
            job.reason = job.reason or reason
            self._kill_from_now(job)

    def _kill_from_now(self, job: Job) -> None:
        job.killing_until = time.monotonic() + _KILL_SECONDS
        self._kill_again(job)

    def _kill_again(self, job: Job) -> None:
        if job.warden in self._wardens:
            # Without a subreaper, orphans are only found by their group.
            end_below((job.warden,), groups=() if sys.platform == "linux" or not job.pid else (job.pid,))
            # The warden also sees hidden processes, and every orphan that is given to it. It may have been stopped.
            send_signal([job.warden], signal.SIGCONT)
            send_signal([job.warden], signal.SIGTERM)
        self._end_strays()

    def _end_strays(self) -> None:
        """End orphans whose warden was killed by its own program: they are our children now."""
        strays = [pid for pid in own_children() if pid not in self._wardens]
        if strays:
            end_below(strays)
            send_signal(strays, signal.SIGKILL)

    def _end_rest(self, number: int) -> None:
        """End what a program left running, and report when it has ended."""
        left = [job for job in self._wardens.values() if job.number == number and job.end is not None]
        for job in left:
            job.rest_asked = True
            self._kill_from_now(job)
        if not left:
            self._say(b"z", number)

    def _listen_to_warden(self, job: Job) -> None:
        try:
            data = os.read(job.status, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, job.heard = (job.heard + data).split(b"\n")
        for line in lines:
            self._believe(job, json.loads(line.decode()))
        if not data:
            self._loop.unwatch(job.status)
            os.close(job.status)
            self._believe(job, {"code": 128 + signal.SIGKILL, "signal": int(signal.SIGKILL), "cpu": None, "peak": None})

    def _believe(self, job: Job, message: dict[str, Any]) -> None:
        if "pid" in message:
            job.pid = message["pid"]
            self._tell(b"s", job.number, {"pid": job.pid})
            return
        job.reading.close_writers()
        if job.end is not None:
            return
        if "error" in message:
            job.reported = True
            job.end = {}
            self._tell(b"f", job.number, message)
            self._drop(job)
            return
        job.end = dict(message, reason=job.reason, wall=time.monotonic() - job.began)
        job.deadline = None
        self._unblock(job)  # its pipes hold little, and the end must not wait for a host that does not read
        if job.reason is not None:
            self._kill_again(job)
        self._close_input(job)
        for stream in job.streams:
            if stream.over and job.pty:
                self._close_stream(stream)
            elif not stream.over:
                stream.left = waiting_bytes(stream.descriptor)
                if stream.left or job.pty:
                    stream.left = stream.left or 1
                    self._read_soon(stream)
        self._finish(job)

    def _finish(self, job: Job) -> None:
        """Report the end, once all output before it has been sent."""
        if job.end is None or job.reported or any(stream.left and stream.left > 0 for stream in job.streams):
            return
        for stream in job.streams:
            excess = max(0, len(stream.tail) - (job.limit - job.limit // 2))
            if stream.skipped + excess:
                self._tell(b"k", job.number, {"stream": stream.name.decode(), "bytes": stream.skipped + excess})
            if stream.tail:
                self._send(stream, bytes(stream.tail[excess:]))
                stream.tail.clear()
        job.reported = True
        self._tell(b"x", job.number, job.end)
        self._drop(job)

    def _drop(self, job: Job) -> None:
        """Forget the program. Output of its children is read and dropped, so that they can go on."""
        self._jobs.pop(job.number, None)
        self._unblock(job)
        self._read_soon(*(stream for stream in job.streams if not stream.over))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._wardens.pop(pid, None)
            if job is None or os.WIFSIGNALED(status):
                # A warden exits when nothing is left. If it was killed, its program did that, and must not gain by it.
                self._end_strays()
                if job is not None and job.pid and sys.platform != "linux":
                    end_below((), groups=(job.pid,))
            if job is not None and job.rest_asked:
                self._say(b"z", job.number)

    # The loop.

    def run(self) -> None:
        """Serve until the host has gone and the last program has ended; if the host owns them, until it has gone."""
        self._say(b"H", os.getpid(), b"z" if HAS_ZLIB else b"")
        self._flush()
        while not self._is_over():
            self._loop.turn(self._patience())
            self._keep_time()
            self._reap()
            if not self._left:
                self._flush()
        if self._folder is not None:
            self._end_all(self._folder)

    def _is_over(self) -> bool:
        if self._folder is not None:
            return self._left or (self._deadline is not None and time.monotonic() >= self._deadline)
        return self._left and not self._wardens

    def _patience(self) -> float:
        moments: list[float] = [job.deadline for job in self._jobs.values() if job.deadline is not None]
        if self._deadline is not None:
            moments.append(self._deadline)
        busy = any(job.killing_until is not None for job in self._wardens.values())
        quiet = any(job.pty and job.end is not None for job in self._jobs.values())
        patience = 0.02 if busy or quiet else 1.0 if self._wardens else 5.0
        return min([patience, *(moment - time.monotonic() for moment in moments)])

    def _keep_time(self) -> None:
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if job.deadline is not None and job.deadline <= now:
                job.deadline = None
                self._kill(job, "timeout")
            if job.pty and job.end is not None:
                self._read_soon(*(stream for stream in job.streams if not stream.over))
        if now >= self._awake_at:
            # A program may stop its warden, and its end would never be reported.
            self._awake_at = now + WAKE_SECONDS
            send_signal(self._wardens, signal.SIGCONT)
            if self._folder is not None and not os.path.isdir(self._folder):
                self._leave()
        for job in list(self._wardens.values()):
            if job.killing_until is not None:
                self._kill_again(job)
                if job.killing_until < now:
                    job.killing_until = None

    def _end_all(self, folder: str) -> None:
        """End all programs, and remove the folder if asked to."""
        for descriptor in (self._reader, self._writer):  # the second tells the host that it is over
            with contextlib.suppress(OSError):
                os.close(descriptor)
        until = time.monotonic() + _KILL_SECONDS
        while (self._wardens or own_children()) and time.monotonic() < until:
            for job in list(self._wardens.values()):
                self._kill_again(job)
            self._end_strays()
            self._reap()
            time.sleep(0.001)
        if self._removes:
            for _ in range(3):
                os.spawnvp(os.P_WAIT, "chmod", ["chmod", "-R", "u+rwx", folder])
                if os.spawnvp(os.P_WAIT, "rm", ["rm", "-rf", folder]) == 0:
                    break
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}.lock")


def main() -> None:
    """Run the agent on standard input and output."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    if os.isatty(0):
        tty.setraw(0)
    Agent(0, 1).run()


if __name__ == "__main__":
    main()
