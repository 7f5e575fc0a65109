"""From a click command into the event loop and back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end. Ctrl-C cancels the work, which then cleans up."""
    return asyncio.run(work)
