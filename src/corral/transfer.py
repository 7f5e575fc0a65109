"""Files between a sandbox and the host. What comes out is hostile: names, links and sizes are checked here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import IO

from corral.errors import SandboxFileError, SandboxFileTooLargeError
from corral.tars.reading import BrokenArchiveError, Member, MemberReader
from corral.tars.writing import pack_tree

_CHUNK_BYTES = 256 * 1024
_MAX_MEMBERS = 1_000_000
_MAX_PADDING_BYTES = 16 * 1024 * 1024
_HOLE_BYTES = 64 * 1024
"""So many zeros at a multiple of it become a hole."""
_ZEROS = bytes(_HOLE_BYTES)


async def read_host_file(path: Path) -> AsyncGenerator[bytes, None]:
    """A file of ours, piece by piece."""
    with _open(path) as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


async def write_host_file(chunks: AsyncIterable[bytes], target: Path, *, mode: int, max_bytes: int | None) -> None:
    """Write beside the target, then take its place: a broken transfer leaves nothing."""
    await asyncio.to_thread(_refuse_odd_target, target)
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    # Not in a thread: what a cancelled thread has made would be nobody's.
    descriptor, unfinished = _begin_file(target.parent)
    try:
        total = 0
        with os.fdopen(descriptor, "wb") as file:
            async for chunk in chunks:
                total += len(chunk)
                if max_bytes is not None and total > max_bytes:
                    raise SandboxFileTooLargeError(
                        f"more than {max_bytes} bytes", op="download", hint="raise max_bytes"
                    )
                await asyncio.to_thread(_write_around_holes, file.fileno(), total - len(chunk), chunk)
            os.ftruncate(file.fileno(), total)
            os.fchmod(file.fileno(), mode)
        unfinished.replace(target)
    except BaseException:
        _discard(unfinished)
        raise


def _open(path: Path) -> IO[bytes]:
    # Not in a thread: what a cancelled thread has opened would be nobody's.
    return path.open("rb")


def _begin_file(folder: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".corral-")
    return descriptor, Path(name)


def _discard(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _refuse_odd_target(target: Path) -> None:
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{target.name!r} is there already, and is not a file that could be replaced")


async def pack_host_tree(root: Path) -> AsyncGenerator[bytes, None]:
    """A folder of ours as a tar stream, made by a thread and handed over through a pipe."""
    reader, writer = os.pipe()
    task = asyncio.ensure_future(asyncio.to_thread(_pack, root, writer))
    try:
        with os.fdopen(reader, "rb") as source:
            while chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES):
                yield chunk
    finally:
        with contextlib.suppress(BrokenPipeError):
            await task


def _pack(root: Path, writer: int) -> None:
    with os.fdopen(writer, "wb", buffering=_CHUNK_BYTES) as sink:
        pack_tree(os.path.realpath(root), sink.write, anonymous=True, whole=True)


async def unpack_to_host(archive: AsyncIterable[bytes], target: Path, *, max_bytes: int | None) -> None:
    """Lay a hostile tar stream down below `target`, and nowhere else."""
    reader, writer = os.pipe()
    unpacking = asyncio.ensure_future(asyncio.to_thread(_unpack, reader, target, max_bytes))
    try:
        with os.fdopen(writer, "wb") as sink:
            async for chunk in archive:
                await asyncio.to_thread(sink.write, chunk)
    except BrokenPipeError:
        await unpacking  # it has stopped; its own error says why
    except BaseException:
        # The source's own failure is what the caller must see, not that the archive was cut short by it.
        await asyncio.gather(unpacking, return_exceptions=True)
        raise
    await unpacking


def _unpack(reader: int, target: Path, max_bytes: int | None) -> None:
    with os.fdopen(reader, "rb") as source:
        if target.exists() and not target.is_dir():
            raise FileExistsError(f"{target.name!r} is there already, and is not a folder")
        try:
            _unpack_from(source, target, max_bytes)
        except BrokenArchiveError as error:
            raise SandboxFileError(f"a broken archive: {error}", op="download") from error
        except OSError as error:
            if isinstance(error, SandboxFileError):
                raise
            text = f"can't lay the folder down: {error.strerror or error}"
            raise SandboxFileError(text, op="download", hint="is something else in its place?") from error


def _unpack_from(source: IO[bytes], target: Path, max_bytes: int | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    total = 0
    modes: list[tuple[list[str], int]] = []
    reader = MemberReader(source.read)
    for number, member in enumerate(reader):
        total += member.size  # with its holes: what the host's other programs will find there
        if number > _MAX_MEMBERS or (max_bytes is not None and total > max_bytes):
            text = "the folder is larger than allowed"
            raise SandboxFileTooLargeError(text, op="download", hint="raise max_bytes")
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise SandboxFileError(f"{member.name!r} leads out of the folder", op="download")
        if member.kind == "folder" or (parts and member.kind != "other"):
            _lay_down(reader, member, target, parts)
        else:
            reader.skip(member)
        if member.kind == "folder" and parts:
            modes.append((parts, member.mode & 0o777))
    _drain(source)
    for parts, mode in reversed(modes):  # last: a read-only folder must be filled first
        folder = _open_folder(target, parts)
        try:
            os.fchmod(folder, mode)
        finally:
            os.close(folder)


def _drain(source: IO[bytes]) -> None:
    """The padding, so that its writer does not fail. Whoever sends more than that is not listened to."""
    for _ in range(_MAX_PADDING_BYTES // _CHUNK_BYTES):
        if not source.read(_CHUNK_BYTES):
            return


def _open_folder(target: Path, parts: list[str], *, make: bool = False) -> int:
    """A folder below the target, each step taken without following links. What lies there outside is out of reach."""
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=folder)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
    except BaseException:
        os.close(folder)
        raise
    return folder


def _lay_down(reader: MemberReader, member: Member, target: Path, parts: list[str]) -> None:
    if member.kind == "folder":
        os.close(_open_folder(target, parts, make=True))
        return
    parent = _open_folder(target, parts[:-1], make=True)
    try:
        if member.kind == "file":
            _write_member(reader, member, parts[-1], parent)
        elif member.kind == "link" and _stays_inside(parts, member.target):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=parent)
            os.symlink(member.target, parts[-1], dir_fd=parent)
        elif member.kind == "hard link":
            _copy_linked(member, target, parts[-1], parent)
    finally:
        os.close(parent)


def _write_member(reader: MemberReader, member: Member, name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    try:
        for offset, piece in reader.content(member):
            _write_around_holes(file, offset, piece)
        os.ftruncate(file, member.size)
        os.fchmod(file, member.mode & 0o777)  # never setuid on the host
    finally:
        os.close(file)


def _write_around_holes(file: int, offset: int, data: bytes) -> None:
    """Zeros are not written: a file that took no room in the sandbox takes none here."""
    view = memoryview(data)
    while view:
        size = min(len(view), _HOLE_BYTES - offset % _HOLE_BYTES)
        written = size if view[:size] == _ZEROS[:size] else os.pwrite(file, view[:size], offset)
        view, offset = view[written:], offset + written


def _stays_inside(parts: list[str], goal: str) -> bool:
    """A link may climb first, from a real folder, at most to the top; climbing later could pass through other links."""
    words = [word for word in goal.split("/") if word not in ("", ".")]
    climbs = 0
    while climbs < len(words) and words[climbs] == "..":
        climbs += 1
    return not goal.startswith("/") and climbs <= len(parts) - 1 and ".." not in words[climbs:]


def _copy_linked(member: Member, target: Path, name: str, parent: int) -> None:
    """A hard link to an earlier member, made only if that is a regular file below the target, reached without links."""
    parts = [part for part in member.target.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return
    folder = _open_folder(target, parts[:-1])
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        os.link(parts[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(folder)
