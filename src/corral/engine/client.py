"""The client of the launcher: starts it, sends requests, and ends it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

from corral.engine import wire
from corral.engine.datafolder import secure
from corral.engine.errors import (
    EngineError,
    GoneError,
    RefusedError,
    SetupError,
    UnsupportedError,
    explain_shortage,
)
from corral.inside.nolinks import on_error

_START_SECONDS = 30.0
_SHUTDOWN_SECONDS = 15.0

# The launcher must not run corral/__init__.py nor anything of site-packages: an empty module replaces the package.
_BOOT = (
    "import sys,types,json;p=json.loads(sys.stdin.readline());m=types.ModuleType('corral');m.__path__=[p['package']];"
    "sys.modules['corral']=m;from corral.engine.launcher import main;main(p['fd'],p)"
)


class LauncherClient:
    """The launcher of this process. For any thread; each request has its own answer socket."""

    def __init__(self, data_folder: Path) -> None:
        self._data = data_folder
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def ask(self, message: wire.Message, descriptors: tuple[int, ...] = (), *, timeout: float = 60.0) -> wire.Message:
        """Send a request and wait for the answer. Blocks. Raises: as `peer`, GoneError, and the errors of `check`."""
        with ask(self.peer, message, descriptors) as answer:
            return check(receive_within(answer, timeout))

    def shutdown(self) -> None:
        """End every sandbox and the launcher, and wait for it. Needs no event loop. Idempotent."""
        with self._lock:
            sock, process = self._socket, self._process
            self._socket = self._process = None
        if sock is None or process is None:
            return
        if os.getpid() != self._owner:
            sock.close()  # a forked child: the launcher is not ours to end
            return
        with contextlib.suppress(OSError, GoneError), ask(sock, {"op": "shutdown"}, ()) as answer:
            receive_within(answer, _SHUTDOWN_SECONDS)
        sock.close()
        try:
            process.wait(_SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def abandon(self) -> None:
        """In a forked child: forget the parent's launcher, which is not affected."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
        self._process = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @property
    def started(self) -> bool:
        """True if the launcher runs, so that a request does not have to wait for its start."""
        return self._socket is not None

    def start(self) -> None:
        """Start the launcher if it does not run. Blocks for some tens of milliseconds. Raises: as `peer`."""
        _ = self.peer

    @property
    def peer(self) -> socket.socket:
        """The socket for requests. Starts the launcher. Raises: UnsupportedError if it can't run here."""
        with self._lock:
            if self._socket is not None and self._process is not None and self._process.poll() is not None:
                # It died, and its sandboxes with it. A new one clears up.
                self._socket.close()
                self._socket = None
            if self._socket is None:
                self._start()
            assert self._socket is not None
            return self._socket

    def _start(self) -> None:
        if sys.platform != "linux":
            raise UnsupportedError(
                "the embedded engine needs Linux", hint="use another backend, such as docker or daytona"
            )
        import json

        secure(self._data)  # the launcher checks it as well; here the error has a hint
        package = str(Path(__file__).resolve().parent.parent)
        with wire.offering(socket.socket) as (ours, theirs):
            settings = {"package": package, "fd": theirs.fileno(), "data": str(self._data)}
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=None if os.environ.get("CORRAL_ENGINE_DEBUG") else subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                raise UnsupportedError(
                    f"can't start this Python again: {error.strerror}",
                    hint="use an interpreter that this user may execute",
                ) from error
            theirs.close()  # if the launcher fails, our end is at its end
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(settings).encode() + b"\n")
                process.stdin.close()
            with on_error(process.wait), on_error(process.kill):
                answer = receive_within(ours, _START_SECONDS)
                if "error" in answer:
                    raise UnsupportedError(f"the engine failed to start: {answer['error']}", hint="run `corral doctor`")
        self._socket, self._process = ours, process


def ask(
    peer: socket.socket, message: wire.Message, descriptors: tuple[int, ...], *, wait: bool = True
) -> socket.socket:
    """Send a request with an answer socket.

    Raises:
        BlockingIOError: without `wait`, the peer is too busy for more messages now.
        GoneError: the peer has closed the connection.
        ExhaustedError: this process is out of descriptors or memory.
    """
    sending = False
    try:
        with wire.offering(wire.AnswerSocket) as (ours, theirs):
            sending = True
            wire.send(peer, message, (theirs.fileno(), *descriptors), wait=wait)
    except OSError as error:
        if not wait and isinstance(error, BlockingIOError):
            raise
        raise (not_sent(error) if sending else explain_shortage(error) or error) from error
    return ours


def not_sent(error: OSError) -> EngineError:
    """Why a message could not be sent: this process is out of a resource, or the peer has closed the connection."""
    return explain_shortage(error) or GoneError("the peer has closed the connection")


def receive_within(sock: socket.socket, timeout: float) -> wire.Message:
    """The next message of a socket. Raises: GoneError at its end or after the timeout."""
    message, descriptors = receive_all_within(sock, timeout)
    wire.close_all(descriptors)
    return message


def receive_all_within(sock: socket.socket, timeout: float) -> tuple[wire.Message, list[int]]:
    """As `receive_within`, with the descriptors, which the caller closes."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(timeout * 1000):
        raise GoneError("no reply before the timeout")
    received = wire.receive(sock)
    if received is None:
        raise GoneError("the peer has closed the connection")
    return received


def check(answer: wire.Message) -> wire.Message:
    """Return an answer, or raise the error in it."""
    code = answer.get("error")
    if code is None:
        return answer
    text, hint, number = str(answer.get("text", "")), str(answer.get("hint", "")), answer.get("errno", 0)
    number = number if isinstance(number, int) else 0
    if code == "gone":
        raise GoneError(text)
    if code == "setup":
        raise SetupError(text, step=str(answer.get("step", "")), errno=number, hint=hint)
    if code == "unsupported":
        raise UnsupportedError(text, hint=hint)
    raise RefusedError(text, code=str(code), errno=number, hint=hint)
