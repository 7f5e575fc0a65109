"""The owner's grip on a keeper: what is said to it, and how all of them end with us."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

from corral.backends.unsafe_subprocess.folders import Place
from corral.backends.unsafe_subprocess.keeper import CALL, END, READY
from corral.errors import BackendUnavailableError, SandboxGoneError

_KEEPER = Path(__file__).with_name("keeper.py")
_EXIT_SECONDS = 30.0
_END_SECONDS = 60.0

_grips: weakref.WeakSet[Grip] = weakref.WeakSet()
_keepers: set[subprocess.Popen[bytes]] = set()
"""Those that nobody has waited for yet: an owner may be forgotten, or lose its event loop, before they have ended."""
_registered = False
_lock = threading.Lock()


class Grip:
    """One keeper, from its owner's side. Usable from any thread."""

    def __init__(self, place: Place, *, seconds: float | None) -> None:
        self.sandbox_id = place.sandbox_id
        self._made_by = os.getpid()
        self._control, control = socket.socketpair()
        self._life, life = socket.socketpair()
        self._lock = threading.Lock()  # numbers of closed descriptors are soon somebody else's
        try:
            descriptors = (control.fileno(), life.fileno(), place.lock)
            argv = [find_python(), "-I", "-S", "-X", "utf8", str(_KEEPER), *map(str, descriptors), str(place.root)]
            self._keeper = subprocess.Popen(
                [*argv, "" if seconds is None else str(seconds)],
                pass_fds=descriptors,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except BaseException:
            self._control.close()
            self._life.close()
            raise
        finally:
            control.close()
            life.close()
        self._life.setblocking(False)
        _reap()
        _keepers.add(self._keeper)
        _grips.add(self)
        _register()

    async def wait_ready(self) -> None:
        """Wait for the keeper's first word. Raises: BackendUnavailableError."""
        if await asyncio.get_running_loop().sock_recv(self._life, 1) != READY:
            raise BackendUnavailableError(
                "the keeper of the sandbox did not start", op="create", hint="check the limit on processes (ulimit -u)"
            )

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and not one that it was forked from."""
        return self._made_by == os.getpid()

    def check(self, *, op: str | None = None) -> None:
        """Raises: SandboxGoneError when the keeper is no more."""
        if not self.is_alive():
            raise self.gone(op=op)

    def is_alive(self) -> bool:
        """Whether the keeper still listens."""
        with self._lock:
            try:
                return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
            except BlockingIOError:
                return True
            except OSError:
                return False

    def gone(self, *, op: str | None = None) -> SandboxGoneError:
        """What every call raises once it has ended."""
        return SandboxGoneError("the sandbox has ended", sandbox_id=self.sandbox_id, op=op, hint="make a new one")

    def open_channel(self) -> socket.socket:
        """The channel of a new call. Raises: SandboxGoneError."""
        ours, theirs = socket.socketpair()
        try:
            self.check(op="exec")
            with self._lock:
                socket.send_fds(self._control, [CALL], [theirs.fileno()])
        except OSError as error:
            ours.close()
            if isinstance(error, SandboxGoneError):
                raise
            raise self.gone(op="exec") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    def end(self) -> None:
        """Ask for the end, and let go. Does not wait; from any thread, and again."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._control.send(END)
            self._control.close()
            self._life.close()

    async def wait_end(self) -> None:
        """Until nothing of it is left."""
        if self.is_ours:
            # At the end of the program there is no thread for it any more; `end_all` waits then.
            with contextlib.suppress(RuntimeError):
                await asyncio.to_thread(self.finish)

    def finish(self) -> None:
        """The same without an event loop. A keeper that was stopped from inside is killed; the rest is then swept."""
        try:
            self._keeper.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        _keepers.discard(self._keeper)

    def forget(self) -> None:
        """In a forked child: the sandbox is its parent's, whose end must be the sandbox's."""
        self._lock = threading.Lock()  # another thread may have had it
        self._life.close()


def find_python() -> str:
    """What the keeper runs on. Raises: BackendUnavailableError."""
    found = sys.executable or shutil.which("python3")
    if not found:
        raise BackendUnavailableError("no Python found to run the keeper", op="create", hint="put python3 on PATH")
    return found


def _register() -> None:
    global _registered  # noqa: PLW0603 - once per process, and at_fork can't be undone
    with _lock:
        if _registered:
            return
        _registered = True
    atexit.register(end_all)
    os.register_at_fork(after_in_child=_forget_all)


def end_all() -> None:
    """At exit: end what is ours, without an event loop."""
    for grip in list(_grips):
        if grip.is_ours:
            grip.end()
    deadline = time.monotonic() + _EXIT_SECONDS
    for keeper in list(_keepers):
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(timeout=max(0.0, deadline - time.monotonic()))


def _forget_all() -> None:
    global _grips, _lock  # noqa: PLW0603 - the parent's lock may have been held by another of its threads
    _lock = threading.Lock()
    inherited, _grips = list(_grips), weakref.WeakSet()
    for grip in inherited:
        grip.forget()
    for keeper in _keepers:
        keeper.returncode = 0  # not our child: nobody waits for it here
    _keepers.clear()


def _reap() -> None:
    for keeper in list(_keepers):
        if keeper.poll() is not None:
            _keepers.discard(keeper)
