"""NO ISOLATION: this backend runs programs as plain children of this process, with all rights of its user.

    with Sandbox(backend="unsafe-subprocess") as box:  # warns, each time
        box.exec("python -V")

For programs that you would run in your own terminal without a second look, on machines where nothing else works. It
must be chosen by this name, is never a fallback, and no server accepts it. See docs/backends.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from corral.errors import BackendUnavailableError

if TYPE_CHECKING:
    from corral.backends.unsafe_subprocess.backend import UnsafeSubprocessBackend

__all__ = ["UnsafeSubprocessBackend", "UnsafeWarning", "open_backend"]


class UnsafeWarning(UserWarning):
    """Programs run without isolation. Issued for each sandbox."""


def open_backend() -> UnsafeSubprocessBackend:
    """For the registry: a backend that keeps its sandboxes in the folder for temporary files.

    Raises:
        BackendUnavailableError: this is neither Linux nor macOS.
    """
    return __getattr__("UnsafeSubprocessBackend")()


def __getattr__(name: str) -> type[UnsafeSubprocessBackend]:
    if name != "UnsafeSubprocessBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if os.name != "posix":
        # Before the rest is imported, which needs fcntl, termios and process groups.
        raise BackendUnavailableError(
            "the unsafe-subprocess backend needs Linux or macOS",
            op="create",
            hint="use it in WSL, or name a backend that speaks to another machine",
        )
    from corral.backends.unsafe_subprocess.backend import UnsafeSubprocessBackend

    return UnsafeSubprocessBackend
