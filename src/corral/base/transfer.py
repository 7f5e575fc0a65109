"""Copies files between a sandbox and the host. Archives from a sandbox are hostile: names, links, sizes are checked."""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from pathlib import Path
from typing import IO, TypeVar

from corral.base.gitsettings import Parts, Verdict, find_git_folder, find_left_out, is_safe_index, is_sample, judge
from corral.base.hostgit import NamedByGit
from corral.concurrency.closing import SyncClosing
from corral.errors import SandboxFileError, SandboxFileTooLargeError
from corral.inside.nolinks import LinkFoundError, open_file, open_folder, opened
from corral.inside.tars.reading import BrokenArchiveError, Member, MemberReader
from corral.inside.tars.writing import pack_tree
from corral.inside.writing import write_all_at

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
MAX_MEMBERS = 1_000_000
MAX_REMEMBERED_BYTES = 128 * 1024 * 1024
"""How much memory the names of folders may take, which are kept because their modes are set last."""
PART_BYTES = 64
_MAX_PADDING_BYTES = 16 * 1024 * 1024
_BLOCK_BYTES = 4096
"""Aligned blocks of zeros become holes. With larger blocks, holes between single blocks would become data."""
_ZEROS = bytes(_BLOCK_BYTES)


async def read_host_file(path: Path) -> AsyncGenerator[bytes, None]:
    """The content of a file of the host, in pieces."""
    with _open(path) as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


async def write_host_file(chunks: AsyncIterable[bytes], target: Path, *, mode: int, max_bytes: int | None) -> None:
    """Write to a temporary file, then replace the target: an interrupted transfer leaves nothing."""
    await asyncio.to_thread(_refuse_odd_target, target)
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    # Not in a thread: a cancelled call would leave its file behind.
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
        unfinished.unlink(missing_ok=True)
        raise


def _open(path: Path) -> IO[bytes]:
    # Not in a thread: a cancelled call would leave the file open.
    return path.open("rb")


def _begin_file(folder: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".corral-")
    return descriptor, Path(name)


def _refuse_odd_target(target: Path) -> None:
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{target.name!r} already exists and is not a regular file")


async def pack_host_tree(root: Path) -> AsyncGenerator[bytes, None]:
    """A folder of the host as a tar stream, which a thread writes to a pipe."""
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


async def unpack_to_host(
    archive: AsyncIterable[bytes],
    target: Path,
    *,
    max_bytes: int | None,
    git_settings: bool = False,
    aside: Path | None = None,
) -> tuple[str, ...]:
    """Unpack a hostile tar stream below `target`, and nowhere else.

    Returns the names of files that were left out because git would run them (`corral.base.gitsettings`), except those
    that exist already with the same content. With `git_settings` no file is left out; with `aside` they are written
    below that folder instead.
    """
    landing = Landing(target, git_settings=git_settings, aside=aside)
    return await feed(archive, lambda reader: _unpack(reader, landing, max_bytes))


async def feed(archive: AsyncIterable[bytes], work: Callable[[int], T]) -> T:
    """Call `work` in a thread, with a pipe from which it reads the archive, and which it closes."""
    reader, writer = os.pipe()
    working = asyncio.ensure_future(asyncio.to_thread(work, reader))
    try:
        with os.fdopen(writer, "wb") as sink:
            async for chunk in archive:
                await asyncio.to_thread(sink.write, chunk)
    except BrokenPipeError:
        await working  # raises why it has stopped
    except BaseException:
        # The caller must see the error of the source, not that the archive is truncated by it.
        await asyncio.gather(working, return_exceptions=True)
        raise
    return await working


def _unpack(reader: int, landing: Landing, max_bytes: int | None) -> tuple[str, ...]:
    target = landing.target
    with os.fdopen(reader, "rb") as source:
        if target.exists() and not target.is_dir():
            raise FileExistsError(f"{target.name!r} already exists and is not a folder")
        try:
            target.mkdir(parents=True, exist_ok=True)
            with landing:
                _unpack_from(source, landing, max_bytes)
                return landing.finish()
        except BrokenArchiveError as error:
            raise SandboxFileError(f"malformed archive: {error}", op="download") from error
        except OSError as error:
            if isinstance(error, SandboxFileError):
                raise
            raise landing.explain(error) from error


def _unpack_from(source: IO[bytes], landing: Landing, max_bytes: int | None) -> None:
    total = remembered = 0
    reader = MemberReader(source.read)
    for number, member in enumerate(reader):
        total += member.size  # with its holes, as other programs of the host see it
        if number > MAX_MEMBERS or remembered > MAX_REMEMBERED_BYTES or (max_bytes is not None and total > max_bytes):
            text = "the folder is larger than allowed"
            raise SandboxFileTooLargeError(text, op="download", hint="raise max_bytes")
        parts = split_name(member.name, op="download")
        if parts and member.kind != "other":
            landing.take(reader, member, parts)
        else:
            reader.skip(member)
        if member.kind == "folder":
            remembered += len(member.name) + PART_BYTES * len(parts)
    drain(source)


def split_name(name: str, *, op: str) -> Parts:
    """The parts of a name in an archive. Raises: SandboxFileError if it leads out of the folder."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise SandboxFileError(f"{name!r} is outside the folder", op=op)
    return parts


def drain(source: IO[bytes]) -> None:
    """Read the padding, so that its writer does not fail; more than that is ignored."""
    for _ in range(_MAX_PADDING_BYTES // _CHUNK_BYTES):
        if not source.read(_CHUNK_BYTES):
            return


class Landing(SyncClosing):
    """Unpacks a tree to a folder of the host.

    Most members are written as they come. Those that may have to be left out wait in a temporary folder until all
    members are there.
    """

    def __init__(
        self, target: Path, *, git_settings: bool = False, aside: Path | None = None, known_as: Path | None = None
    ) -> None:
        """`known_as` is the path of the target, if that is given by a descriptor."""
        self.target = target
        self._git_settings = git_settings
        self._aside = aside
        self._within = find_git_folder((known_as or target).absolute().parts)
        """If the target itself is in a `.git` folder, as in `cp box:project/.git .`: its path from there on."""
        self._named: NamedByGit | None = None
        self._waiting: Path | None = None
        self._held: dict[Parts, tuple[Verdict, str]] = {}
        """Path → why it waits, and its name in the temporary folder; "" for a folder."""
        self._modes: list[tuple[Parts, int]] = []
        self._place_of_error: Parts = ()
        """The member being written, since an OSError may have no path."""

    def close(self) -> None:
        """Remove what waited."""
        if self._waiting is not None:
            shutil.rmtree(self._waiting, ignore_errors=True)

    def take(self, reader: MemberReader, member: Member, parts: Parts) -> None:
        """Unpack the next member."""
        self._place_of_error = parts
        is_folder = member.kind == "folder"
        verdict = self.judge(parts, is_folder=is_folder, is_link="link" in member.kind)
        if is_folder:
            self._modes.append((parts, member.mode & 0o777))
            if verdict == "take":
                os.close(open_folder(self.target, parts, make=True))
            else:
                self._held[parts] = (verdict, "")
        elif verdict == "take":
            with opened(open_folder(self.target, parts[:-1], make=True)) as parent:
                self._lay_down(reader, member, parts, parts[-1], parent)
        else:
            if self._waiting is None:
                self._waiting = Path(tempfile.mkdtemp(dir=self.target, prefix=".corral-"))
            name = self._held.setdefault(parts, (verdict, str(len(self._held))))[1]
            with opened(os.open(self._waiting, os.O_RDONLY | os.O_DIRECTORY)) as waiting:
                self._lay_down(reader, member, parts, name or "folder", waiting)

    def judge(self, parts: Parts, *, is_folder: bool, is_link: bool) -> Verdict:
        """What to do with a path of the tree; `hold` is decided when all members are there."""
        if self._git_settings:
            return "take"
        if self._named is None:
            self._named = NamedByGit(self.target)
        if self._named.covers(parts, is_link=is_link):
            return "leave"
        return judge((*self._within, *parts), is_folder=is_folder)

    def _lay_down(self, reader: MemberReader, member: Member, parts: Parts, name: str, parent: int) -> None:
        if member.kind == "file":
            _write_member(reader, member, name, parent)
        elif member.kind == "link":
            _lay_link(member.target, parts, name, parent)
        elif member.kind == "hard link":
            self._link(member, parts, name, parent)

    def _link(self, member: Member, own: Parts, name: str, parent: int) -> None:
        """Create a hard link to a file below the target, whose path has no links. If that is a symlink, it is checked
        again: it may lead out of the target from here."""
        parts = tuple(part for part in member.target.split("/") if part not in ("", "."))
        if not parts or ".." in parts or parts == own:
            return
        waits = self._held.get(parts, ("take", ""))[1]
        if waits and self._waiting is not None:
            folder, source = os.open(self._waiting, os.O_RDONLY | os.O_DIRECTORY), waits
        else:
            folder, source = open_folder(self.target, parts[:-1]), parts[-1]
        with opened(folder):
            if stat.S_ISLNK(os.lstat(source, dir_fd=folder).st_mode):
                _lay_link(os.readlink(source, dir_fd=folder), own, name, parent)
                return
            _remove_old(name, parent)
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)

    def finish(self) -> tuple[str, ...]:
        """All members are there: place or leave out those that waited; returns the names of those left out."""
        held = [path for path, (verdict, _) in self._held.items() if verdict == "hold"]
        left = find_left_out(held, self._exists)
        left |= {path for path, (verdict, name) in self._held.items() if not self._may_take(verdict, name)}
        told: list[str] = []
        for path, (_, name) in self._held.items():
            self._place_of_error = path
            if path not in left:
                self._place(self.target, path, name)
            elif name and not is_sample(path) and self._differs(path, name):
                told.append("/".join(path))
                if self._aside is not None:
                    self._place(self._aside, path, name)
        for parts, mode in reversed(self._modes):  # last: a read-only folder must be filled first
            if parts not in left:
                self._place_of_error = parts
                with opened(open_file(self.target, parts, os.O_RDONLY | os.O_DIRECTORY)) as folder:
                    os.fchmod(folder, mode)
        return tuple(told)

    def explain(self, error: OSError) -> SandboxFileError:
        """The error for the member that could not be written."""
        ways = (self._place_of_error[:number] for number in range(1, len(self._place_of_error) + 1))
        for way in ways if isinstance(error, LinkFoundError) else ():
            if self.target.joinpath(*way).is_symlink():
                path = "/".join(way)
                return SandboxFileError(
                    f"{path!r} is a folder in the sandbox and a link on the host, which is not followed",
                    op="download",
                    hint=f"remove the link {path!r} on the host, or choose another target",
                )
        what = repr("/".join(self._place_of_error)) if self._place_of_error else "the folder"
        text = f"can't write {what}: {error.strerror or error}"
        return SandboxFileError(text, op="download", hint="check what exists at that path on the host")

    def _may_take(self, verdict: Verdict, name: str) -> bool:
        if verdict != "index" or self._waiting is None:
            return verdict != "leave"
        path = self._waiting / name
        return path.is_file() and not path.is_symlink() and is_safe_index(path.read_bytes())

    def _place(self, target: Path, path: Parts, name: str) -> None:
        target.mkdir(parents=True, exist_ok=True)
        if not name:
            os.close(open_folder(target, path, make=True))
            return
        assert self._waiting is not None
        waiting = self._waiting / name
        if not waiting.is_symlink() and not waiting.exists():
            return  # a link out of the target, which was not created
        with opened(open_folder(target, path[:-1], make=True)) as parent:
            os.rename(waiting, path[-1], dst_dir_fd=parent)

    def _exists(self, path: Parts) -> bool:
        try:
            with opened(open_folder(self.target, path[:-1])) as parent:
                os.lstat(path[-1], dir_fd=parent)
        except OSError:
            return False
        return True

    def _differs(self, path: Parts, name: str) -> bool:
        """False if the host has the same file already, as when an uploaded folder is downloaded again."""
        assert self._waiting is not None
        mine, theirs = self.target.joinpath(*path), self._waiting / name
        if theirs.is_symlink() or not theirs.exists():
            return theirs.is_symlink()
        return mine.is_symlink() or not mine.is_file() or not filecmp.cmp(mine, theirs, shallow=False)


def _write_member(reader: MemberReader, member: Member, name: str, parent: int) -> None:
    _remove_old(name, parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with opened(os.open(name, flags, 0o600, dir_fd=parent)) as file:
        for offset, piece in reader.content(member):
            _write_around_holes(file, offset, piece)
        os.ftruncate(file, member.size)
        os.fchmod(file, member.mode & 0o777)  # never setuid on the host


def _lay_link(goal: str, parts: Parts, name: str, parent: int) -> None:
    """Create a symlink, unless it leads out of the target."""
    if stays_inside(parts, goal):
        _remove_old(name, parent)
        os.symlink(goal, name, dir_fd=parent)


def _remove_old(name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _write_around_holes(file: int, offset: int, data: bytes) -> None:
    """Write all but blocks of zeros: a sparse file stays sparse."""
    view, begin, position = memoryview(data), 0, 0
    while position < len(view):
        end = min(len(view), position + _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES)
        if data[position:end] == _ZEROS[: end - position]:  # bytes, since a view is compared item by item
            write_all_at(file, view[begin:position], offset + begin)
            begin = end
        position = end
    write_all_at(file, view[begin:], offset + begin)


def stays_inside(parts: Sequence[str], goal: str) -> bool:
    """True if a link's `..` come first, and lead at most to the top: later ones could pass through other links."""
    words = [word for word in goal.split("/") if word not in ("", ".")]
    climbs = 0
    while climbs < len(words) and words[climbs] == "..":
        climbs += 1
    return not goal.startswith("/") and climbs <= len(parts) - 1 and ".." not in words[climbs:]
