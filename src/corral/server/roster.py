"""The sandboxes that there are: in memory, and in the database before anything is done to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from corral.server.faults import conflict, not_found
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox, load_all

READABLE_AFTER_SECONDS = 10.0
"""So long a deleted sandbox can still be looked at by its id: older clients do so right after deleting it."""

Listener = Callable[[Sandbox, str | None], None]
"""Told of each change, with the state before; None for a new one."""


class Roster:
    """All sandboxes of a server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = {row.id: row for row in load_all(Sandbox, database)}
        self._names = {(row.organisation_id, row.name): row.id for row in self._rows.values()}
        self._tokens = {_token(row): row.id for row in self._rows.values() if row.request_token is not None}
        self._buried: dict[str, tuple[Sandbox, float]] = {}
        self._stale: set[str] = set()
        self.listeners: list[Listener] = []

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._rows.values()))

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._rows

    def of(self, organisation_id: str) -> list[Sandbox]:
        """Those of one organisation."""
        return [row for row in self._rows.values() if row.organisation_id == organisation_id]

    def states(self) -> Counter[str]:
        """How many are in which state."""
        return Counter(row.state for row in self._rows.values())

    def find(self, wanted: str, *, organisation_id: str | None, buried: bool = False) -> Sandbox:
        """By id or name; with `buried` also one that was deleted a moment ago, and that by its id only, since its name
        is free for another. Raises: Fault 404, also for another organisation's."""
        row = self._rows.get(wanted)
        if row is not None and organisation_id is not None and row.organisation_id != organisation_id:
            row = None  # its id must not even stand before a name
        if row is None and organisation_id is not None:
            row = self._rows.get(self._names.get((organisation_id, wanted), ""))
        if row is None and buried:
            self.forget_buried()
            row = self._buried.get(wanted, (None, 0.0))[0]
        if row is None or (organisation_id is not None and row.organisation_id != organisation_id):
            raise not_found(f"sandbox {wanted[:200]!r} not found")
        return row

    def made_by(self, token: str, *, organisation_id: str) -> Sandbox | None:
        """What a request with this token has made, or is making."""
        return self._rows.get(self._tokens.get((organisation_id, token), ""))

    def add(self, row: Sandbox) -> None:
        """A new one; its intent is on disk when this returns. Raises: Fault 409 if the name is taken."""
        if (row.organisation_id, row.name) in self._names:
            raise conflict(f"a sandbox named {row.name!r} already exists")
        row.save(self._database)
        self._rows[row.id] = row
        self._names[row.organisation_id, row.name] = row.id
        if row.request_token is not None:
            self._tokens[_token(row)] = row.id
        self._tell(row, None)

    def save(self, row: Sandbox) -> None:
        """Write a change that is no change of state."""
        row.updated_at = time.time()
        self._stale.discard(row.id)
        if row.id in self._rows:
            row.save(self._database)

    def turn(
        self,
        row: Sandbox,
        state: str,
        *,
        desired: str | None = None,
        intent: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Into another state. If that can't be written down, it stays in the one it was in. Raises: as `Database`."""
        before = row.state
        whole = (row.state, row.desired_state, row.intent, row.error_reason, row.state_at)
        row.state = state
        row.desired_state = desired or row.desired_state
        row.intent = intent
        row.error_reason = reason
        if before != state:
            row.state_at = time.time()
        try:
            self.save(row)
        except BaseException:
            row.state, row.desired_state, row.intent, row.error_reason, row.state_at = whole
            raise
        if before != state:
            self._tell(row, before)

    def touch(self, row: Sandbox) -> None:
        """It is being used. Kept in memory; `flush` writes it, so that no call waits for that."""
        row.active_at = time.time()
        self._stale.add(row.id)

    def flush(self) -> None:
        """Write what `touch` noted."""
        rows = [self._rows[sandbox_id] for sandbox_id in self._stale if sandbox_id in self._rows]
        if rows:
            with self._database.transaction():
                for row in rows:
                    row.save(self._database)
        self._stale.clear()
        self._database.try_again()

    def bury(self, row: Sandbox) -> None:
        """It is no more; for a while it can be looked at."""
        self.forget(row)
        before, row.state, row.desired_state, row.intent = row.state, "destroyed", "destroyed", None
        row.state_at = row.updated_at = time.time()
        self.forget_buried()
        self._buried[row.id] = (row, time.monotonic())
        self._tell(row, before)

    def forget_buried(self) -> None:
        """Those that were deleted long enough ago."""
        now = time.monotonic()
        self._buried = {key: old for key, old in self._buried.items() if now - old[1] < READABLE_AFTER_SECONDS}

    def forget(self, row: Sandbox) -> None:
        """As if it had never been."""
        row.erase(self._database)
        self._rows.pop(row.id, None)
        self._stale.discard(row.id)
        if row.request_token is not None and self._tokens.get(_token(row)) == row.id:
            del self._tokens[_token(row)]
        if self._names.get((row.organisation_id, row.name)) == row.id:
            del self._names[row.organisation_id, row.name]

    def can_write(self) -> bool:
        """Whether what is done to a sandbox could be written down."""
        return not self._database.failing

    def is_in_place(self) -> bool:
        """Whether what is written goes to where it will be looked for."""
        return self._database.is_in_place()

    def _tell(self, row: Sandbox, before: str | None) -> None:
        for listener in self.listeners:
            listener(row, before)


def _token(row: Sandbox) -> tuple[str, str]:
    return row.organisation_id, row.request_token or ""
