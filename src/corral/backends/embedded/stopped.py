"""Work on a stopped sandbox: on files that no process holds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from corral.backends.embedded import keepers
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.seam import mapped
from corral.engine import sweep
from corral.engine.errors import GoneError
from corral.engine.layers import LayerStore
from corral.engine.state import lock, read_state
from corral.inside.nolinks import opened

_LOCK_SECONDS = 5.0

T = TypeVar("T")


async def work_on_stopped(
    data_folder: Path,
    sandbox_id: str,
    work: Callable[[LayerStore, Path, dict[str, Any]], T],
    *,
    op: str,
    lost: Callable[[T], object] | None = None,
) -> T:
    """Work on a stopped sandbox with its folder locked, so that it can't be started. In a thread.

    `lost` gets the result of a cancelled call. Raises: SandboxGoneError, and what `work` raises.
    """
    data = open_data(data_folder, op=op)

    def locked(folder: Path) -> T:
        with _holding(folder):
            state = read_state(folder) or {}
            if not state.get("stopped"):
                raise GoneError("it has been started in the meantime")
            try:
                return work(LayerStore(data), folder, state)
            finally:
                sweep.empty_trash(data, patience_seconds=sweep.PATIENCE_SECONDS)

    found = keepers.find(data_folder, sandbox_id, op=op)
    with mapped(sandbox_id=found.sandbox_id, op=op):
        return await finished(lambda: locked(found.folder), lost)


@contextlib.contextmanager
def _holding(folder: Path) -> Iterator[None]:
    """Holds the lock of a stopped sandbox, which a sweeper may take for a moment, too. Raises: GoneError."""
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while (descriptor := lock(folder)) is None:
            if time.monotonic() >= deadline:
                raise GoneError("another process is working on it")
            time.sleep(0.01)
    except FileNotFoundError as error:
        raise GoneError("it has been deleted in the meantime") from error
    with opened(descriptor):
        yield


async def finished(work: Callable[[], T], lost: Callable[[T], object] | None) -> T:
    """Run in a thread, which can't be cancelled: a cancelled call waits for it, so that nothing happens afterwards."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(
                asyncio.CancelledError
            ):  # repeated cancellation changes nothing: it takes a moment
                await asyncio.wait([working])
        if lost is not None and not working.cancelled() and working.exception() is None:
            lost(working.result())
        raise
