"""Copying between this machine and a sandbox, counted on the way."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from corral.base import transfer
from corral.cli.display import Progress, show_size
from corral.cli.stdio import read_input
from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileError, SpecError
from corral.inside.writing import write_all
from corral.results import DownloadResult

_QUIET_BYTES = 8 * 1024 * 1024
"""Below this size no progress is shown."""
_INSIDE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """One end of a copy: a path inside a sandbox, a host path, or `-` for stdin or stdout."""

    sandbox_id: str | None
    path: str

    @classmethod
    def parse(cls, text: str) -> CopyEnd:
        """`ID:path` is inside; everything else is on the host. A host file with a colon is written ./a:b."""
        found = _INSIDE.fullmatch(text)
        return cls(found[1], found[2] or ".") if found else cls(None, text)


def check_ends(source: CopyEnd, target: CopyEnd) -> str:
    """The sandbox of the copy. Raises: SpecError unless exactly one end is inside."""
    inside = [end.sandbox_id for end in (source, target) if end.sandbox_id is not None]
    if len(inside) != 1:
        wrong = "both ends are inside a sandbox" if inside else "neither end is inside a sandbox"
        raise SpecError(wrong, hint="write one of them as ID:PATH, for example: corral sandbox cp data.csv my-box:")
    return inside[0]


class Meter:
    """Counts copied bytes, and shows progress once there are many."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._begun = time.monotonic()
        self._shown = 0.0
        self._progress = Progress()
        self.bytes = 0

    async def count(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same pieces, counted."""
        try:
            async for chunk in chunks:
                self.bytes += len(chunk)
                self._show()
                yield chunk
        finally:
            self._progress.clear()

    def _show(self) -> None:
        now = time.monotonic()
        if self.bytes < _QUIET_BYTES or now - self._shown < 0.1:
            return
        self._shown = now
        rate = show_size(self.bytes / max(0.001, now - self._begun))
        of = f" of {show_size(self._total)} ({100 * self.bytes // max(1, self._total)} %)" if self._total else ""
        self._progress.show(f"{self._what}: {show_size(self.bytes)}{of}, {rate}/s")


async def copy_in(box: AsyncSandbox, source: str, target: str) -> None:
    """Copy to the sandbox."""
    if source == "-":
        if target.endswith("/") or await _is_folder(box, target):
            raise SpecError(f"{target!r} is a folder", hint="data from `-` has no name: pass a file name")
        await box.files.write(target, Meter(target).count(read_input()))
        return
    origin, about, name = _look_at(source)
    # Like cp: into an existing folder under its own name, but `name/.` means the content.
    if name and not source.endswith(("/.", "/")) and (target.endswith("/") or await _is_folder(box, target)):
        target = f"{target.rstrip('/')}/{name}"
    if stat.S_ISDIR(about.st_mode):
        await box.files.unpack(target, Meter(name).count(transfer.pack_host_tree(origin)))
        return
    content = Meter(name, about.st_size).count(transfer.read_host_file(origin))
    await box.files.write(target, content, mode=about.st_mode & 0o777)


def _look_at(source: str) -> tuple[Path, os.stat_result, str]:
    """The host path, its stat, and its name. Raises: SpecError if it can't be copied."""
    origin = Path(source)
    if not origin.exists():
        raise SpecError(f"{source!r} does not exist", hint="nothing was copied")
    about = origin.stat()
    if not stat.S_ISDIR(about.st_mode) and not stat.S_ISREG(about.st_mode):
        raise SpecError(f"{source!r} is neither a file nor a folder", hint="nothing was copied")
    return origin, about, origin.resolve().name


async def copy_out(box: AsyncSandbox, source: str, target: str, *, git_settings: bool) -> DownloadResult:
    """Copy from the sandbox. The data is hostile: `corral.base.transfer` checks it."""
    info = await box.files.stat(source)
    if target == "-":
        if info.is_folder:
            raise SpecError(f"{source!r} is a folder", hint="only a file can be copied to `-`")
        async for chunk in Meter(info.name, info.size).count(box.files.read_stream(source)):
            await asyncio.to_thread(write_all, 1, chunk)
        return DownloadResult()
    goal = _find_goal(target, "" if source.endswith(("/.", "/")) else info.name)
    if not goal.parent.is_dir():
        raise SpecError(f"the folder {os.fspath(goal.parent)!r} does not exist", hint="create it; nothing was copied")
    if info.is_folder:
        packed = Meter(info.name).count(box.files.pack(source))
        return DownloadResult(await transfer.unpack_to_host(packed, goal, max_bytes=None, git_settings=git_settings))
    if goal.is_dir():
        raise SandboxFileError(f"{os.fspath(goal)!r} is a folder", op="download", hint="remove it, or use another name")
    content = Meter(info.name, info.size).count(box.files.read_stream(source))
    await transfer.write_host_file(content, goal, mode=info.mode & 0o777, max_bytes=None)
    return DownloadResult()


def _find_goal(target: str, name: str) -> Path:
    """The target: in an existing folder under its own name, which comes from inside and is not trusted.

    Only the named target is created: a missing parent folder is an error.
    """
    goal = Path(target)
    if (goal.is_dir() or target.endswith("/")) and name not in ("", ".", "..", "/") and "/" not in name:
        return goal / name
    return goal


async def _is_folder(box: AsyncSandbox, path: str) -> bool:
    try:
        return (await box.files.stat(path)).is_folder
    except SandboxFileError:
        return False
