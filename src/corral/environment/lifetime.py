"""The sandboxes of environments that were not closed: on garbage collection, after a fork, and at exit.

Backends delete the sandboxes they own when the program ends, in any way. This is for the rest: backends that can delete
a sandbox without an event loop do so for each that is left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYetError
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from corral.environment.cache import Cache

_MAKING_SECONDS = 10.0
"""How long the exit waits for a sandbox that is being created."""

log = logging.getLogger("corral.environment")

_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
_lock = threading.Lock()
_registered = False


@runtime_checkable
class EndsNow(Protocol):
    """A backend that can delete a sandbox without an event loop, because its sandboxes outlive the program."""

    def end_now(self, sandbox_id: str) -> None:
        """Delete it if it is owned, from any thread, also at exit. No error if it no longer exists."""


def remember(cache: Cache) -> None:
    """Delete its sandboxes at exit from now on, and don't let forked children inherit them."""
    global _registered  # noqa: PLW0603 - once per process, like the list itself
    with _lock:
        _caches.add(cache)
        if not _registered:
            atexit.register(end_at_exit)
            os.register_at_fork(after_in_child=_forget)
            _registered = True


def end_at_exit() -> None:
    """Delete what is left, on backends that need it."""
    for cache in list(_caches):
        if cache.pid != os.getpid():
            continue
        for entry in cache.list_living():
            if not isinstance(entry.lent.backend, EndsNow):
                continue
            with contextlib.suppress(CancelledError, NotYetError):
                if entry.making.exception(timeout=_MAKING_SECONDS) is not None:
                    continue
            box = entry.box
            if box is None:
                continue
            try:
                entry.lent.backend.end_now(box.id)
            except Exception as error:  # noqa: BLE001 - the others must be deleted as well, and the log must have the id
                log.warning("sandbox %s could not be deleted at exit: %s", box.id, type(error).__name__)


def _forget() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    for cache in list(_caches):
        cache.forget()
