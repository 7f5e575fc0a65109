"""Runs of the interpreter that an earlier server had begun: whoever listened to them went with it.

A program that was asked to run on does so without us. A run is different: its client reads it as it goes, its time
limit is kept by us, and while it goes on nothing else can run in its context.
"""

from __future__ import annotations

from corral.errors import CorralError, NotRecordedError, SandboxGoneError
from corral.interpreter.contexts import Interpreter
from corral.protocol import AsyncSandbox
from corral.server import log


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
