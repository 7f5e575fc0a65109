"""The portal on which everything that talks to the service runs.

The SDK's client belongs to the event loop that created it, while our callers use several event loops, end them, and
fork. So the client lives here, and callers wait.
"""

from __future__ import annotations

from corral.concurrency.portal import PerProcess, Portal

_thread = PerProcess(lambda: Portal("corral-daytona", workers=2))
get_loop = _thread.get
"""The portal of this process."""
find_loop = _thread.find
"""The same; None if it was never used."""
