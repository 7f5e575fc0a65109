"""A cache of shell sessions: bounded for each organisation, least recently used ones are dropped.

A session's object has read its record, and knows the commands. Without it the record is read again, so nothing is lost
when one is dropped.
"""

from __future__ import annotations

import weakref

from corral.server.living import Handle
from corral.sessions.session import ShellSession

HANDLE_BYTES = 4 * 1024
"""The size of an empty session object."""

_Order = weakref.WeakKeyDictionary[ShellSession, weakref.ref[Handle]]


class SessionMemory:
    """Sessions in the order in which they were used. The sandboxes' handles keep them, not this."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._orders: dict[str, _Order] = {}

    def keep(self, handle: Handle, session: ShellSession) -> None:
        """Keep a session that is being used in its sandbox's handle; others of the organisation may be dropped."""
        handle.sessions[session.name] = session
        order = self._orders.setdefault(handle.row.organisation_id, weakref.WeakKeyDictionary())
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
