"""What is remembered of shell sessions: so much for each organisation, and the handle that was not used longest goes.

A handle has read its session's record, and remembers the commands. Without it the record is read again, so letting go
of one loses nothing.
"""

from __future__ import annotations

import weakref

from corral.server.living import Handle
from corral.sessions.session import ShellSession

HANDLE_BYTES = 4 * 1024
"""What a handle takes that remembers nothing."""

_Order = weakref.WeakKeyDictionary[ShellSession, weakref.ref[Handle]]


class SessionMemory:
    """Handles of sessions, in the order in which they were used. They are kept by their sandboxes, not here."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._orders: dict[str, _Order] = {}

    def keep(self, handle: Handle, session: ShellSession) -> None:
        """Have the sandbox keep a handle that is being used; others of its organisation may have to go."""
        handle.sessions[session.name] = session
        order = self._orders.setdefault(handle.organisation_id, weakref.WeakKeyDictionary())
        order.pop(session, None)
        order[session] = weakref.ref(handle)
        self._make_room(order, session)

    def _make_room(self, order: _Order, last: ShellSession) -> None:
        sizes = {session: session.memory_bytes + HANDLE_BYTES for session in list(order)}
        total = sum(sizes.values())
        for session, size in sizes.items():
            if total <= self._limit_bytes or session is last:
                return
            handle = order.pop(session)()
            if handle is not None and handle.sessions.get(session.name) is session:
                del handle.sessions[session.name]
            total -= size
