"""INSIDE: starts programs, passes on what they print, and ends them with all that they started.

It is sent into a sandbox as text and talks over one terminal that was made raw: frames of a kind, a number and some
bytes, both ways. It needs nothing but a Python of 3.7 or later. Nothing of it is imported on the host.

Each program stands under a warden: a child of ours that is a subreaper, so that whatever a program leaves behind stays
below it and can be found. What a program prints is only passed on as fast as the host says that it took it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import termios
import time
import tty

from corral.backends.daytona.insidecall import PACKS, Call, Stream, due, inflate
from corral.backends.daytona.insidetree import (
    WAKE_SECONDS,
    become_subreaper,
    end_below,
    own_children,
    send_signal,
    waiting_bytes,
    watch_over,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">cII")
READ_BYTES = 64 * 1024
EXACT_BYTES = 64 * 1024
NAP_SECONDS = 0.001
KILL_SECONDS = 10.0
TERMINAL_QUIET_SECONDS = 0.1


class Agent:
    """The loop."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.epoll = select.epoll()
        self.sources: dict[int, Call | Stream | tuple[Call]] = {}
        self.again: list[int] = []
        self.naps: list[tuple[float, Stream]] = []
        self.calls: dict[int, Call] = {}
        self.wardens: dict[int, Call] = {}
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.awake_at = 0.0
        self.left = False  # the host has let go of us
        os.set_blocking(terminal, False)
        self.epoll.register(terminal, select.EPOLLIN)

    # Frames.

    def say(self, kind: bytes, number: int, data: bytes = b"") -> None:
        if self.left:
            return
        self.outgoing += HEAD.pack(kind, number, len(data))
        self.outgoing += data

    def tell(self, kind: bytes, number: int, message: dict[str, Any]) -> None:
        self.say(kind, number, json.dumps(message).encode())

    def flush(self) -> None:
        while self.outgoing:
            try:
                count = os.write(self.terminal, self.outgoing[:65536])
            except BlockingIOError:
                break
            except OSError:
                self.left = True
                self.outgoing.clear()
                break
            del self.outgoing[:count]
        events = select.EPOLLIN | (select.EPOLLOUT if self.outgoing else 0)
        self.epoll.modify(self.terminal, events)

    def hear(self) -> None:
        while True:
            try:
                data = os.read(self.terminal, 65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.leave()
                return
            self.incoming += data
            if len(self.incoming) > 1 << 20:
                break
        while len(self.incoming) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self.incoming)
            if len(self.incoming) < HEAD.size + size:
                break
            data = bytes(self.incoming[HEAD.size : HEAD.size + size])
            del self.incoming[: HEAD.size + size]
            self.obey(kind, number, data)

    def leave(self) -> None:
        """The host is gone: programs go on, and what they print is nobody's."""
        self.left = True
        self.outgoing.clear()
        with contextlib.suppress(OSError, ValueError):
            self.epoll.unregister(self.terminal)
        for call in self.calls.values():
            call.credit = 1 << 60
            self.again += [stream.descriptor for stream in call.blocked]
            call.blocked.clear()

    def obey(self, kind: bytes, number: int, data: bytes) -> None:
        if number == 0:
            self.leave() if kind == b"D" else self.say(b"P", 0)
            return
        if kind == b"S":
            self.start(number, json.loads(data.decode("utf-8", "surrogatepass")))
            return
        call = self.calls.get(number)
        if call is None:
            return
        if kind == b"A":
            call.credit += int.from_bytes(data, "big")
            if call.credit > 0 and call.blocked:
                self.again += [stream.descriptor for stream in call.blocked]
                call.blocked.clear()
        elif kind in (b"I", b"J"):
            call.typed.append(data if kind == b"I" else inflate(data))
            self.feed(call)
        elif kind == b"E":
            if call.pty:
                call.typed.append(b"\x04")
            else:
                call.input_ends = True
            self.feed(call)
        elif kind == b"G":
            self.signal(call, int.from_bytes(data, "big"))
        elif kind == b"R":
            self.resize(call, *struct.unpack(">HH", data))
        elif kind == b"K":
            self.kill(call, data.decode())

    # Starting.

    def start(self, number: int, wish: dict[str, Any]) -> None:
        call = Call(number, wish)
        opened: list[int] = []
        try:
            inner = call.open(opened)
            call.status, status_end = os.pipe2(os.O_CLOEXEC)
            opened += [call.status, status_end]
            os.set_blocking(call.status, False)
            call.warden = os.fork()
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            self.tell(b"f", number, {"error": "fork", "text": error.strerror or str(error)})
            return
        if call.warden == 0:
            try:
                watch_over(wish, inner, status_end)
            finally:
                os._exit(0)
        for descriptor in {*inner, status_end}:
            os.close(descriptor)
        self.calls[number] = call
        self.wardens[call.warden] = call
        self.sources[call.status] = call
        self.epoll.register(call.status, select.EPOLLIN)
        for stream in call.streams.values():
            self.sources[stream.descriptor] = stream
            self.epoll.register(stream.descriptor, select.EPOLLIN | select.EPOLLET)
        if wish.get("timeout") is not None:
            call.deadline = call.began + wish["timeout"]

    # What programs print.

    def read(self, stream: Stream) -> bool:
        """Take one piece. Whether there may be more."""
        call = stream.call
        if stream.over:
            return False
        if call.credit <= 0 and not call.told:
            call.blocked.append(stream)
            return False
        try:
            data = os.read(stream.descriptor, READ_BYTES)
        except BlockingIOError:
            self.find_nothing(stream)
            return False
        except OSError:
            data = b""
        if not data:
            self.forget_stream(stream)
            self.finish(call)
            return False
        stream.quiet_since = None
        if not call.told:
            self.take(call, stream, data)
            if stream.left is not None and not call.pty:
                stream.left -= len(data)
                if stream.left <= 0:
                    self.finish(call)
        call.read_bytes += len(data)
        if not call.pty and call.read_bytes - len(data) < EXACT_BYTES <= call.read_bytes:
            call.loosen(self.epoll)
        if stream.naps and len(data) < READ_BYTES // 4 and call.end is None:
            self.naps.append((time.monotonic() + NAP_SECONDS, stream))
            return False
        # While order is exact, a pipe holds one packet, and the next one makes an event of its own.
        return call.pty or call.read_bytes > EXACT_BYTES or call.end is not None

    def take(self, call: Call, stream: Stream, data: bytes) -> None:
        room = call.limit - stream.total if call.quiet else len(data)
        stream.total += len(data)
        if room > 0:
            call.credit -= len(data[:room])
            self.say(*stream.packed(call.number, data[:room]))
        if room < len(data):
            # Nobody listens: of a stream beyond its limit only the end will be kept, so only that is sent.
            stream.tail += data[max(0, room) :]
            excess = len(stream.tail) - (call.limit - call.limit // 2)
            if excess > READ_BYTES:
                stream.skipped += excess
                del stream.tail[:excess]

    def find_nothing(self, stream: Stream) -> None:
        """To be told of more; after the program's end, its output is whole. A terminal's last words come later."""
        if stream.naps:
            self.epoll.modify(stream.descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        if stream.call.end is None or stream.call.told:
            return
        if stream.call.pty:
            now = time.monotonic()
            if stream.quiet_since is None:
                stream.quiet_since = now
            if now - stream.quiet_since < TERMINAL_QUIET_SECONDS:
                return
        stream.left = 0
        self.finish(stream.call)

    def forget_stream(self, stream: Stream) -> None:
        stream.over = True
        stream.left = 0
        self.sources.pop(stream.descriptor, None)
        self.epoll.unregister(stream.descriptor)
        if stream.call.input == stream.descriptor:
            stream.call.input = None
        os.close(stream.descriptor)

    # Input.

    def feed(self, call: Call) -> None:
        while call.typed and call.input is not None:
            piece = call.typed[0]
            try:
                count = os.write(call.input, piece[:65536])
            except BlockingIOError:
                self.watch_input(call, True)
                return
            except OSError:
                self.close_input(call)
                return
            self.say(b"w", call.number, count.to_bytes(4, "big"))
            if count < len(piece):
                call.typed[0] = piece[count:]
            else:
                call.typed.pop(0)
        self.watch_input(call, False)
        if call.input_ends:
            self.close_input(call)

    def watch_input(self, call: Call, wanted: bool) -> None:
        if call.input is None:
            return
        if call.pty:
            stream = call.streams[b"o"]
            if not stream.over:
                events = select.EPOLLIN | select.EPOLLET | (select.EPOLLOUT if wanted else 0)
                self.epoll.modify(stream.descriptor, events)
            return
        if wanted and call.input not in self.sources:
            self.sources[call.input] = (call,)
            self.epoll.register(call.input, select.EPOLLOUT)
        elif not wanted and self.sources.pop(call.input, None) is not None:
            self.epoll.unregister(call.input)

    def close_input(self, call: Call) -> None:
        call.typed.clear()
        if call.input is None or call.pty:
            return
        self.watch_input(call, False)
        os.close(call.input)
        call.input = None
        self.say(b"c", call.number)

    def resize(self, call: Call, rows: int, columns: int) -> None:
        stream = call.streams.get(b"o")
        if call.pty and stream is not None and not stream.over:
            fcntl.ioctl(stream.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # Ends.

    def signal(self, call: Call, number: int) -> None:
        if call.pid and call.end is None:
            try:
                os.killpg(call.pid, number)
            except OSError:
                send_signal([call.pid], number)

    def kill(self, call: Call, reason: str) -> None:
        if call.end is None:
            call.reason = call.reason or reason
            call.killing_until = time.monotonic() + KILL_SECONDS
            self.kill_again(call)

    def kill_again(self, call: Call) -> None:
        if call.warden in self.wardens:
            end_below(call.warden)
            # It sees also those that hide, and whoever comes to it as an orphan; a stopped one is let go on first.
            send_signal([call.warden], signal.SIGCONT)
            send_signal([call.warden], signal.SIGTERM)
        self.end_strays()

    def end_strays(self) -> None:
        """What a warden held that was killed by its own program has come to us."""
        strays = [pid for pid in own_children() if pid not in self.wardens]
        for pid in strays:
            end_below(pid)
        send_signal(strays, signal.SIGKILL)

    def listen_to_warden(self, call: Call) -> None:
        try:
            data = os.read(call.status, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        call.heard += data
        *lines, call.heard = call.heard.split(b"\n")
        for line in lines:
            self.believe(call, json.loads(line.decode()))
        if not data:
            self.sources.pop(call.status, None)
            self.epoll.unregister(call.status)
            os.close(call.status)
            self.believe(call, {"code": 128 + signal.SIGKILL, "signal": int(signal.SIGKILL), "cpu": None, "peak": None})

    def believe(self, call: Call, message: dict[str, Any]) -> None:
        if "pid" in message:
            call.pid = message["pid"]
            self.tell(b"s", call.number, {"pid": call.pid})
            return
        call.end_packets()
        if "error" in message:
            if call.end is None:
                call.told = True
                call.end = {}
                self.tell(b"f", call.number, message)
                self.drop(call)
        elif call.end is None:
            call.end = dict(message, reason=call.reason, wall=time.monotonic() - call.began)
            call.deadline = None
            if call.reason is not None:
                self.kill_again(call)
            self.close_input(call)
            for stream in call.streams.values():
                if not stream.over:
                    stream.left = waiting_bytes(stream.descriptor)
                    if stream.left or call.pty:
                        stream.left = stream.left or 1
                        self.again.append(stream.descriptor)
            self.finish(call)

    def finish(self, call: Call) -> None:
        """Tell the end, once everything that was printed before it has been told."""
        if call.end is None or call.told:
            return
        if any(stream.left and stream.left > 0 for stream in call.streams.values()):
            return
        for stream in call.streams.values():
            excess = max(0, len(stream.tail) - (call.limit - call.limit // 2))
            if stream.skipped + excess:
                self.tell(b"k", call.number, {"stream": stream.name.decode(), "bytes": stream.skipped + excess})
            if stream.tail:
                rest = bytes(stream.tail[excess:])
                for offset in range(0, len(rest), READ_BYTES):
                    self.say(*stream.packed(call.number, rest[offset : offset + READ_BYTES]))
                stream.tail.clear()
        call.told = True
        self.tell(b"x", call.number, call.end)
        self.drop(call)

    def drop(self, call: Call) -> None:
        """Nobody asks for it any more; what its children print is read and thrown away, so that they can go on."""
        self.calls.pop(call.number, None)
        call.blocked.clear()
        for stream in list(call.streams.values()):
            if not stream.over:
                self.again.append(stream.descriptor)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.wardens.pop(pid, None) is None or os.WIFSIGNALED(status):
                # It goes when there is nobody left; if it was killed, its own program did it, and shall not gain by it.
                self.end_strays()

    # The loop.

    def serve(self, descriptor: int, events: int) -> None:
        source = self.sources.get(descriptor)
        if isinstance(source, Call):
            self.listen_to_warden(source)
        elif isinstance(source, tuple):
            self.feed(source[0])
        elif isinstance(source, Stream):
            if source.call.pty and events & select.EPOLLOUT:
                self.feed(source.call)
            if events & ~select.EPOLLOUT and self.read(source):
                self.again.append(descriptor)

    def run(self) -> None:
        self.say(b"H", os.getpid(), PACKS)
        self.flush()
        while not (self.left and not self.wardens):
            waiting, self.again = self.again, []
            for descriptor, events in self.epoll.poll(self.patience(waiting)):
                if descriptor == self.terminal:
                    if events & ~select.EPOLLOUT:
                        self.hear()
                else:
                    self.serve(descriptor, events)
            # After everything that was ready by itself: that is what keeps the order.
            for descriptor in waiting:
                self.serve(descriptor, select.EPOLLIN)
            self.again += due(self.naps)
            self.keep_time()
            self.reap()
            if not self.left:
                self.flush()

    def patience(self, waiting: list[int]) -> float:
        if waiting:
            return 0.0
        moments = [call.deadline for call in self.calls.values() if call.deadline is not None]
        moments += [moment for moment, _ in self.naps[:1]]
        busy = [call for call in self.wardens.values() if call.killing_until is not None]
        quiet = [call for call in self.calls.values() if call.pty and call.end is not None]
        patience = 1.0 if self.wardens else 5.0
        if busy or quiet:
            patience = 0.02
        if moments:
            patience = min(patience, max(0.0, min(moments) - time.monotonic()))
        return patience

    def keep_time(self) -> None:
        now = time.monotonic()
        for call in list(self.calls.values()):
            if call.deadline is not None and call.deadline <= now:
                call.deadline = None
                self.kill(call, "timeout")
            if call.pty and call.end is not None:
                self.again += [stream.descriptor for stream in call.streams.values() if not stream.over]
        if now >= self.awake_at:
            # A program may stop its warden, and then wait for ever to be told of its end.
            self.awake_at = now + WAKE_SECONDS
            send_signal(self.wardens, signal.SIGCONT)
        for call in list(self.wardens.values()):
            if call.killing_until is not None:
                self.kill_again(call)
                if call.killing_until is not None and call.killing_until < now:
                    call.killing_until = None


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    become_subreaper()
    tty.setraw(0)
    Agent(0).run()


if __name__ == "__main__":
    main()
