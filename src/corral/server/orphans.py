"""Interpreter runs that an earlier server process has started, and whose clients were disconnected with it.

A program in the background goes on without a server. A run of the interpreter is different: its client reads the
output as it comes, the server enforces its timeout, and its context is blocked until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, NotRecordedError, SandboxGoneError
from corral.server import log
from corral.server.faults import Fault

if TYPE_CHECKING:
    from corral.server.living import Sandboxes

_ADOPT_SECONDS = 1.0
"""After a start, requests that wait for the server come first."""


async def adopt(sandboxes: Sandboxes) -> None:
    """Connect to the sandboxes that an earlier server has left, one by one. A call connects to its own at once."""
    await asyncio.sleep(_ADOPT_SECONDS)
    for sandbox in sandboxes:
        if sandbox.may_have_orphans and sandbox.row.state == "started":
            with contextlib.suppress(CorralError, Fault):  # it is gone, and calls to it say so
                await sandboxes.connect(sandbox)


async def end_runs(box: AsyncSandbox, *, sandbox_id: str) -> None:
    """Interrupt the runs in all contexts. Raises: SandboxGoneError."""
    try:
        for context in await box.interpreter.contexts():
            if context.active:
                await _end_run(box, context.id, sandbox_id=sandbox_id)
    except SandboxGoneError:
        raise
    except CorralError as error:
        log.event("runs of an earlier server could not be listed", level=30, error=error, sandbox=sandbox_id)


async def _end_run(box: AsyncSandbox, context_id: str, *, sandbox_id: str) -> None:
    try:
        ended = await box.interpreter.interrupt(context_id)
    except NotRecordedError:
        return  # closed in the meantime
    if ended:
        log.event("run of an earlier server interrupted", sandbox=sandbox_id, context=context_id)
