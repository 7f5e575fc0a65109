"""Commands in the background: started by one call; later calls read their output, write to them and kill them.

Each is a recorded program of the sandbox (`corral.sessions.record`), so it is independent of the handle that started
it: another handle finds it, and if the sandbox outlives this process, so does the command. It ends with the sandbox at
the latest. Reading continues where the last reading of this process ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corral.base.command import bash_text
from corral.client.sandbox import AsyncSandbox
from corral.errors import ExecError, NameTakenError, NotRecordedError
from corral.protocol import PathLike
from corral.results import Denial
from corral.sessions.record import Entry, Recorded, RecordInfo
from corral.tools.unread import Mark, Reading

PREFIX = "shell-"
"""Background commands are recorded programs with such names."""
MAX_SHELLS = 32
"""The most commands that one sandbox keeps. To start another one, the oldest that has ended is removed."""
RECORD_BYTES = 1024 * 1024
"""How much output of each command is kept."""
READ_BYTES = 100_000
"""How much output one reading returns."""
_NOTED_CHARS = 4096
_QUIET_SECONDS = 0.1
_SETTLED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BackgroundHandle:
    """A command that was started in the background."""

    shell_id: str
    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class ShellOutput:
    """The output of a command since the last reading, and its state."""

    shell_id: str
    stdout: bytes
    stderr: bytes
    output: bytes
    """stdout and stderr, in order."""
    running: bool
    exit_code: int | None = None
    reason: str | None = None
    """Why it ended."""
    waiting: bool = False
    """True if there is already more to read."""
    lost_bytes: int = 0
    """About how much was dropped because it was not read in time."""
    denied: tuple[Denial, ...] = ()
    """What the sandbox tried to reach since the last reading, and was refused."""


@dataclass(frozen=True, slots=True)
class BackgroundProcessInfo:
    """A background command in a list."""

    shell_id: str
    command: str
    running: bool
    exit_code: int | None = None
    started_at: float = field(default=0.0, compare=False)
    """As Unix time."""


_marks: weakref.WeakKeyDictionary[AsyncSandbox, dict[str, Mark]] = weakref.WeakKeyDictionary()
"""How far each command was read in this process: a tool may get a new handle of the same sandbox for each call."""
_denials: weakref.WeakKeyDictionary[AsyncSandbox, dict[str, int]] = weakref.WeakKeyDictionary()
"""How much the network had refused when each command was started, or last read."""


async def start_shell(
    box: AsyncSandbox,
    command: str,
    *,
    cwd: PathLike | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> BackgroundHandle:
    """Start a command in bash (or sh, without a bash), and don't wait for it.

    Raises:
        ExecError: too many are running, or the command can't be started.
    """
    wanted = bash_text(command)
    known = await _make_room(box)
    denials = box.primitives.count_denials()
    note = json.dumps({"command": command[:_NOTED_CHARS]}).encode()
    number = max((_number(info.name) for info in known), default=0)
    while True:
        number += 1
        shell_id = f"{PREFIX}{number}"
        try:
            recorded = await box.start_recorded(
                wanted, name=shell_id, cwd=cwd, env=env, timeout=timeout, limit_bytes=RECORD_BYTES, note=note
            )
        except NameTakenError:
            continue  # taken by another handle meanwhile
        _marks_of(box).pop(shell_id, None)
        _denials.setdefault(box, {})[shell_id] = denials
        return BackgroundHandle(shell_id, recorded.pid, command)


async def read_shell(
    box: AsyncSandbox, shell_id: str, *, wait_seconds: float = 0.0, newest: bool = False, max_bytes: int = READ_BYTES
) -> ShellOutput:
    """The new output. `wait_seconds` is how long to wait for new output or the end.

    What does not fit into `max_bytes` waits for the next reading; with `newest`, what is older is skipped instead.

    Raises:
        NotRecordedError: no command has this id.
    """
    recorded = await _find(box, shell_id)
    mark = _marks_of(box).get(shell_id, Mark())
    if wait_seconds > 0 and not mark.waiting:
        await _wait_for_news(recorded, mark.position, wait_seconds)
    # Checked before the output is read, so that a command reported as ended has no more output.
    running, exit_code, reason = _find_end(await recorded.notes())
    reading = Reading(mark, max_bytes=max(1, max_bytes), newest=newest)
    async with contextlib.aclosing(recorded.entries(since=mark.position, follow=False)) as entries:
        async for entry in entries:
            if not reading.take(entry):
                break
    mark = _marks_of(box)[shell_id] = reading.finish(whole=not running)
    known, count = _denials.setdefault(box, {}), box.primitives.count_denials()
    denied = box.primitives.denials_since(known.get(shell_id, count)) if known.get(shell_id, count) != count else ()
    known[shell_id] = count
    return ShellOutput(
        shell_id,
        stdout=reading.join("stdout"),
        stderr=reading.join("stderr"),
        output=reading.join("stdout", "stderr"),
        running=running,
        exit_code=exit_code,
        reason=reason,
        waiting=mark.waiting,
        lost_bytes=reading.lost_bytes,
        denied=tuple(denied),
    )


async def write_shell(box: AsyncSandbox, shell_id: str, text: bytes | str, *, close: bool = False) -> None:
    """Write to its standard input; with `close`, close that afterwards.

    Raises:
        NotRecordedError: no command has this id.
        ExecError: it has ended, or has closed its input.
    """
    recorded = await _find(box, shell_id)
    if text:
        await recorded.write(text)
    if close:
        await recorded.close_stdin()


async def kill_shell(box: AsyncSandbox, shell_id: str) -> bool:
    """Kill it with everything it started; its output can still be read. Returns True if it was running.

    Raises:
        NotRecordedError: no command has this id.
    """
    recorded = await _find(box, shell_id)
    running, *_ = _find_end(await recorded.notes())
    if running:
        await recorded.kill()
    return running


async def list_shells(box: AsyncSandbox) -> list[BackgroundProcessInfo]:
    """All background commands, also those that have ended, in the order of their numbers."""
    found = []
    for info in await _list(box):
        try:
            notes = await (await box.find_recorded(info.name)).notes()
        except NotRecordedError:
            continue  # forgotten meanwhile
        running, exit_code, _ = _find_end(notes)
        command = notes[0].content.get("command") if notes and notes[0].kind == "note" else None
        text = command if isinstance(command, str) else ""
        found.append(BackgroundProcessInfo(info.name, text, running, exit_code, info.started))
    return found


def _marks_of(box: AsyncSandbox) -> dict[str, Mark]:
    return _marks.setdefault(box, {})


def _number(name: str) -> int:
    digits = name.removeprefix(PREFIX)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0


async def _list(box: AsyncSandbox) -> list[RecordInfo]:
    found = [info for info in await box.list_recorded() if info.name.startswith(PREFIX) and _number(info.name)]
    return sorted(found, key=lambda info: _number(info.name))


async def _find(box: AsyncSandbox, shell_id: str) -> Recorded:
    # Sessions and terminals are recorded programs as well, but not background commands.
    if isinstance(shell_id, str) and shell_id.startswith(PREFIX):
        with contextlib.suppress(NotRecordedError):
            return await box.find_recorded(shell_id)
    raise NotRecordedError(f"no background command named {shell_id!r:.80}", op="background")


async def _make_room(box: AsyncSandbox) -> list[RecordInfo]:
    known = await _list(box)
    while len(known) >= MAX_SHELLS:
        ended = next((info for info in known if not info.running), None)
        if ended is None:
            raise ExecError(f"{MAX_SHELLS} background commands are running", op="background", hint="kill one first")
        known.remove(ended)
        with contextlib.suppress(NotRecordedError):
            await (await box.find_recorded(ended.name)).forget()
        _marks_of(box).pop(ended.name, None)
        _denials.setdefault(box, {}).pop(ended.name, None)
    return known


async def _wait_for_news(recorded: Recorded, since: int, seconds: float) -> None:
    """Wait until something is printed, and then for a short pause: programs print a line in several pieces."""
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(seconds) as clock,
            contextlib.aclosing(recorded.entries(since=since, follow=True)) as entries,
        ):
            latest = asyncio.get_running_loop().time() + seconds
            async for entry in entries:
                if entry.kind == "end":
                    return
                if entry.kind != "note":
                    now = asyncio.get_running_loop().time()
                    latest = min(latest, now + _SETTLED_SECONDS)
                    clock.reschedule(min(latest, now + _QUIET_SECONDS))


def _find_end(notes: Sequence[Entry]) -> tuple[bool, int | None, str | None]:
    """True while a command runs; False with its exit code and the reason when it has ended."""
    if not notes or notes[-1].kind != "end":
        return True, None, None
    code, reason = (notes[-1].content.get(name) for name in ("exit_code", "reason"))
    return False, code if isinstance(code, int) else None, reason if isinstance(reason, str) else None
