"""The sandboxes of environments after a fork: they belong to the parent, and a forked child forgets them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.environment.cache import Cache

_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
_lock = threading.Lock()
_registered = False


def remember(cache: Cache) -> None:
    """Don't let forked children inherit its sandboxes."""
    global _registered  # noqa: PLW0603 - once per process, like the list itself
    with _lock:
        _caches.add(cache)
        if not _registered:
            os.register_at_fork(after_in_child=_forget)
            _registered = True


def _forget() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    for cache in list(_caches):
        cache.forget()
