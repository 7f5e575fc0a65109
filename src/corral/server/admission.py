"""Who is inside: how many calls of one key at a time, and their end when the key ends.

A key is looked at when a call begins. Some calls last: a terminal, a log that is followed, events. So those that are
under way are looked at again and again, and when their key was revoked or has expired they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from corral.errors import CorralError
from corral.server import log
from corral.server.auth import Keyring
from corral.server.faults import Fault, too_many
from corral.server.routing import Identity

LOOK_SECONDS = 0.5
_AT_ONCE = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Visit:
    """One call that is under way."""

    identity: Identity
    task: asyncio.Task[Any]
    key_ended: bool = False


class Admission:
    """The calls that are under way, by the key that opened them."""

    def __init__(self, keyring: Keyring, *, calls_per_key: int) -> None:
        self._keyring = keyring
        self._calls_per_key = calls_per_key
        self._inside: dict[str, set[Visit]] = {}

    @asynccontextmanager
    async def admitted(self, identity: Identity) -> AsyncIterator[Visit]:
        """For as long as a call lasts.

        Raises:
            Fault: 429, the key has too many calls under way; 401, it ended meanwhile.
        """
        visits = self._inside.setdefault(identity.key_id, set())
        if len(visits) >= self._calls_per_key:
            raise too_many("too many requests at the same time", 1.0)
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        visit = Visit(identity, task)
        visits.add(visit)
        try:
            yield visit
        except asyncio.CancelledError:
            # Ours, and nobody else's beside it? Then it is an answer. The rule is that of asyncio.timeout.
            if visit.key_ended and task.uncancel() <= cancelled_before:
                raise Fault(401, "this API key has expired or was revoked") from None
            raise
        finally:
            visits.discard(visit)
            if not visits and self._inside.get(identity.key_id) is visits:
                del self._inside[identity.key_id]

    def look(self) -> None:
        """End the calls of keys that have ended."""
        for visits in list(self._inside.values()):
            for visit in list(visits):
                if not visit.key_ended and not self._keyring.is_valid(visit.identity):
                    visit.key_ended = True
                    visit.task.cancel()

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look()
            except CorralError as error:  # the database can't be read just now
                log.event("keys not looked at", level=logging.ERROR, error=error)


def cut_off(transport: asyncio.BaseTransport | None) -> None:
    """End a connection now, with what was still to be sent: else the kernel would keep that for whoever never reads."""
    if not isinstance(transport, asyncio.Transport):
        return
    plain = transport.get_extra_info("socket")
    if plain is not None:
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
