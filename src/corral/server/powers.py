"""What a backend can beyond making sandboxes; asked for where it is needed, and refused where it is not there."""

from __future__ import annotations

from corral.base.powers import CanPause, KeepsSandboxes
from corral.errors import CapabilityError
from corral.protocol import AsyncSandbox, Backend


def keeping(backend: Backend) -> KeepsSandboxes:
    """The backend, if it keeps what is stopped, and snapshots. Raises: CapabilityError."""
    if not isinstance(backend, KeepsSandboxes):
        raise CapabilityError(f"the backend {backend.name!r} can't stop, copy or resize sandboxes")
    return backend


def pausing(box: AsyncSandbox, backend: Backend) -> CanPause:
    """The sandbox, if it can be paused. Raises: CapabilityError."""
    if not isinstance(box, CanPause):
        raise CapabilityError(f"the backend {backend.name!r} can't pause sandboxes")
    return box
