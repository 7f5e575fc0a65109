"""The window of one sandbox, on the host's side: its sockets, its settings, and the gate that serves them.

The gate is a process of its own (`corral.network.gate`), started by the sandbox's holder when a program inside first
looks up a name or connects. Until then a window costs a few descriptors. Without a gate nothing can be reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from corral.engine import wire
from corral.engine.errors import UnsupportedError
from corral.engine.recipe import BASE_FIRST_UID, UID_RANGE_SIZE
from corral.engine.uidrange import FIRST_UID
from corral.inside.nolinks import opened
from corral.inside.ready import Loop
from corral.network.booting import BOOT
from corral.network.inner import ADDRESS, ADDRESS_V6, DNS_PORT

DENIALS = "denials"
"""The file with what was refused, in the sandbox's folder."""
GATE_SECONDS = 10.0
"""How long a gate may take to apply new settings. Then it is ended, with all connections."""
_PAUSE_SECONDS = 0.2
"""Before the next gate, when one has failed; twice as long each time."""
_LONGEST_PAUSE_SECONDS = 30.0
_GATES_FIRST_UID: Final = BASE_FIRST_UID + 10_000
"""Above the ids of the base's files, in their range: nothing on this machine belongs to these."""
_SO_NETNS_COOKIE: Final = 71
_PACKAGE: Final = str(Path(__file__).resolve().parent.parent)

_SOCKETS: Final = {
    "dns": (socket.AF_INET, socket.SOCK_DGRAM, ADDRESS),
    "tcp4": (socket.AF_INET, socket.SOCK_STREAM, ADDRESS),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ADDRESS_V6),
}
_SENT: Final = (["dns"], ["dns", "tcp4"], ["dns", "tcp4", "tcp6"], ["tcp4"], ["tcp4", "tcp6"])
"""What init may send: at first, and when its sandbox gets a network later."""
Sockets = dict[str, socket.socket]


@dataclass(slots=True, eq=False)
class Window:
    """A sandbox's window, and the gate behind it while one runs."""

    folder: Path
    pid_fd: int
    """Init's; it belongs to the sandbox."""
    sockets: Sockets
    settings_fd: int
    transparent: bool
    """True if connections come to the listeners by themselves; else programs have to use them as their proxy."""
    gate_uid: int | None = None
    _gate: _Gate | None = None
    _ready: bool = False
    _loop: Loop | None = None
    _failures: int = 0
    _started: float = 0.0
    _waiting: deque[Callable[[], object]] = field(default_factory=deque)
    """Called when the gate has applied settings, in the order in which they were sent."""
    _judging: deque[Callable[[], object]] = field(default_factory=deque)
    """Called when the gate has judged the connections that were there, in the same order."""
    _rests: bool = False
    """True while no gate is started because one has failed."""

    @property
    def has_listeners(self) -> bool:
        """False if programs can only look up names."""
        return "tcp4" in self.sockets

    @property
    def proxy_port(self) -> int | None:
        """The port at which programs have to use it as their proxy; None if they need not, or can't."""
        return None if self.transparent or not self.has_listeners else int(self.sockets["tcp4"].getsockname()[1])

    # In a loop.

    def attend(self, loop: Loop) -> None:
        """Start a gate when a program needs one, and notice its end."""
        self._loop = loop
        if self._gate is None:
            self._await_program()
        else:
            loop.watch(self._gate.control.fileno(), self._hear_gate)

    def leave(self) -> None:
        """Stop watching, before it is handed over or closed."""
        if self._loop is not None:
            for sock in self.sockets.values():
                self._loop.unwatch(sock.fileno())
            if self._gate is not None:
                self._loop.unwatch(self._gate.control.fileno())
            self._loop.cancel((self, "wait"))
            self._loop.cancel((self, "settings"))
            self._loop = None

    def settle(self) -> None:
        """Before it is handed over: whoever waits for an answer gets it now."""
        if self._waiting:
            self.end_gate()
        for place, done in enumerate(self._judging):
            done()
            self._judging[place] = _ignore  # the gate still answers, and is not to be ended for it
        self.leave()

    def add(self, sockets: Sockets, *, transparent: bool) -> None:
        """The listeners, which a sandbox without a network did not have."""
        loop = self._loop
        self.leave()
        self.end_gate()  # it does not know them
        self.sockets |= sockets
        self.transparent = transparent
        if loop is not None:
            self.attend(loop)

    def change(self, settings_fd: int, done: Callable[[], object]) -> None:
        """Other settings; their descriptor is ours from now on.

        `done` is called when they are in force: no connection lives on that they do not permit.
        """
        os.close(self.settings_fd)
        self.settings_fd = settings_fd
        gate = self._gate
        if gate is None or not gate.send({"op": "settings"}, settings_fd):
            self._lose_gate()
            done()
            return
        self._waiting.append(done)
        if self._loop is not None:
            self._loop.call_at((self, "settings"), time.monotonic() + GATE_SECONDS, self._lose_gate)

    def finish_judging(self, done: Callable[[], object]) -> None:
        """Call `done` when every connection that programs have made so far is judged, or none will be for now."""
        if self._gate is None and self._loop is not None and not self._rests:
            self._start_gate()
        if self._gate is None or not self._gate.send({"op": "judge"}):
            done()
            return
        self._judging.append(done)

    def _await_program(self) -> None:
        assert self._loop is not None
        self._rests = False
        for sock in self.sockets.values():
            self._loop.watch(sock.fileno(), self._start_gate)

    def _start_gate(self) -> None:
        """A program looks something up or connects. What it sent waits in the sockets."""
        loop = self._loop
        assert loop is not None
        for sock in self.sockets.values():
            loop.unwatch(sock.fileno())  # at once: a flood must not keep us busy
        try:
            self._gate = _Gate.start(self)
        except OSError:
            self._retry_later()
            return
        self._started, self._ready = time.monotonic(), False
        loop.watch(self._gate.control.fileno(), self._hear_gate)

    def _hear_gate(self) -> None:
        assert self._gate is not None
        answer = self._gate.receive()
        if answer is not None and answer.get("ready") and not self._ready:
            self._ready = True
            return
        asked = self._judging if answer is not None and answer.get("judged") else self._waiting
        if answer is None or not answer.get("ok") or not asked:
            # It has ended; or could not apply settings: then nothing goes through; or says what was not asked, as one
            # that was taken over could do without end.
            self._lose_gate()
            return
        asked.popleft()()
        if not self._waiting and self._loop is not None:
            self._loop.cancel((self, "settings"))

    def _lose_gate(self) -> None:
        """The gate has ended, or has to. The next attempt of a program starts another one."""
        if self._gate is None:
            return
        self.end_gate()
        if self._loop is not None:
            self._retry_later()

    def _retry_later(self) -> None:
        assert self._loop is not None
        lived = time.monotonic() - self._started
        self._failures = 0 if lived > _LONGEST_PAUSE_SECONDS else self._failures + 1
        self._rests = True
        pause = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** max(0, self._failures - 1))
        self._loop.call_at((self, "wait"), time.monotonic() + pause, self._await_program)

    # The end.

    def end_gate(self) -> None:
        """Kill the gate, if there is one. Whoever waits for it is answered: none of its connections is left."""
        gate, self._gate = self._gate, None
        if self._loop is not None:
            self._loop.cancel((self, "settings"))
            if gate is not None:
                self._loop.unwatch(gate.control.fileno())
        if gate is not None:
            gate.end()
        self._answer_all(self._waiting)
        self._answer_all(self._judging)

    @staticmethod
    def _answer_all(waiting: deque[Callable[[], object]]) -> None:
        while waiting:
            waiting.popleft()()

    def descriptors(self) -> list[int]:
        """What its holder keeps open."""
        gate = [] if self._gate is None else [self._gate.control.fileno(), self._gate.pid_fd]
        return [self.settings_fd, *(sock.fileno() for sock in self.sockets.values()), *gate]

    def let_go(self) -> None:
        """Close our descriptors; a gate that another process holds as well runs on."""
        self.leave()
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        for sock in self.sockets.values():
            sock.close()
        os.close(self.settings_fd)


@dataclass(frozen=True, slots=True)
class _Gate:
    """A running gate."""

    pid_fd: int
    control: socket.socket

    @classmethod
    def start(cls, window: Window) -> _Gate:
        """Start one. Does not wait for it. Raises: OSError."""
        with contextlib.ExitStack() as stack:
            ours, theirs = wire.make_pair()
            stack.enter_context(theirs)
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(ours.close)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            denials = stack.enter_context(opened(os.open(window.folder / DENIALS, flags, 0o600)))
            null = stack.enter_context(opened(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)))
            given = {name: sock.fileno() for name, sock in window.sockets.items()}
            given |= {
                "control": theirs.fileno(),
                "settings": window.settings_fd,
                "denials": denials,
                "sandbox": window.pid_fd,
            }
            first = max(*given.values(), null, 2) + 1
            placed = {name: first + index for index, name in enumerate(given)}
            uid = window.gate_uid
            told = {"package": _PACKAGE, "tcp4": None, "tcp6": None, **placed, "uid": uid, "gid": uid}
            line = stack.enter_context(opened(wire.memory_file(json.dumps(told).encode() + b"\n")))
            # 2 stays: it is the launcher's, /dev/null unless the engine is debugged.
            moves = [(line, 0), (null, 1), *((given[name], placed[name]) for name in given)]
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", BOOT],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in moves],
                setsid=True,
                setsigdef=[signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
            )
            pid_fd = os.pidfd_open(pid)
            undo.pop_all()
        ours.setblocking(False)
        return cls(pid_fd, ours)

    def send(self, message: wire.Message, *descriptors: int) -> bool:
        """False if it has ended, or does not listen."""
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], descriptors)
        except OSError:
            return False
        return True

    def receive(self) -> wire.Message | None:
        """An answer; None at its end, and for anything that is not an answer."""
        try:
            answer = json.loads(self.control.recv(wire.MAX_INLINE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None

    def end(self) -> None:
        """Kill and reap it: unless it is another process's child, and reaped there."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pid_fd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pid_fd, os.WEXITED)
        self.close()

    def close(self) -> None:
        """Close our descriptors. Without any other holder, it ends."""
        self.control.close()
        os.close(self.pid_fd)


def _ignore() -> None:
    """For an answer that nobody waits for any more."""


def choose_uid(first_uid: int) -> int:
    """The user of the gate of the sandbox with this range: no other gate's, and no sandbox's."""
    return _GATES_FIRST_UID + (first_uid - FIRST_UID) // UID_RANGE_SIZE


def receive_sockets(names: object, descriptors: list[int]) -> Sockets:
    """The sockets that init has made, checked: init is not trusted. They are closed if this raises.

    Raises:
        UnsupportedError: one is not what it is called, or is of our own network; or this kernel can't tell.
    """
    sockets: Sockets = {}
    try:
        if names not in _SENT or len(names) != len(descriptors):
            raise UnsupportedError("init has sent unknown sockets")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            networks = {_find_network(own)}
        for name, descriptor in zip(names, descriptors, strict=True):
            sockets[name] = socket.socket(fileno=descriptor)
            _check(sockets[name], name)
            networks.add(_find_network(sockets[name]))
        if len(networks) != (2 if sockets else 1):
            raise UnsupportedError("init has sent sockets of another network")
    except (OSError, UnsupportedError) as error:
        for sock in sockets.values():
            sock.detach()
        wire.close_all(descriptors)
        if isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError("this kernel can't give a sandbox a network", hint=_KERNEL_HINT) from error
    return sockets


_KERNEL_HINT = "it needs Linux 5.14; without network= it works on older ones"


def _check(sock: socket.socket, name: str) -> None:
    family, kind, address = _SOCKETS[name]
    protocol = socket.IPPROTO_TCP if kind == socket.SOCK_STREAM else socket.IPPROTO_UDP
    options = (socket.SO_DOMAIN, socket.SO_TYPE, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN)
    found = tuple(sock.getsockopt(socket.SOL_SOCKET, option) for option in options)
    bound = sock.getsockname()
    listens = kind == socket.SOCK_STREAM
    if found != (family, kind, protocol, listens) or bound[0] != address or (not listens and bound[1] != DNS_PORT):
        raise UnsupportedError(f"init has sent a socket that is no {name}")


def _find_network(sock: socket.socket) -> int:
    """A number for the network namespace of a socket. Raises: OSError before Linux 5.14."""
    (cookie,) = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    return int(cookie)
