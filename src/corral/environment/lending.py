"""Backends that an environment makes for itself, one for each set of options: lent to whoever needs one, few kept idle.

A service with a client for each tenant must not end with as many clients as it ever had tenants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from corral.protocol import Backend

MOST_IDLE = 10
"""So many that nobody uses are kept, for those who come back."""


@dataclass(slots=True, eq=False)
class Lent:
    """A backend in somebody's hands. Without a key it is not the environment's own, and only looks like one."""

    backend: Backend
    key: str | None = None
    users: int = 0


class Lending:
    """See the module. The lock is held to look and to note; backends are made and closed without it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Lent] = {}
        """The one that was given back last comes last."""

    def lend(self, key: str, make: Callable[[], Backend]) -> tuple[Lent, list[Backend]]:
        """The backend of a key, to be given back; and what is now to be closed."""
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                known.users += 1
                return known, []
        made = Lent(make(), key)
        with self._lock:
            kept = self._kept.setdefault(key, made)
            kept.users += 1
        return kept, [] if kept is made else [made.backend]  # somebody else was faster

    def share(self, lent: Lent) -> Lent:
        """The same for one more, who gives it back as well."""
        with self._lock:
            lent.users += 1
        return lent

    def give_back(self, lent: Lent) -> list[Backend]:
        """Not used any more, by one; gives what is now to be closed."""
        with self._lock:
            lent.users -= 1
            if lent.key is None or lent.users or self._kept.get(lent.key) is not lent:
                return []  # not ours, in use, or retired: then whoever retired it closes it
            self._kept[lent.key] = self._kept.pop(lent.key)
            idle = [kept for kept in self._kept.values() if not kept.users]
            surplus = idle[: max(0, len(idle) - MOST_IDLE)]
            for kept in surplus:
                assert kept.key is not None, "only our own are kept"
                del self._kept[kept.key]
        return [kept.backend for kept in surplus]

    def retire(self) -> list[Backend]:
        """All of them, which nobody is lent from now on."""
        with self._lock:
            retired = [kept.backend for kept in self._kept.values()]
            self._kept.clear()
        return retired
