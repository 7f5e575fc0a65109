"""Detached programs of a sandbox: its keeper records them, and we read the records from its folder.

They can be read without the keeper, so also when the sandbox is stopped. The first note marks their records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from corral.backends.embedded import keepers
from corral.base.command import show_command
from corral.client.sandbox import AsyncSandbox
from corral.engine.recordfile import RecordReader
from corral.engine.state import is_held
from corral.errors import NameTakenError, NotRecordedError
from corral.protocol import Command, DetachedOptions
from corral.sessions.detached import DetachedProgram, choose
from corral.spec import check_keywords

MAX_PROGRAMS = 900
"""Beyond this, the oldest ended program is forgotten. A keeper has 1,000 records in all."""
_MARK = b"corral-detached "
_WORDS, _WORD_LENGTH = 100, 500
"""How much of a command is kept for lists."""
_NOTES_BYTES = 256 * 1024
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Found(DetachedProgram):
    """A program, and where it is recorded."""

    path: Path = field(kw_only=True)


async def start(box: AsyncSandbox, data_folder: Path, command: Command, **options: Unpack[DetachedOptions]) -> int:
    """Start a program; returns its number."""
    check_keywords(options, DetachedOptions, "start_detached")
    programs = list_all(data_folder, box.id)
    number = max([0, *(program.number for program in programs)]) + 1
    ended = [program for program in programs if not program.running]
    for program in ended[: max(0, len(programs) - MAX_PROGRAMS + 1)]:
        with contextlib.suppress(NotRecordedError):
            await (await box.find_recorded(_name(program.number))).forget()
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    words = [str(word)[:_WORD_LENGTH] for word in argv[:_WORDS]]
    while True:
        about = json.dumps({"number": number, "argv": words})
        try:
            note = _MARK + about.encode()
            recorded = await box.start_recorded(command, name=_name(number), note=note, **options)
        except NameTakenError:
            number += 1  # another client started one in the same moment
        else:
            await recorded.close_stdin()
            return number


def list_all(data_folder: Path, wanted: str) -> list[_Found]:
    """Running and ended programs, oldest first. Raises: SandboxGoneError."""
    folder = keepers.find(data_folder, wanted).folder
    lives = is_held(folder)
    paths = [*folder.glob("records/*"), *folder.glob("logs/*.json")]
    found = [program for path in paths if (program := _look(path, lives=lives)) is not None]
    return sorted(found, key=lambda program: program.number)


async def follow_one(data_folder: Path, wanted: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
    """The output of one program; with `follow`, until it ends. Raises: SandboxGoneError."""
    path = choose(await asyncio.to_thread(list_all, data_folder, wanted), wanted, number).path
    with contextlib.closing(_OldLog(path) if path.suffix else _Record(path)) as reader:
        while True:
            program = _look(path, lives=is_held(path.parent.parent))  # before reading: after its end no more comes
            for data in reader.read():
                yield data
            if not follow or program is None or not program.running:
                return
            await asyncio.sleep(_LOOK_SECONDS)


def _name(number: int) -> str:
    return f"detached-{number}"


def _look(path: Path, *, lives: bool) -> _Found | None:
    """The program of a record or an old log; None if it is deleted, or the record of something else."""
    if path.suffix:
        return _look_at_old_log(path, lives=lives)
    notes = RecordReader(path, 0).notes(_NOTES_BYTES)
    if not notes or not notes[0].data.startswith(_MARK):
        return None
    about = json.loads(notes[0].data.removeprefix(_MARK))
    exit_code = json.loads(notes[-1].data)["exit_code"] if notes[-1].kind == "end" else None
    running = lives and exit_code is None
    return _found(path, about["number"], about["argv"], running=running, exit_code=exit_code, files=path.glob("*.seg"))


def _found(
    path: Path, number: int, argv: list[str], *, running: bool, exit_code: int | None, files: Iterable[Path]
) -> _Found:
    size = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # the oldest part was just dropped
            size += file.stat().st_size
    return _Found(number, show_command(argv), running, exit_code, tuple(argv), size, path=path)


class _Record:
    """Reads the output in a record."""

    def __init__(self, path: Path) -> None:
        self._reader = RecordReader(path, 0)
        self.close = self._reader.close

    def read(self) -> Iterator[bytes]:
        """What is new."""
        with contextlib.suppress(FileNotFoundError):  # the sandbox ended, and its folder is gone
            while frames := self._reader.read():
                yield from (frame.data for frame in frames if frame.kind in ("stdout", "stderr"))


# Logs that keepers of release 0.1 wrote: NUMBER.json, NUMBER.log, and NUMBER.log.1 with what was before.


def _look_at_old_log(path: Path, *, lives: bool) -> _Found | None:
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    running = lives and about["state"] == "running"
    return _found(
        path, int(path.stem), about["argv"], running=running, exit_code=about.get("exit_code"), files=_log_files(path)
    )


def _log_files(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".log.1"), path.with_suffix(".log")


class _OldLog:
    """Reads such a log. If it grows fast, a part may be missed when it continues in a new file."""

    def __init__(self, path: Path) -> None:
        self._before, self._log = _log_files(path)
        self._position = -1

    def read(self) -> Iterator[bytes]:
        """What is new."""
        with contextlib.suppress(FileNotFoundError):
            if self._position < 0:
                self._position = 0
                with contextlib.suppress(FileNotFoundError):
                    yield self._before.read_bytes()
            elif self._log.stat().st_size < self._position:
                yield self._before.read_bytes()[self._position :]
                self._position = 0
            with self._log.open("rb") as file:
                file.seek(self._position)
                data = file.read()
            self._position += len(data)
            yield data

    def close(self) -> None:
        """Nothing is open between two reads."""
