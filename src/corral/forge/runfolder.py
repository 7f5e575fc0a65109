"""A run's folder: `run.json`, the log of events, the artifacts, the result. Everything can be shown again from it.

The log decides: an attempt counts when its last event is written completely, on its own line. A killed run therefore
loses only the attempts that were under way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from corral.errors import RunFolderError
from corral.forge.artifacts import read_artifact
from corral.forge.definition import FORMAT
from corral.forge.events import ForgeEvent, check_kinds
from corral.forge.ids import check_id
from corral.forge.judge.model import Standing
from corral.forge.outcome import Attempt
from corral.forge.plan import Turn
from corral.forge.settings import check_output_name

DEFINITION = "run.json"
EVENTS = "events.jsonl"
RESULT = "result.json"
CHUNK_BYTES = 256 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_DEFINITION_BYTES = 64 * 1024 * 1024
_LOCK_TRIES = 10
_LOCK_PAUSE_SECONDS = 0.02
_DEFINITION: dict[str, tuple[type, ...]] = {
    "state": (str,), "started": (str,), "versions": (dict,), "objective": (str,), "settings": (dict,), "jobs": (int,),
    "order": (list,), "candidates": (list,), "judge": (dict,), "salt": (str,),
}  # fmt: skip
_CANDIDATE: dict[str, tuple[type, ...]] = {
    "name": (str,), "description": (str,), "source": (dict,), "packages": (list,), "env": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, as read from its folder."""

    path: Path
    definition: dict[str, Any]
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    """The last of each candidate and round; not those that were under way when the run broke off."""
    standings: tuple[Standing, ...] = ()
    seconds: float = 0.0

    @property
    def run_id(self) -> str:
        """The id of the run, which its folder is named after."""
        return str(self.definition["run"])

    @property
    def state(self) -> str:
        """`running`, `finished` or `interrupted`. A killed run says `running` for ever: see `is_held`."""
        return str(self.definition.get("state", "running"))

    @property
    def objective(self) -> str:
        """What the candidates were asked to do."""
        return str(self.definition.get("objective", ""))

    @property
    def repeat(self) -> int:
        """The number of rounds."""
        return int(self.definition.get("settings", {}).get("repeat", 1))

    @property
    def winners(self) -> list[str]:
        """The candidates with rank 1; several are a tie."""
        return [standing.candidate for standing in self.standings if standing.rank == 1]

    def artifacts(self, candidate: str, number: int = 1) -> Path:
        """Where the artifacts of an attempt are."""
        return artifact_folder(self.path, Turn(candidate, number), self.repeat)

    def events(self) -> Iterator[ForgeEvent]:
        """All events, in order."""
        return read_events(self.path / EVENTS)

    def is_held(self) -> bool:
        """Whether a process is running it now."""
        try:
            with os.fdopen(open_plain(self.path / EVENTS, os.O_RDONLY), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def artifact_folder(run: Path, turn: Turn, repeat: int) -> Path:
    """`<run>/<candidate>`, and with several rounds a folder for each.

    Raises:
        RunFolderError: the folder is a link. Corral makes no links there, and it would lead out of the run's folder.
    """
    folder = run / check_id(turn.candidate)
    whole = folder if repeat == 1 else folder / str(int(turn.round))
    if folder.is_symlink() or whole.is_symlink():
        raise RunFolderError(f"{str(whole)!r} is a link", hint="someone has changed this folder: do not trust it")
    return whole


def read_run(path: Path | str) -> Run:
    """A run from its folder, finished or not.

    Raises:
        RunFolderError: it is not the folder of a run, or of a newer format.
    """
    folder = Path(path)
    try:
        content, whole = read_artifact(folder, DEFINITION, max_bytes=_MAX_DEFINITION_BYTES)
        if not whole:
            raise ValueError("too long for a definition")
        definition = json.loads(content)
        number = definition.get("format", FORMAT)  # one without a number is of the first format
        if isinstance(number, int) and number > FORMAT:  # before anything else: its keys may be other ones
            raise RunFolderError(
                f"{str(folder)!r} has the run format {number}; this version of Corral reads up to {FORMAT}",
                hint=f"open it with the version that wrote it ({_writer_of(definition)}) or a newer one",
            )
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"format={number!r}")
        check_id(definition["run"], what="a run's id")
        check_kinds(definition, _DEFINITION)
        ids = [check_id(candidate["id"]) for candidate in definition["candidates"]]
        for candidate in definition["candidates"]:
            check_kinds(candidate, _CANDIDATE)
        settings = definition.get("settings", {})
        repeat = int(settings.get("repeat", 1))
        check_output_name(settings.get("output", "artifact.md"))  # paths are made from it
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunFolderError(
            f"{str(folder)!r} is not the folder of a run",
            hint="give a folder that has a run.json, such as artifacts/<run>",
        ) from error
    attempts: dict[tuple[str, int], Attempt] = {}
    standings: dict[str, Standing] = {}
    seconds = 0.0
    for event in read_events(folder / EVENTS):
        seconds = max(seconds, event.at)
        with contextlib.suppress(TypeError, KeyError, ValueError, AttributeError):  # a line that was written by hand
            if event.kind == "attempt-ended":
                attempt = Attempt.from_json(event.data)
                # Only candidates of this run: paths are made from the id and the round.
                if attempt.candidate in ids and attempt.round in range(1, repeat + 1):
                    attempts[attempt.candidate, attempt.round] = attempt
            elif event.kind == "judging":
                standings.clear()
            elif event.kind == "judged":
                standing = Standing.from_json(event.data)
                if standing.candidate in ids:
                    standings[standing.candidate] = standing
    return Run(
        path=folder, definition=definition, attempts=attempts, standings=tuple(standings.values()), seconds=seconds
    )


def _writer_of(definition: dict[str, Any]) -> str:
    versions = definition.get("versions")
    found = versions.get("corral") if isinstance(versions, dict) else None
    return f"corral {found}"[:40] if isinstance(found, str) and found.isprintable() else "a newer corral"


def read_events(path: Path) -> Iterator[ForgeEvent]:
    """The events of a log. Malformed lines are skipped, and so is a last line without its end."""
    try:
        file = os.fdopen(open_plain(path, os.O_RDONLY), "rb")
    except OSError:
        return
    parser = EventParser()
    with file:
        while data := file.read(CHUNK_BYTES):
            yield from parser.feed(data)


class EventParser:
    """Makes events from the bytes of a log as they come. A line counts when its end is there."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> Iterator[ForgeEvent]:
        """The events that these bytes complete. Malformed lines, and lines beyond 16 MiB, are skipped."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._hold(line)
            if self._held <= _MAX_LINE_BYTES:
                # A line that was written by hand may hold anything.
                with contextlib.suppress(ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
                    yield ForgeEvent.from_line(b"".join(self._parts).decode("utf-8", "replace"))
            self._parts, self._held = [], 0
        self._hold(rest)

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > _MAX_LINE_BYTES:
            self._parts = []
        elif part:
            self._parts.append(part)


class RunWriter:
    """Writes the folder of a run. One process at a time can have it."""

    def __init__(self, path: Path, log: IO[bytes]) -> None:
        self.path = path
        self._log = log

    @classmethod
    def begin(cls, path: Path) -> RunWriter:
        """Create the folder of a new run. Raises: RunFolderError."""
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise RunFolderError(f"{str(path)!r} already exists", hint="resume it, or choose another name") from error
        except OSError as error:
            raise RunFolderError(
                f"{str(path)!r} can't be created: {error.strerror}", hint="choose another folder"
            ) from error
        return cls(path, _hold(path))

    @classmethod
    def resume(cls, path: Path) -> RunWriter:
        """Continue an interrupted run. Raises: RunFolderError."""
        log = _hold(path)
        _cut_torn_line(log)
        return cls(path, log)

    def define(self, definition: dict[str, Any]) -> None:
        """Write `run.json`, whole or not at all."""
        _write_json(self.path / DEFINITION, definition)

    def append(self, event: ForgeEvent) -> None:
        """Add one line. The kernel has it when this returns, so it survives the death of this process."""
        self._log.write(event.to_line().encode("ascii") + b"\n")
        self._log.flush()

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result."""
        _write_json(self.path / RESULT, result)

    def close(self) -> None:
        """Release the folder."""
        self._log.close()


def _hold(path: Path) -> IO[bytes]:
    """The log, locked while it is open; the kernel releases it when the process ends."""
    try:
        log = os.fdopen(open_plain(path / EVENTS, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab+")
    except OSError as error:
        raise RunFolderError(
            f"{str(path)!r} can't be written: {error.strerror}", hint="check that it is the run's folder"
        ) from error
    try:
        _lock(log)
    except BlockingIOError as error:
        log.close()
        raise RunFolderError(
            f"another process is using {str(path)!r}", hint="wait until it ends, or watch it"
        ) from error
    return log


def _lock(log: IO[bytes]) -> None:
    """Raises: BlockingIOError if another process holds it for longer than `is_held` does."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_SECONDS)
    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _cut_torn_line(log: IO[bytes]) -> None:
    """Remove a last line that a killed process wrote only in part."""
    size = log.seek(0, os.SEEK_END)
    end = size
    while end > 0:
        begin = max(0, end - 65536)
        log.seek(begin)
        found = log.read(end - begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end != size:
        log.truncate(end)
    log.seek(0, os.SEEK_END)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()  # left by a killed process, or a link: created anew, so it is ours
    with os.fdopen(open_plain(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="ascii") as file:
        file.write(json.dumps(value, indent=2) + "\n")
    beside.replace(path)


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a regular file. The folder may come from a stranger: no link is followed, no FIFO blocks.

    Raises:
        OSError: it can't be opened, or is something else.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor
