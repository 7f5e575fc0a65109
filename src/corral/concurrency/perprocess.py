"""One object per process, made when first needed and made anew in a forked child, where its thread does not exist."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds what `make` gives."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._lock = threading.Lock()
        self._fork_aware = False

    def get(self) -> T:
        """The object of this process."""
        with self._lock:
            if not self._fork_aware:
                os.register_at_fork(after_in_child=self._forget)
                self._fork_aware = True
            if self._value is None:
                self._value = self._make()
            return self._value

    def find(self) -> T | None:
        """The same, if it was made already."""
        with self._lock:
            return self._value

    def _forget(self) -> None:
        # The parent's lock may have been held by another thread at the moment of the fork.
        self._lock = threading.Lock()
        self._value = None
