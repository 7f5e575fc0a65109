"""Closing at the end of a block: `aclose` after `async with`, `close` after `with`; and closing an iterator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Self


class AsyncClosing(ABC):
    """Closed at the end of an `async with` block."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class SyncClosing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


async def close_iterator(source: AsyncIterator[Any]) -> None:
    """Close an iterator that can be closed: a generator may hold something open."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
