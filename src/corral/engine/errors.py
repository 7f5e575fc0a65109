"""The engine's own few errors. The embedded backend maps them into Corral's error tree.

EngineError
├── UnsupportedError      this machine can't do it; `hint` says how to get it
│   └── UnsafeFolderError other users can reach the data folder, or it can't be created
├── SetupError            a step of the plan failed; `step` names it
├── GoneError             the sandbox, or the process that was asked, has ended
├── ExhaustedError        this process, its user or the machine has run out of a resource
├── ProtocolError         the peer sent a malformed message
└── RefusedError          the request itself is wrong (`code` says in what way)
"""

from __future__ import annotations

import errno
from typing import Any, Final


class EngineError(Exception):
    """Anything the engine reports."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnsupportedError(EngineError):
    """The machine lacks something that the request needs."""


class UnsafeFolderError(UnsupportedError):
    """Another user could reach into the data folder or change its path, or the folder can't be created."""


class SetupError(EngineError):
    """The kernel refused a step while a sandbox was created."""

    def __init__(self, message: str, *, step: str = "", errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.errno = errno


class GoneError(EngineError):
    """The sandbox has ended, or its init no longer answers."""


class ExhaustedError(EngineError):
    """This process is out of descriptors or memory; the peer may still be running."""


def explain_shortage(error: OSError) -> ExhaustedError | None:
    """The shortage that an error of the kernel reports, with a remedy; None for other errors."""
    if error.errno not in _SHORTAGES:
        return None
    text, hint = _SHORTAGES[error.errno]
    return ExhaustedError(text, hint=hint)


_SHORTAGES: Final = {
    errno.EMFILE: (
        "this process has no file descriptors left",
        "close what is not needed any more, or raise the limit (`ulimit -n`)",
    ),
    errno.ENFILE: ("this machine has no open files left", "end what holds them, or raise the sysctl fs.file-max"),
    errno.ETOOMANYREFS: (
        "this user has too many file descriptors in flight between processes",
        "end the program, perhaps in a sandbox, that sends them and never receives; or raise the limit (`ulimit -Hn`)",
    ),
    errno.ENOBUFS: ("this machine has no memory left for sockets", "end what holds it, and try again"),
    errno.ENOMEM: ("this machine has no kernel memory left", "end what holds it, and try again"),
}


class ProtocolError(EngineError):
    """A message was malformed, too large, or out of order."""


class RefusedError(EngineError):
    """A request that can't be carried out; `code` is a short stable word, `errno` the kernel's where there is one."""

    def __init__(self, message: str, *, code: str, errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.errno = errno


def describe(error: Exception) -> dict[str, Any]:
    """The message that carries an error to a client, where `client.check` raises it again."""
    message = {"text": str(error), "hint": getattr(error, "hint", ""), "errno": getattr(error, "errno", 0) or 0}
    if isinstance(error, RefusedError):
        return {"error": error.code, **message}
    if isinstance(error, SetupError):
        return {"error": "setup", "step": error.step, **message}
    if isinstance(error, GoneError):
        return {"error": "gone", **message}
    if isinstance(error, UnsupportedError | ExhaustedError):
        return {"error": "unsupported", **message}
    return {"error": "os", **message, "text": f"{type(error).__name__}: {error}"}
