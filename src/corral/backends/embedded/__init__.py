"""The embedded backend: sandboxes of Corral's own engine on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from corral.errors import BackendUnavailableError

if TYPE_CHECKING:
    from corral.backends.embedded.backend import EmbeddedBackend

__all__ = ["EmbeddedBackend", "open_backend"]


def open_backend() -> EmbeddedBackend:
    """For the registry: a backend with the default data folder.

    Raises:
        BackendUnavailableError: this is not Linux.
    """
    if sys.platform != "linux":
        # Before anything of the engine is imported: its modules can only be loaded on Linux.
        raise BackendUnavailableError(
            f"the embedded engine needs Linux, and this is {sys.platform}",
            op="create",
            hint="use another backend, such as docker or daytona",
        )
    return __getattr__("EmbeddedBackend")()


def __getattr__(name: str) -> type[EmbeddedBackend]:
    if name != "EmbeddedBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corral.backends.embedded.backend import EmbeddedBackend

    return EmbeddedBackend
