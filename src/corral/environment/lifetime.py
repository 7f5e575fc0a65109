"""What happens to the sandboxes of environments that nobody closed: when one is forgotten, after a fork, at the exit.

Backends end what they own when the program ends, however it ends. This is for the rest: those that can end a sandbox
from plain code are asked to, for each one that is left.
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
"""How long the exit waits for a sandbox that is just being made."""

log = logging.getLogger("corral.environment")

_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
_lock = threading.Lock()
_registered = False


@runtime_checkable
class EndsNow(Protocol):
    """A backend that can end a sandbox without an event loop: what it owns does not end with the program by itself."""

    def end_now(self, sandbox_id: str) -> None:
        """End it if it is owned, from any thread, also at the exit. One that is gone already is fine."""


def remember(cache: Cache) -> None:
    """From now on its sandboxes are thought of at the end, and are not inherited by forked children."""
    global _registered  # noqa: PLW0603 - once per process, like the list itself
    with _lock:
        _caches.add(cache)
        if not _registered:
            atexit.register(end_at_exit)
            os.register_at_fork(after_in_child=_forget)
            _registered = True


def end_at_exit() -> None:
    """End what is left, where the backend needs to be told."""
    for cache in list(_caches):
        if cache.pid != os.getpid():
            continue
        for entry in cache.list_living():
            if not isinstance(entry.backend, EndsNow):
                continue
            with contextlib.suppress(CancelledError, NotYetError):
                if entry.making.exception(timeout=_MAKING_SECONDS) is not None:
                    continue
            box = entry.box
            if box is None:
                continue
            try:
                entry.backend.end_now(box.id)
            except Exception as error:  # noqa: BLE001 - the next one must have its turn, and the id must be told
                log.warning("sandbox %s could not be deleted at exit: %s", box.id, type(error).__name__)


def _forget() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    for cache in list(_caches):
        cache.forget()
