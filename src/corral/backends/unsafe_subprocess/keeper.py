"""The program behind one sandbox: starts its programs, knows the tree of each, and ends with its owner.

Run by path as `python -I -S keeper.py CONTROL LIFE LOCK FOLDER SECONDS`, so it imports the standard library only. It is
single-threaded, and forks a *warden* for each call: the parent of one program, and (on Linux) the child subreaper under
which everything comes to lie that the program's children leave behind.

On the control socket comes one byte at a time: `C` with the descriptor of a call's channel, or `E` for the end. The
life socket says nothing; when it closes, the owner is gone, and so is the sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from typing import Any, NoReturn

READY = b"R"
CALL, END = b"C", b"E"
STREAMS = 3
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 200
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_PATH = "/usr/local/bin:/usr/bin:/bin"


# Which processes there are.


def list_processes() -> dict[int, tuple[int, int, bool]]:
    """Every process: its parent, its session (or group, where sessions are not told), and whether it is a zombie."""
    if os.path.isdir("/proc/self"):
        return _list_proc()
    found: dict[int, tuple[int, int, bool]] = {}
    said = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, check=False).stdout
    for line in said.decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) == 4 and all(word.isdigit() for word in words[:3]):
            found[int(words[0])] = (int(words[1]), int(words[2]), words[3].startswith("Z"))
    return found


def _list_proc() -> dict[int, tuple[int, int, bool]]:
    found: dict[int, tuple[int, int, bool]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                words = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue
        if len(words) > 17:
            # One with more than one thread lives: only its first thread has ended.
            found[int(name)] = (int(words[1]), int(words[3]), words[0] == b"Z" and int(words[17]) <= 1)
    return found


def find_descendants(roots: Iterable[int], *, sessions: Iterable[int] = ()) -> set[int]:
    """All that live below these processes, or in these sessions. Zombies are left out."""
    every, known, wanted = list_processes(), set(roots), set(sessions)
    children: dict[int, list[int]] = {}
    for pid, (parent, session, _) in every.items():
        children.setdefault(parent, []).append(pid)
        if session in wanted:
            known.add(pid)
    stack = list(known)
    while stack:
        pid = stack.pop()
        for child in children.get(pid, ()):
            if child not in known:
                known.add(child)
                stack.append(child)
    return {pid for pid in known if pid in every and not every[pid][2]} - {os.getpid()}


def send(pid: int, number: int) -> None:
    """A signal, to whoever still takes one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_below(roots: Iterable[int], *, sessions: Iterable[int] = ()) -> None:
    """Stop all below these until no more are found, then kill them: nothing slips through by forking."""
    roots, sessions, seen = tuple(roots), tuple(sessions), set[int]()
    for _ in range(_ROUNDS):
        new = find_descendants(roots, sessions=sessions) - seen - set(roots)
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
        seen |= new
    for pid in seen:
        send(pid, signal.SIGKILL)


# One call.


class Warden:
    """The parent of one program."""

    def __init__(self, channel: socket.socket, alive: int) -> None:
        self._channel = channel
        self._alive = alive
        self._program = 0
        self._begun = time.monotonic()
        self._deadline: float | None = None
        self._reason = ""
        self._ended = False
        self._ending = False
        self._last: tuple[int, Any] | None = None
        self._listening = True
        self._heard = b""

    def serve(self) -> None:
        """From the request to the end of the last process of the call."""
        request, streams = receive_request(self._channel)
        if request is None:
            return
        wake = make_wake_pipe()
        if not self._start(request, streams):
            return
        self._deadline = None if request["timeout"] is None else self._begun + request["timeout"]
        while self._is_needed():
            ready = self._wait(wake)
            if wake in ready:
                drain(wake)
            if self._alive in ready:
                self._channel.close()  # first: that the sandbox is gone is no result of its programs
                self._end("cancelled")
                return
            if self._channel in ready and not self._hear():
                return
            if self._deadline is not None and time.monotonic() >= self._deadline and not self._ended:
                self._end("timeout")

    def _wait(self, wake: int) -> list[Any]:
        # Without a subreaper nobody is told when the last of a session goes: then we look now and then.
        patience = None if sys.platform == "linux" else _LOOK_SECONDS
        if self._deadline is not None and not self._ended:
            patience = max(0.0, self._deadline - time.monotonic())
        heard: list[Any] = [self._channel] if self._listening else []
        return select.select([*heard, wake, self._alive], [], [], patience)[0]

    def _is_needed(self) -> bool:
        """Whether something of the call still runs."""
        return self._reap() or bool(self._sessions())

    def _sessions(self) -> tuple[int, ...]:
        """Its program's session, where orphans don't come to us. As long as one lives in it, nobody gets its number."""
        if sys.platform == "linux":
            return ()
        with contextlib.suppress(PermissionError):  # somebody else's is there, too
            try:
                os.killpg(self._program, 0)
            except ProcessLookupError:
                return ()
        return (self._program,)

    def _start(self, request: dict[str, Any], streams: list[int]) -> bool:
        report, theirs = os.pipe()
        try:
            self._program = os.fork()
        except OSError as error:
            self._say({"error": "fork", "text": error.strerror})
            return False
        if self._program == 0:
            os.close(report)
            become(request, streams, theirs)
        os.close(theirs)
        close_all(streams)
        with os.fdopen(report, "rb") as file:
            said = file.read(4096)
        if said:
            os.waitpid(self._program, 0)
            code, _, text = said.decode("utf-8", "replace").partition("\0")
            self._say({"error": code, "text": text})
            return False
        self._say({"started": self._program})
        return True

    def _hear(self) -> bool:
        """What the owner wants. False when there is nobody any more to whom this call means something."""
        try:
            data = self._channel.recv(65536)
        except OSError:
            data = b""
        if not data:
            # Let go of while the program runs, it is a cancellation. Afterwards what it left goes on without us.
            if not self._ended:
                self._end("cancelled")
                return False
            self._listening = False
            return True
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["op"] == "signal" and not self._ended:
                with contextlib.suppress(OSError):  # it is its session's first, and so its group's
                    os.killpg(self._program, message["number"])
            elif message["op"] == "kill":
                self._end(message["reason"])
            elif message["op"] == "rest":
                self._end("cancelled")
                self._say({"rest": "ended"})
        return True

    def _end(self, reason: str) -> None:
        """End all of it, now."""
        if not self._ended and not self._reason:
            self._reason = reason
        guard = time.monotonic() + _KILL_SECONDS
        self._ending = True
        while self._is_needed() and time.monotonic() < guard:
            end_below((os.getpid(),), sessions=self._sessions())
            time.sleep(0.001)
        self._ending = False
        self._tell_end()

    def _reap(self) -> bool:
        """Take note of who has ended. False when nobody is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._program and not self._ended:
                self._ended = True
                self._last = status, usage
                if not self._ending:  # else when all of its tree has ended
                    self._tell_end()

    def _tell_end(self) -> None:
        if self._last is None:
            return
        (status, usage), self._last = self._last, None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        reason = "signalled" if number else "exited"
        self._say(
            {
                "ended": 128 + number if number else os.WEXITSTATUS(status),
                "signal": number,
                "reason": self._reason if self._reason and number == signal.SIGKILL else reason,
                "wall_seconds": time.monotonic() - self._begun,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "peak_memory_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            }
        )

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def receive_request(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A byte with the three streams, eight of a length, and so much JSON. None if the owner has let go meanwhile."""
    first, streams, _, _ = socket.recv_fds(channel, 1, STREAMS)
    content = bytearray()
    wanted = 8
    while first and len(content) < wanted:
        piece = channel.recv(min(wanted - len(content), 1 << 20))
        if not piece:
            break
        content += piece
        if len(content) == 8 == wanted:
            wanted += int.from_bytes(content, "big")
    if not first or len(content) < wanted or len(streams) != STREAMS:
        return None, []  # the warden ends, and what it has received is closed with it
    return json.loads(content[8:]), streams


def become(request: dict[str, Any], streams: list[int], report: int) -> NoReturn:
    """Turn this child into the program. What went wrong before that is said to `report`."""
    status = _NOT_EXECUTABLE
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        # Numbers 0–2 may themselves be sources: all are copied out of the way first. The rest closes with execve.
        safe = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in streams]
        close_all(streams)
        report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, 10)
        for target, source in enumerate(safe):
            os.dup2(source, target, inheritable=True)
        if request["pty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            os.write(report, f"cwd\0{error.strerror}".encode())
            os._exit(status)
        status = execute(request["argv"], request["env"], report)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second warden
        os.write(report, f"setup\0{error!r}".encode()[:4000])
    os._exit(status)


def execute(given: list[str], env: dict[str, str], report: int) -> int:
    """execve along PATH. Comes back only if nothing could be started; the shell's codes say why."""
    name, refusal = given[0], 0
    folders = [""] if "/" in name else env.get("PATH", _PATH).split(":")
    for folder in folders:
        path = f"{folder}/{name}" if folder else name
        try:
            os.execve(path, given, env)
        except OSError as error:
            if error.errno == errno.E2BIG:
                os.write(report, b"too_big\0")
                return _NOT_EXECUTABLE
            if error.errno == errno.ENOEXEC:  # a script without #!, as execvp and every shell do
                os.execve("/bin/sh", ["/bin/sh", path, *given[1:]], env)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                refusal = error.errno or errno.EACCES
    text = os.strerror(refusal) if refusal else "command not found"
    os.write(2, f"corral: {name}: {text}\n".encode("utf-8", "surrogateescape"))
    return _NOT_EXECUTABLE if refusal else _NOT_FOUND


def close_all(descriptors: Iterable[int]) -> None:
    """Close what was received."""
    for descriptor in descriptors:
        os.close(descriptor)


def make_wake_pipe() -> int:
    """Becomes readable when a child has ended."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def drain(reader: int) -> None:
    """Empty a pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(reader, 4096):
            pass


def become_subreaper() -> None:
    """On Linux orphans of ours come to us. Elsewhere they go to the first process, and sessions must find them."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# The sandbox.


class Keeper:
    """Holds the sandbox's lock and folder, and its calls."""

    def __init__(self, control: socket.socket, life: socket.socket, folder: str, seconds: float | None) -> None:
        self._control = control
        self._life = life
        self._folder = folder
        self._deadline = time.monotonic() + seconds if seconds is not None else None
        self._wardens: set[int] = set()
        self._alive, self._hold = os.pipe()
        self._wake = make_wake_pipe()

    def serve(self) -> None:
        """Until the owner goes, says so, or time is over."""
        self._life.sendall(READY)
        while True:
            patience = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            watched: list[Any] = [self._control, self._life, self._wake]
            ready = select.select(watched, [], [], patience)[0]
            if self._wake in ready:
                drain(self._wake)
                self._reap()
            if self._life in ready or (self._deadline is not None and time.monotonic() >= self._deadline):
                return
            if self._control in ready and not self._take():
                return

    def _take(self) -> bool:
        try:
            word, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError:
            return False
        if word == CALL and descriptors:
            os.set_inheritable(descriptors[0], False)
            channel = socket.socket(fileno=descriptors[0])
            try:
                pid = os.fork()
            except OSError:
                channel.close()
                return True
            if pid == 0:
                self._become_warden(channel)
            self._wardens.add(pid)
            channel.close()
            return True
        close_all(descriptors)
        return word not in (b"", END)

    def _become_warden(self, channel: socket.socket) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._control.detach(), self._life.detach(), self._hold, self._wake):
                os.close(descriptor)
            os.setpgid(0, 0)
            become_subreaper()
            Warden(channel, self._alive).serve()
        finally:
            os._exit(0)

    def _reap(self) -> None:
        lost = False
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                lost = lost or (ended[0] in self._wardens and os.WIFSIGNALED(ended[1]))
                self._wardens.discard(ended[0])
        if lost:
            # Its program has killed its warden: what it left has come to us, and nobody else will end it.
            orphans = {pid for pid, (parent, _, _) in list_processes().items() if parent == os.getpid()}
            orphans -= self._wardens
            end_below(orphans)
            for pid in orphans:
                send(pid, signal.SIGKILL)

    def end(self) -> None:
        """End all that runs, and remove what was written."""
        self._control.close()  # from now on everybody sees that it is gone
        guard = time.monotonic() + _KILL_SECONDS
        if sys.platform != "linux":
            os.close(self._hold)  # the wardens end what only they know
            while self._wardens and time.monotonic() < guard:
                self._reap()
                time.sleep(0.01)
        while True:
            end_below((os.getpid(),))
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > guard or not find_descendants((os.getpid(),)):
                break
            time.sleep(0.001)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for _ in range(3):
            subprocess.run(["chmod", "-R", "u+rwx", self._folder], stderr=subprocess.DEVNULL, check=False)
            if subprocess.run(["rm", "-rf", self._folder], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                break
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}.lock")


def main(arguments: list[str]) -> None:
    """What the module's docstring says."""
    control, life, lock, folder, seconds = arguments
    with contextlib.suppress(OSError):
        os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for descriptor in (control, life, lock):
        os.set_inheritable(int(descriptor), False)
    become_subreaper()
    keeper = Keeper(
        socket.socket(fileno=int(control)), socket.socket(fileno=int(life)), folder, float(seconds) if seconds else None
    )
    try:
        keeper.serve()
    finally:
        keeper.end()


if __name__ == "__main__":
    main(sys.argv[1:])
