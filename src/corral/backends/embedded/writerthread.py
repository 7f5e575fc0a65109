"""Writing to a sandbox's disk, which may be slow, or frozen for a snapshot: then a thread waits, and no event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType


class WriterThread:
    """A thread for one stream, since one that all share could be used up by those whose disk stands still.

    The descriptor is its own from here on. It is closed in that thread, after what was written: whoever is cancelled
    leaves at once, and the thread writes to nothing that has been closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corral-write")

    def __enter__(self) -> WriterThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.submit(os.close, self._descriptor)
        self._thread.shutdown(wait=False)

    async def write(self, data: bytes) -> None:
        """All of it. Raises: OSError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, _write_all, self._descriptor, data)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
