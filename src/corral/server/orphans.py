"""Runs of the interpreter that an earlier server had begun: whoever listened to them went with it.

A program that was asked to run on does so without us. A run is different: its client reads it as it goes, its time
limit is kept by us, and while it goes on nothing else can run in its context.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, NotRecordedError, SandboxGoneError
from corral.server import log
from corral.server.faults import Fault
from corral.sessions.interpreter.contexts import Interpreter

if TYPE_CHECKING:
    from corral.server.warden import SandboxWarden

_ADOPT_SECONDS = 1.0
"""After a start, those who wait for the server come first."""


async def adopt(warden: SandboxWarden) -> None:
    """Take up what an earlier server has left, one by one. Whoever is asked for meanwhile is taken up at once."""
    await asyncio.sleep(_ADOPT_SECONDS)
    for row in warden.roster:
        if row.id in warden.handles.orphaned and row.state == "started":
            with contextlib.suppress(CorralError, Fault):  # it is gone, and says so to whoever asks
                await warden.handles.find(row)


async def end_runs(box: AsyncSandbox, *, sandbox_id: str) -> None:
    """Interrupt whatever runs in any context. Raises: SandboxGoneError."""
    interpreter = getattr(box, "interpreter", None)
    if not isinstance(interpreter, Interpreter):
        return
    try:
        for context in await interpreter.contexts():
            if context.active:
                await _end_run(interpreter, context.id, sandbox_id=sandbox_id)
    except SandboxGoneError:
        raise
    except CorralError as error:
        log.event("runs of an earlier server not found", level=30, error=error, sandbox=sandbox_id)


async def _end_run(interpreter: Interpreter, context_id: str, *, sandbox_id: str) -> None:
    try:
        ended = await interpreter.interrupt(context_id)
    except NotRecordedError:
        return  # closed meanwhile
    if ended:
        log.event("run of an earlier server ended", sandbox=sandbox_id, context=context_id)
