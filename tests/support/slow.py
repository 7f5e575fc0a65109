"""A fake backend whose sandboxes are made when a test says so, and two helpers for opening them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from corral import Environment, Spec
from corral.backends.memory import MemoryBackend
from corral.client.sandbox import AsyncSandbox
from corral.protocol import OnEvent


class Slow(MemoryBackend):
    """Makes sandboxes when it is told to, counts, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.failures: list[Exception] = []
        self.go = threading.Event()
        self.go.set()

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        self.made += 1
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        if self.failures:
            raise self.failures.pop()
        return await super().create(spec, on_event=on_event)

    async def delete(self, sandbox_id: str) -> None:
        """Owned ones too, as a service does, which knows no difference."""
        self._boxes[sandbox_id].end()


async def open_id(env: Environment, context: Any = None, **options: Any) -> str:
    async with env.open(context, **options) as box:
        return box.id


async def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
