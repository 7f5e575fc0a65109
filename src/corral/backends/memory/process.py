"""A program of the memory backend: a task in the event loop that started it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal as signals
import time
import traceback
from collections.abc import Awaitable, Callable

from corral.backends.memory.call import Call, Input
from corral.backends.memory.shell import KilledError
from corral.base.process import AsyncProcess, Ending
from corral.protocol import SpawnRequest, lacking
from corral.results import EndReason, Usage

_NOTES = ("nothing was executed: CPU and memory were not counted",)
_HARMLESS = frozenset((signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH))
_STOPPING = frozenset((signals.SIGSTOP, signals.SIGTSTP, signals.SIGTTIN, signals.SIGTTOU))
_pids = itertools.count(2)


class MemoryProcess(AsyncProcess):
    """A program of the memory backend."""

    def __init__(self, *, sandbox_id: str, request: SpawnRequest) -> None:
        super().__init__(request, sandbox_id=sandbox_id)
        self._pid = next(_pids)
        self._loop = asyncio.get_running_loop()
        self.input = Input()
        if not request.stdin:
            self.input.feed(None)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._traps: dict[int, Callable[[], None]] = {}
        self._begun = time.monotonic()

    def begin(self, call: Call, run: Callable[[Call], Awaitable[int]]) -> None:
        """Start it."""
        self._traps = call.traps
        if self._request.timeout is not None:
            self._timer = self._loop.call_later(self._request.timeout, self.end_tree, "timeout")
        self._add(self._run(call, run))

    def begin_child(self, work: Awaitable[int]) -> None:
        """Start a background child, which belongs to the same tree."""
        self._add(_forget(work))

    def _add(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call, run: Callable[[Call], Awaitable[int]]) -> None:
        try:
            code = int(await run(call))
            ending = Ending(code & 0xFF, "exited", self._usage())
        except KilledError as death:
            ending = self._signalled(death.number)
        except asyncio.CancelledError:
            self.finish(Ending(128 + signals.SIGKILL, "cancelled", self._usage(), signal=int(signals.SIGKILL)))
            raise
        except Exception:  # noqa: BLE001 - a scripted program may raise anything, and a program's failure is a result
            self.feed("stderr", traceback.format_exc().encode())
            ending = Ending(1, "exited", self._usage())
        if self._timer is not None:
            self._timer.cancel()
        self.finish(ending)

    def _usage(self) -> Usage:
        return Usage(wall_seconds=time.monotonic() - self._begun, notes=_NOTES)

    def _signalled(self, number: int) -> Ending:
        return Ending(128 + number, "signalled", self._usage(), signal=number)

    # What callers ask for.

    async def _write(self, data: bytes) -> bool:
        if not self._request.stdin:
            return False
        if self.input.ended or self.ended:
            self.input.received += data  # a scripted reply may be over before it is fed: `PastCall` shows it
            return False
        self.input.feed(data)
        await asyncio.sleep(0)
        return True

    async def close_stdin(self) -> None:
        self.input.feed(None)

    async def _signal(self, number: int) -> None:
        if number in _HARMLESS:
            return
        if number in self._traps and number != signals.SIGKILL:
            self._loop.call_soon_threadsafe(self._traps[number])
        elif number in _STOPPING:
            raise lacking("memory", "SIGSTOP and SIGCONT", sandbox_id=self._sandbox_id, op="signal")
        else:
            self.stop(self._signalled(number))

    def end_tree(self, reason: EndReason) -> None:
        self.stop(Ending(128 + signals.SIGKILL, reason, self._usage(), signal=int(signals.SIGKILL)))

    def stop(self, ending: Ending) -> None:
        """From any thread: report the end at once, and cancel the tasks in their loop."""
        self.finish(ending)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks are cancelled
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()


async def _forget(work: Awaitable[int]) -> None:
    """Run a background program, whose result is not used."""
    with contextlib.suppress(Exception):
        await work
