"""How a forked child becomes a program: its streams, its signals, and `execve` along PATH."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PATH = "/usr/local/bin:/usr/bin:/bin"


def take_streams(streams: Sequence[int]) -> None:
    """Make three descriptors the standard streams. Numbers 0 to 2 may be among them."""
    safe = [move_up(number) for number in streams]
    for target, source in enumerate(safe):
        os.dup2(source, target, inheritable=True)


def move_up(descriptor: int) -> int:
    """Duplicate a descriptor above the standard streams; `execve` closes it."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def reset_signals() -> None:
    """Set all signals to their defaults and unblock them, as a shell does for a program."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def execute(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Become the program. Returns only if it could not be started, with the exit code that a shell would give.

    Raises:
        OSError: E2BIG, or there is no /bin/sh for a script without `#!`.
    """
    name, refusal = argv[0], 0
    folders = [""] if "/" in name else env.get("PATH", _PATH).split(":")
    for folder in folders:
        path = f"{folder}/{name}" if folder else name
        try:
            os.execve(path, list(argv), dict(env))
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise
            if error.errno == errno.ENOEXEC:  # a script without #!, as execvp and every shell do
                os.execve("/bin/sh", ["/bin/sh", path, *argv[1:]], dict(env))
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                refusal = error.errno or errno.EACCES
    text = os.strerror(refusal) if refusal else "command not found"
    os.write(2, f"corral: {name}: {text}\n".encode("utf-8", "surrogateescape"))
    return NOT_EXECUTABLE if refusal else NOT_FOUND


def set_window(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
