"""One process of the interpreter: starting the driver inside, sending it runs, reading and stopping them."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import logging
import secrets
import signal
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from corral.errors import CorralError, ExecError
from corral.inside.bundle import bundle
from corral.languages import find_language
from corral.results import NOT_FOUND_EXIT_CODE
from corral.sessions.interpreter.events import RunEvent, RunStatus
from corral.sessions.interpreter.frames import FrameReader, parse_json
from corral.sessions.interpreter.oneshot import CHARTS_PART
from corral.sessions.record import Entry, Recorded

if TYPE_CHECKING:
    from corral.client.sandbox import AsyncSandbox

PREFIX = "interpreter:"
DRIVER_PARTS = ("writing", "interpreter.streams", "interpreter.shown", "interpreter.driver")
START_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""How long code may take to stop after an interrupt; half-way it is interrupted again."""
UNNAMED = ""
"""The id of a run whose beginning was dropped from the record, with its id."""
_INLINE_BYTES = 3000
_PING_SECONDS = 1.0
_STDERR_BYTES = 2000
_STATES: dict[str, RunStatus] = {"completed": "completed", "failed": "failed", "interrupted": "interrupted"}

log = logging.getLogger("corral.interpreter")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The context and the last run of a record."""

    cwd: str | None
    run: str | None
    """The last run that began; `UNNAMED` if its beginning was dropped."""
    began: int
    """Its offset in the record."""
    active: bool
    """True if it is in progress."""


class InterpreterProcess:
    """A driver inside, with its record. It outlives this handle if the record does."""

    def __init__(self, box: AsyncSandbox, record: Recorded, *, token: str) -> None:
        self._box = box
        self.record = record
        self._token = token
        self.since = 0
        """Where the next run is looked for in the record."""
        self.active: str | None = None
        """The run in progress, if this process started it."""
        self.ended = False
        self.killed = False
        """True if this handle killed it."""
        self.told = False
        """True if the loss of its state has been reported."""

    @classmethod
    async def start(cls, box: AsyncSandbox, *, context_id: str, cwd: str) -> InterpreterProcess:
        """Start the driver, and wait until it is ready.

        Raises:
            WorkdirError: `cwd` does not exist.
            BackendUnavailableError: no Python inside.
            ExecError: it did not start.
        """
        token = secrets.token_hex(16)
        folder = f"{box.temporary}/.corral-{secrets.token_hex(8)}"
        record: Recorded | None = None
        try:
            for name, text in (("driver.py", bundle(*DRIVER_PARTS)), ("charts.py", bundle(CHARTS_PART))):
                await box.files.write(f"{folder}/{name}", text)
            argv = ["python3", f"{folder}/driver.py"]
            record = await box.start_recorded(argv, name=f"{PREFIX}{context_id}:{token}", cwd=cwd)
            await record.note(json.dumps({"cwd": cwd}).encode())
            process = cls(box, record, token=token)
            with contextlib.suppress(ExecError):  # it has ended already: the record says why
                await record.write(json.dumps({"mark": token}) + "\n")
            await asyncio.wait_for(process._wait_ready(), START_SECONDS)
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(_give_up(box, folder, record)))
            if isinstance(error, TimeoutError) and not isinstance(error, CorralError):
                raise ExecError("the interpreter did not start", sandbox_id=box.id, op="interpreter") from error
            raise
        return process

    @classmethod
    async def attach(cls, box: AsyncSandbox, name: str) -> tuple[InterpreterProcess, LastRun]:
        """A handle to a running driver. Raises: NotRecordedError."""
        record = await box.find_recorded(name)
        process = cls(box, record, token=name.rpartition(":")[2])
        found = await process.look()
        process.since = found.began
        return process, found

    async def _wait_ready(self) -> None:
        reader = FrameReader(self._token)
        complaint = b""
        async with contextlib.aclosing(self.record.entries()) as entries:
            async for entry in entries:
                if entry.kind == "stderr":
                    complaint = (complaint + entry.data)[-_STDERR_BYTES:]
                elif entry.kind == "stdout":
                    if any(isinstance(item, dict) and item["event"] == "ready" for item in reader.feed(entry.data)):
                        self.since = entry.next_offset
                        return
                elif entry.kind == "end":
                    break
        result = await self.record.wait()
        if result.exit_code == NOT_FOUND_EXIT_CODE:
            self._box.primitives.lacks_runtime(find_language("python"), op="interpreter")
        text = complaint.decode("utf-8", "replace").strip()[-500:]
        raise ExecError(
            f"the interpreter did not start: exit code {result.exit_code} {text}".rstrip(),
            sandbox_id=self._box.id,
            op="interpreter",
        )

    async def look(self) -> LastRun:
        """Read the record up to its current end: a run may write as fast as we read."""
        known = [info.next_offset for info in await self._box.list_recorded() if info.name == self.record.name]
        reader = FrameReader(self._token)
        cwd: str | None = None
        run: str | None = None
        began, active, expected = 0, False, 0
        async for entry in self.record.entries(follow=False):
            if run is None and entry.offset > expected and entry.kind in ("stdout", "stderr"):
                # Output without a beginning: usually nothing prints between runs.
                run, began, active = UNNAMED, entry.offset, True
            if entry.kind == "note":
                cwd = entry.content.get("cwd", cwd)
            elif entry.kind == "end":
                self.ended, active = True, False
            elif entry.kind == "stdout":
                if entry.offset != expected:
                    reader.reset()
                for item in reader.feed(entry.data):
                    if isinstance(item, dict) and item["event"] == "begin":
                        run, began, active = str(item.get("run")), entry.offset, True
                    elif isinstance(item, dict) and item["event"] == "end":
                        run, active = run or str(item.get("run")), False
            expected = entry.next_offset
            if known and expected >= known[0]:
                break
        return LastRun(cwd=cwd if isinstance(cwd, str) else None, run=run, began=began, active=active)

    async def send(self, run: str, code: str, envs: Mapping[str, str]) -> None:
        """Send a run; a long one in a file, since a line must arrive in one piece. Raises: ExecError if it ended."""
        request: dict[str, Any] = {"code": code, "envs": dict(envs)}
        line = json.dumps({"run": run, **request})
        if len(line) > _INLINE_BYTES:
            path = f"{self._box.temporary}/.corral-{secrets.token_hex(8)}/request.json"
            await self._box.files.write(path, json.dumps(request).encode())
            line = json.dumps({"run": run, "file": path})
        self.active = run
        await self.record.write(line + "\n")

    async def read(
        self, run: str, *, timeout: float | None = None, owned: bool = True
    ) -> AsyncGenerator[RunEvent, None]:
        """The events of a run; no events if the process ended before it began. `owned`: its end resets `active`."""
        reading = _Reading(self._token, run)
        watchdog: asyncio.Task[None] | None = None
        late = False
        position = expected = self.since

        async def watch(seconds: float) -> None:
            nonlocal late
            await asyncio.sleep(seconds)
            late = True
            await self._stop_late(reading, since=position)

        if timeout is not None:
            watchdog = asyncio.ensure_future(watch(timeout))
            watchdog.add_done_callback(_look_away)
        entries = self.record.entries(since=self.since)
        try:
            async for entry in entries:
                if entry.offset > expected:
                    yield reading.skip(entry.offset - expected)
                    await self._ask_after_loss(reading)
                position, expected = entry.offset, entry.next_offset
                if entry.kind == "end":
                    self.ended = True
                    if reading.began or late:
                        for event in reading.flush():
                            yield event
                        yield self._dead(run, entry, late=late, told=reading.state)
                    return
                for event in reading.take(entry):
                    yield event
                if reading.state is not None and await self._is_over(reading, owned=owned):
                    self.since = max(self.since, reading.ended_at)
                    yield RunEvent("end", run, status="timeout" if late else reading.state, text=reading.reason)
                    return
        finally:
            if watchdog is not None:
                watchdog.cancel()
            if owned and (reading.idle or self.ended):
                self.active = None
            await entries.aclose()

    async def _stop_late(self, reading: _Reading, *, since: int) -> None:
        """Stop a run, and note its end in the record, after all its output: a thread that the run left behind may have
        read the reader's question, which then gets no answer."""
        await self.stop(since=since)
        if not self.ended:
            await self.record.note(json.dumps(reading.ask()).encode())

    async def _is_over(self, reading: _Reading, *, owned: bool) -> bool:
        """The code may have printed a false end: ask the driver, which answers between runs only."""
        if reading.idle or not owned:
            return True
        if not reading.asked_of_end:
            reading.asked_of_end = True
            await self._ping(reading.ask())
        return False

    async def _ask_after_loss(self, reading: _Reading) -> None:
        """Ask the driver whether the run has ended: its end may have been dropped."""
        now = asyncio.get_running_loop().time()
        if now - reading.asked_at >= _PING_SECONDS:
            reading.asked_at = now
            await self._ping(reading.ask())

    async def _ping(self, question: str) -> None:
        with contextlib.suppress(ExecError):  # it has ended, as its record shows
            await self.record.write(json.dumps({"ping": question}) + "\n")

    def _dead(self, run: str, entry: Entry, *, late: bool, told: RunStatus | None) -> RunEvent:
        """The end of a run whose process has ended; `told`: the end that the run itself reported."""
        if told is not None and not late and not self.killed:
            return RunEvent("end", run, status=told)  # it ended after the run: the next run reports it
        end = entry.content
        if end.get("reason") == "oom":
            text = "the interpreter was out of memory"
        elif end.get("signal"):
            text = f"the interpreter was ended by signal {end['signal']}"
        else:
            text = f"the interpreter ended with exit code {end.get('exit_code')}"
        self.told = True
        status: RunStatus = "timeout" if late else "interrupted" if self.killed else "died"
        return RunEvent("end", run, status=status, text=text, fresh=True)

    async def stop(self, *, since: int | None = None) -> None:
        """Interrupt the run in progress, and kill the process if that does not help."""
        ending = asyncio.ensure_future(self._wait_idle(self.since if since is None else since))
        ending.add_done_callback(_look_away)
        try:
            for _ in range(2):  # twice: during system(3) only the child gets the first
                await self.record.signal(signal.SIGINT)
                await asyncio.wait({ending}, timeout=GRACE_SECONDS / 2)
                if ending.done():
                    if not ending.cancelled() and ending.exception() is None:
                        self.since = max(self.since, ending.result())  # the next run begins after this one
                    return
            log.debug("a run does not obey: its process is ended")
            await self.kill()
        finally:
            ending.cancel()

    async def _wait_idle(self, since: int) -> int:
        """Wait until the driver answers, which it does between runs, or has ended; returns where the last run ended."""
        question = secrets.token_hex(8)
        reader = FrameReader(self._token)
        expected = since
        ended_at: int | None = None
        await self._ping(question)
        async with contextlib.aclosing(self.record.entries(since=since)) as entries:
            async for entry in entries:
                if entry.offset > expected:
                    reader.reset()
                expected = entry.next_offset
                items = reader.feed(entry.data) if entry.kind == "stdout" else []
                for item in items:
                    if isinstance(item, dict) and item["event"] == "end":
                        ended_at = entry.next_offset
                    elif isinstance(item, dict) and item["event"] == "pong" and item.get("ping") == question:
                        return expected if ended_at is None else ended_at
        return expected

    async def kill(self) -> None:
        """Kill it with its process tree."""
        self.killed = self.told = True
        await self.record.kill()
        self.ended = True
        self.active = None

    async def forget(self) -> None:
        """Kill it, and delete its record."""
        self.killed = True
        await self.record.forget()
        self.ended = True
        self.active = None


class _Reading:
    """Turns entries of the record into events of one run."""

    def __init__(self, token: str, run: str) -> None:
        self._run = run
        self._readers = {"stdout": FrameReader(token), "stderr": FrameReader(token)}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._readers}
        self._current: dict[str, str | None] = dict.fromkeys(self._readers)
        self._over: set[str] = set()
        self._asked: set[str] = set()
        self.asked_of_end = False
        self.asked_at = float("-inf")
        self.ended_at = 0
        """The offset after the entry with the end."""
        self.began = False
        self.idle = False
        """True if the driver has answered a question of this reader: the run is over."""
        self.state: RunStatus | None = None
        self.reason = ""

    def ask(self) -> str:
        """A new question, which only a reader of the requests can answer."""
        question = secrets.token_hex(8)
        self._asked.add(question)
        return question

    def take(self, entry: Entry) -> list[RunEvent]:
        """The events of an entry."""
        if entry.kind == "note" and str(parse_json(entry.data)) in self._asked:
            self._answer()
        if entry.kind not in self._readers:
            return []
        events: list[RunEvent] = []
        told = self.state
        for item in self._readers[entry.kind].feed(entry.data):
            if isinstance(item, bytes):
                events += self._text(entry.kind, item)
            else:
                events += self._event(entry.kind, item)
        if told is None and self.state is not None:
            self.ended_at = entry.next_offset
        return events

    def skip(self, count: int) -> RunEvent:
        """Entries are missing."""
        for reader in self._readers.values():
            count += reader.reset()
        for stream in self._readers:
            self._current[stream] = self._run
        self.began = True
        return RunEvent("lost", self._run, lost_bytes=count)

    def flush(self) -> list[RunEvent]:
        """The process has ended: what looked like the beginning of a frame is text."""
        events: list[RunEvent] = []
        for stream, reader in self._readers.items():
            events += self._text(stream, reader.flush(), final=True)
        return events

    def _text(self, stream: str, data: bytes, *, final: bool = False) -> list[RunEvent]:
        # Output between two runs, of a thread or child of the first, is reported in the second.
        if stream in self._over or self._current[stream] not in (None, self._run):
            return []
        text = self._decoders[stream].decode(data, final)
        return [RunEvent("stdout" if stream == "stdout" else "stderr", self._run, text=text)] if text else []

    def _event(self, stream: str, item: dict[str, Any]) -> list[RunEvent]:
        kind, run = item["event"], item.get("run")
        if kind == "begin":
            self._current[stream] = run if isinstance(run, str) else None
            self.began = self.began or run == self._run
        elif kind == "end":
            if run == self._run:
                return self._end(stream, item)
            self._current[stream] = None
        elif kind == "pong":
            if str(item.get("ping")) in self._asked:
                self._answer()
        elif self._current[stream] == self._run and stream not in self._over:
            return self._told(kind, item)
        return []

    def _answer(self) -> None:
        """The driver has answered: the run is over."""
        self.idle = True
        if self.state is None:
            self.state, self.reason = "completed", "the news of its end was lost among its output"

    def _end(self, stream: str, item: dict[str, Any]) -> list[RunEvent]:
        # The end comes on both streams, and counts when both have it: all output before it has then been read.
        events = self._text(stream, b"", final=True)
        self._over.add(stream)
        if len(self._over) == len(self._readers):
            self.state = _STATES.get(str(item.get("state")), "failed")
        return events

    def _told(self, kind: str, item: dict[str, Any]) -> list[RunEvent]:
        if kind in ("result", "display"):
            data, metadata = item.get("data"), item.get("metadata")
            if not isinstance(data, dict):
                return []
            extra = metadata if isinstance(metadata, dict) else {}
            return [RunEvent("result" if kind == "result" else "display", self._run, data=data, metadata=extra)]
        if kind == "error":
            fields = {name: str(item.get(name, "")) for name in ("name", "value", "traceback")}
            return [RunEvent("error", self._run, **cast("dict[str, Any]", fields))]
        return []


def _look_away(task: asyncio.Task[Any]) -> None:
    """Log an error: the sandbox is gone, which the reader of the run notices by itself."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("stopping a run: %s", error)


async def _give_up(box: AsyncSandbox, folder: str, record: Recorded | None) -> None:
    with contextlib.suppress(CorralError):
        if record is not None:
            await record.forget()
        await box.files.remove(folder, recursive=True, missing_ok=True)
