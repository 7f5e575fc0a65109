"""Backends that an environment creates, one for each set of options: lent to users, with few kept idle.

A service with one client per tenant must not keep a client for every tenant it ever had.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from corral.protocol import Backend

MOST_IDLE = 10
"""How many unused backends are kept for reuse."""


@dataclass(slots=True, eq=False)
class Lent:
    """A borrowed backend. Without a key it does not belong to the environment."""

    backend: Backend
    key: str | None = None
    users: int = 0


class Lending:
    """The backends of one environment. They are created and closed without the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Lent] = {}
        """The most recently returned comes last."""

    def lend(self, key: str, make: Callable[[], Backend]) -> tuple[Lent, list[Backend]]:
        """The backend of a key, to be returned; and the backends to close now."""
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                known.users += 1
                return known, []
        made = Lent(make(), key)
        with self._lock:
            kept = self._kept.setdefault(key, made)
            kept.users += 1
        return kept, [] if kept is made else [made.backend]  # the surplus one, if another thread was faster

    def share(self, lent: Lent) -> Lent:
        """The same for another user, who returns it as well."""
        with self._lock:
            lent.users += 1
        return lent

    def give_back(self, lent: Lent) -> list[Backend]:
        """Return it for one user; returns the backends to close now."""
        with self._lock:
            lent.users -= 1
            if lent.key is None or lent.users or self._kept.get(lent.key) is not lent:
                return []  # not ours, in use, or retired, and then closed elsewhere
            self._kept[lent.key] = self._kept.pop(lent.key)
            idle = [kept for kept in self._kept.values() if not kept.users]
            surplus = idle[: max(0, len(idle) - MOST_IDLE)]
            for kept in surplus:
                assert kept.key is not None, "only our own are kept"
                del self._kept[kept.key]
        return [kept.backend for kept in surplus]

    def retire(self) -> list[Backend]:
        """All of them; they are not lent any more."""
        with self._lock:
            retired = [kept.backend for kept in self._kept.values()]
            self._kept.clear()
        return retired
