"""Writing to a sandbox's disk, which may be slow, or frozen for a snapshot: a thread waits, not an event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from corral.concurrency.closing import SyncClosing
from corral.inside.writing import write_all


class WriterThread(SyncClosing):
    """A thread for one stream: shared threads could all be blocked by frozen disks.

    It owns the descriptor and closes it in the thread, after the last write: a cancelled caller returns at once, and
    the thread never writes to a closed descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corral-write")

    def close(self) -> None:
        """Let the thread end after its last write."""
        self._thread.submit(os.close, self._descriptor)
        self._thread.shutdown(wait=False)

    async def write(self, data: bytes) -> None:
        """Write all of it. Raises: OSError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, write_all, self._descriptor, data)
