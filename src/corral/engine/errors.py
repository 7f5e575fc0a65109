"""The engine's own few errors. The embedded backend maps them into Corral's error tree.

EngineError
├── UnsupportedError      this machine can't do it; `hint` says how to get it
│   └── UnsafeFolderError the data folder is not ours alone, or can't be made
├── SetupError            a step of the plan failed; `step` names it
├── GoneError             the sandbox or its process on the other side is no more
├── ProtocolError         the other side sent something that it never should
└── RefusedError          the request itself is wrong (`code` says in what way)
"""

from __future__ import annotations


class EngineError(Exception):
    """Anything the engine reports."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnsupportedError(EngineError):
    """The machine lacks something that the wish needs."""


class UnsafeFolderError(UnsupportedError):
    """Another user could reach into the data folder or change its path, or the folder can't be made."""


class SetupError(EngineError):
    """The kernel refused a step while a sandbox was made."""

    def __init__(self, message: str, *, step: str = "", errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.errno = errno


class GoneError(EngineError):
    """The sandbox has ended, or its init no longer answers."""


class ProtocolError(EngineError):
    """A message was malformed, too large, or out of order."""


class RefusedError(EngineError):
    """A request that can't be carried out; `code` is a short stable word, `errno` the kernel's where there is one."""

    def __init__(self, message: str, *, code: str, errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.errno = errno
