"""Contexts: named interpreters, each a process inside that keeps its state between runs; `default` is shared."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from corral.base.process import Capture
from corral.concurrency.turn import Turn
from corral.errors import CorralError, ExecError, InvalidCommandError, NotRecordedError, UnknownLanguageError
from corral.languages import find_language
from corral.paths import inside
from corral.protocol import PathLike
from corral.sessions.interpreter.events import ContextInfo, RunEvent, RunResult
from corral.sessions.interpreter.process import PREFIX, InterpreterProcess
from corral.sessions.record import RecordInfo
from corral.spec import check_env, check_timeout

if TYPE_CHECKING:
    from corral.client.sandbox import AsyncSandbox

DEFAULT_CONTEXT = "default"
LANGUAGE = "python"
_ATTEMPTS = 3
_MAX_SHOWN = 64
_MAX_SHOWN_BYTES = 32 * 1024 * 1024

log = logging.getLogger("corral.interpreter")


class Context:
    """One interpreter, across restarts of its process."""

    def __init__(self, box: AsyncSandbox, *, context_id: str, cwd: str, created: float) -> None:
        self.id = context_id
        self.cwd = cwd
        self.created = created
        self.process: InterpreterProcess | None = None
        self.closed = False
        self._box = box
        self._turn = Turn()

    async def begin(self) -> None:
        """Wait for the turn, and make sure that there is a process."""
        await self._turn.take()
        try:
            await self._ensure()
        finally:
            self._turn.release()

    async def run(self, code: str, envs: Mapping[str, str], timeout: float | None) -> AsyncGenerator[RunEvent, None]:
        """Run code, and yield its events."""
        await self._turn.take()
        process: InterpreterProcess | None = None
        try:
            for _ in range(_ATTEMPTS):
                before = self.process
                process = await self._ensure()
                run = secrets.token_hex(8)
                if before is not None and before is not process and not before.told:
                    before.told = True
                    yield RunEvent("restart", run, text="the process ended between two runs; this one is fresh")
                clock = asyncio.get_running_loop().time
                begun = clock()
                try:
                    async with asyncio.timeout(timeout):
                        await process.send(run, code, envs)
                except ExecError:
                    process.ended, process.active = True, None  # meanwhile, and before it saw this run
                    continue
                except TimeoutError:
                    await process.kill()  # it does not read requests: it runs code that this client did not send
                    text = "the interpreter did not take the run in time"
                    yield RunEvent("end", run, text=text, status="timeout", fresh=True)
                    return
                left = None if timeout is None else max(0.0, timeout - (clock() - begun))
                told = False
                async with contextlib.aclosing(process.read(run, timeout=left)) as events:
                    async for event in events:
                        told = True
                        yield event
                if told:
                    return
            raise ExecError("the interpreter exited before it ran the code", sandbox_id=self._box.id, op="interpreter")
        finally:
            # Left early, by the reader or by cancellation: the rest would not be read, so the run is stopped.
            if process is not None and process.active is not None:
                await asyncio.shield(asyncio.ensure_future(self._leave(process)))
            else:
                self._turn.release()

    async def _leave(self, process: InterpreterProcess) -> None:
        try:
            await self._settle(process)
        except CorralError:
            log.debug("a run of context %s could not be stopped: the sandbox is gone", self.id)
        finally:
            self._turn.release()

    async def _settle(self, process: InterpreterProcess) -> None:
        if process.active is not None and not process.ended:
            await process.stop()
            process.active = None

    async def _ensure(self) -> InterpreterProcess:
        if self.closed:
            raise unknown(self.id, self._box.id)
        old = self.process
        if old is not None and not old.ended:
            await self._settle(old)  # one whose stopping was itself stopped
            if not old.ended:
                return old
        self.process = await InterpreterProcess.start(self._box, context_id=self.id, cwd=self.cwd)
        if self.closed:  # meanwhile
            await self.process.forget()
            raise unknown(self.id, self._box.id)
        if old is not None:
            with contextlib.suppress(ExecError):
                await old.forget()
        return self.process

    async def find_active(self) -> str | None:
        """The run in progress, of any client."""
        process = self.process
        if process is None or process.ended:
            return None
        if process.active is not None:
            return process.active
        found = await process.look()
        return found.run if found.active else None

    async def interrupt(self) -> bool:
        """Stop the run in progress. True if there was one."""
        process, run = self.process, await self.find_active()
        if process is None or run is None:
            return False
        await process.stop()
        return True

    async def follow(self, run: str | None) -> AsyncIterator[RunEvent]:
        """The events of a run, from its beginning."""
        if self.process is None:
            return
        process, found = await InterpreterProcess.attach(self._box, self.process.record.name)
        wanted = run or found.run
        if not wanted:
            return
        if run is not None and run != found.run:
            process.since = 0
        async for event in process.read(wanted, owned=False):
            yield event

    async def restart(self) -> None:
        """Replace the process with a new one."""
        if self.process is not None:
            await self.process.kill()
        await self.begin()

    async def close(self) -> None:
        """Kill the process and delete its record."""
        self.closed = True
        if self.process is not None:
            await self.process.forget()


class Interpreter:
    """The interpreter of a sandbox.

    Code runs in contexts, each a Python that keeps its variables, imports, functions and working folder from one run to
    the next. Contexts of a detached sandbox outlive this program, and are found again.
    """

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box
        self._lock = threading.Lock()
        self._contexts: dict[str, Context] = {}

    async def open_context(self, *, cwd: PathLike | None = None, language: str = LANGUAGE) -> ContextInfo:
        """Start a new context.

        Raises:
            UnknownLanguageError: another language than Python.
            WorkdirError: `cwd` does not exist.
            BackendUnavailableError: no Python inside.
        """
        if find_language(language).name != LANGUAGE:
            raise UnknownLanguageError(f"the interpreter does not support {language!r}", hint="use python")
        folder = inside(cwd if cwd is not None else ".", workdir=self._box.spec.workdir)
        context = Context(self._box, context_id=secrets.token_hex(8), cwd=folder, created=time.time())
        await context.begin()
        with self._lock:
            self._contexts[context.id] = context
        return await _describe(context)

    async def contexts(self) -> tuple[ContextInfo, ...]:
        """All open contexts, oldest first, including `default` once it was used."""
        names = {_id_of(info) for info in await self._box.list_recorded() if info.name.startswith(PREFIX)}
        with self._lock:
            names |= {name for name, context in self._contexts.items() if context.process is not None}
        infos = []
        for name in names:
            with contextlib.suppress(NotRecordedError):  # closed meanwhile
                infos.append(await _describe(await self._find(name)))
        return tuple(sorted(infos, key=lambda info: (info.created, info.id)))

    async def run(
        self,
        code: str,
        *,
        context: str = DEFAULT_CONTEXT,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[RunEvent]:
        """Run code, and yield events; the last one is `end`. Runs of one context wait for each other.

        `envs` are set for this run. After `timeout` seconds the code is interrupted, and if it does not stop, its
        process is killed: the `end` then has the status `timeout`. A run whose iterator is left early is stopped, too.

        Raises:
            NotRecordedError: context not found.
            InvalidCommandError: invalid code, envs or timeout.
            BackendUnavailableError: no Python inside.
        """
        if not isinstance(code, str):
            raise InvalidCommandError(f"code must be a string, not {type(code).__name__}")
        check_timeout(timeout, what="timeout", error=InvalidCommandError)
        extra = check_env(envs or {}, error=InvalidCommandError)
        found = await self._find(context)
        async with contextlib.aclosing(found.run(code, extra, timeout)) as events:
            async for event in events:
                yield event

    async def execute(
        self,
        code: str,
        *,
        context: str = DEFAULT_CONTEXT,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        output_limit_bytes: int | None = None,
    ) -> RunResult:
        """Run code to its end. Raises: as `run`."""
        kept = _Collected(output_limit_bytes or self._box.spec.output_limit_bytes)
        denied = self._box.watch_denials()
        async for event in self.run(code, context=context, envs=envs, timeout=timeout):
            kept.add(event)
        await self._box.primitives.settle_denials()
        return replace(kept.result(), denied=denied())

    async def follow(self, context: str = DEFAULT_CONTEXT, *, run: str | None = None) -> AsyncIterator[RunEvent]:
        """The events of a run (by default the last one, which may be in progress), as far as recorded.

        Also of runs of another process. Leaving it early does not stop the run. Raises: NotRecordedError.
        """
        found = await self._find(context)
        async for event in found.follow(run):
            yield event

    async def interrupt(self, context: str = DEFAULT_CONTEXT) -> bool:
        """Stop the run in progress, and wait for its end. The state is kept if the code stops; else `end` says so.

        True if there was a run. Raises: NotRecordedError.
        """
        return await (await self._find(context)).interrupt()

    async def restart(self, context: str = DEFAULT_CONTEXT) -> None:
        """Restart with a new process. A run in progress ends as interrupted. Raises: NotRecordedError."""
        await (await self._find(context)).restart()

    async def close_context(self, context: str) -> None:
        """Kill its process and delete it. Raises: NotRecordedError."""
        found = await self._find(context)
        with self._lock:
            self._contexts.pop(context, None)
        await found.close()

    async def _find(self, context_id: str) -> Context:
        with self._lock:
            known = self._contexts.get(context_id)
        if known is not None:
            return known
        infos = [info for info in await self._box.list_recorded() if info.name.startswith(PREFIX)]
        mine = sorted(
            (info for info in infos if _id_of(info) == context_id), key=lambda info: (info.running, info.started)
        )
        if mine:
            process, found = await InterpreterProcess.attach(self._box, mine[-1].name)
            cwd = found.cwd or self._box.spec.workdir
            context = Context(self._box, context_id=context_id, cwd=cwd, created=mine[0].started)
            context.process = process
        elif context_id == DEFAULT_CONTEXT:
            context = Context(self._box, context_id=context_id, cwd=self._box.spec.workdir, created=time.time())
        else:
            raise unknown(context_id, self._box.id)
        with self._lock:
            return self._contexts.setdefault(context_id, context)


class _Collected:
    """Events as one result, bounded."""

    def __init__(self, limit_bytes: int) -> None:
        self._capture = Capture(limit_bytes)
        self._result: RunEvent | None = None
        self._displays: list[RunEvent] = []
        self._shown_bytes = 0
        self._error: RunEvent | None = None
        self._end = RunEvent("end", status="died")
        self._lost = False

    def add(self, event: RunEvent) -> None:
        """Add an event."""
        if event.kind in ("stdout", "stderr"):
            self._capture.add(event.kind, event.text.encode())
        elif event.kind == "result":
            self._result = event
        elif event.kind == "display":
            self._shown_bytes += sum(len(str(value)) for value in event.data.values())
            if len(self._displays) < _MAX_SHOWN and self._shown_bytes <= _MAX_SHOWN_BYTES:
                self._displays.append(event)
            else:
                self._lost = True
        elif event.kind == "error":
            self._error = event
        elif event.kind == "lost":
            self._lost = True
        elif event.kind == "end":
            self._end = event

    def result(self) -> RunResult:
        """The whole result."""
        shown = [*self._displays, *([self._result] if self._result else [])]
        return RunResult(
            run=self._end.run,
            status=self._end.status or "died",
            stdout=self._capture.stream("stdout").decode("utf-8", "replace"),
            stderr=self._capture.stream("stderr").decode("utf-8", "replace"),
            output=self._capture.combined().decode("utf-8", "replace"),
            result=self._result.data if self._result else None,
            displays=tuple(event.data for event in self._displays),
            charts=tuple(chart for event in shown if (chart := event.chart) is not None),
            error=self._error,
            truncated=self._capture.truncated or self._lost,
            fresh=self._end.fresh,
            reason=self._end.text,
        )


async def _describe(context: Context) -> ContextInfo:
    active = await context.find_active() is not None
    return ContextInfo(context.id, context.cwd, LANGUAGE, context.created, active)


def _id_of(info: RecordInfo) -> str:
    return info.name[len(PREFIX) :].rpartition(":")[0]


def unknown(context_id: str, sandbox_id: str) -> NotRecordedError:
    """The error for an unknown context."""
    return NotRecordedError(
        f"context {context_id!r} not found", sandbox_id=sandbox_id, op="interpreter", hint="open_context creates one"
    )
