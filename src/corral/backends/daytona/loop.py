"""The portal on which everything that talks to the service runs.

The SDK's client belongs to the event loop it was made in, while our callers come from any number of them, leave theirs,
and fork. So the client lives here, and they wait.
"""

from __future__ import annotations

from corral.concurrency.portal import PerProcess, Portal

_thread = PerProcess(lambda: Portal("corral-daytona", workers=2))


def get_loop() -> Portal:
    """The portal of this process."""
    return _thread.get()


def find_loop() -> Portal | None:
    """The same, if there is one."""
    return _thread.find()
