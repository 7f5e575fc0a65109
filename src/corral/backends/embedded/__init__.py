"""The embedded backend: sandboxes made by Corral's own engine on this machine."""

from __future__ import annotations

from corral.backends.embedded.backend import EmbeddedBackend

__all__ = ["EmbeddedBackend", "open_backend"]


def open_backend() -> EmbeddedBackend:
    """For the registry: one that keeps its data in the default folder."""
    return EmbeddedBackend()
