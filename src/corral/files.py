"""FilesBase: what can be derived for files, whichever backend holds them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Sequence
from typing import NoReturn

from corral import transfer
from corral.errors import (
    EditConflictError,
    EditError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
)
from corral.paths import HostPath, SandboxPath, inside
from corral.protocol import PathLike
from corral.results import DownloadResult, EditResult, FileInfo, GlobResult, GrepResult, ReplaceResult, WatchEvent

DEFAULT_READ_LIMIT_BYTES = 256 * 1024 * 1024
DEFAULT_MATCH_LIMIT = 10_000
CHUNK_BYTES = 256 * 1024


class FilesBase(ABC):
    """See `corral.protocol.AsyncFiles` for the promises. A backend implements what is abstract here."""

    def __init__(self, *, workdir: str) -> None:
        self._workdir = workdir

    def at(self, path: PathLike) -> SandboxPath:
        """An absolute path inside."""
        return inside(path, workdir=self._workdir)

    # The primitives.

    @abstractmethod
    def read_stream(self, path: PathLike, *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
        """See `AsyncFiles`."""

    @abstractmethod
    async def write(
        self,
        path: PathLike,
        content: bytes | str | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        exclusive: bool = False,
        append: bool = False,
    ) -> int:
        """See `AsyncFiles`."""

    @abstractmethod
    async def _edit(
        self, path: SandboxPath, old: bytes, new: bytes, *, replace_all: bool, expected_sha256: str | None
    ) -> EditResult:
        """`edit` with checked arguments."""

    @abstractmethod
    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """See `AsyncFiles`."""

    @abstractmethod
    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        """See `AsyncFiles`."""

    @abstractmethod
    async def glob(
        self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = DEFAULT_MATCH_LIMIT
    ) -> GlobResult:
        """See `AsyncFiles`."""

    @abstractmethod
    async def grep(
        self,
        pattern: str,
        *,
        path: PathLike = ".",
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        hidden: bool = False,
        limit: int = DEFAULT_MATCH_LIMIT,
        without: Collection[str] = (),
    ) -> GrepResult:
        """See `AsyncFiles`."""

    @abstractmethod
    async def replace(
        self,
        pattern: str,
        new: str | bytes,
        *,
        path: PathLike = ".",
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = True,
        hidden: bool = False,
    ) -> ReplaceResult:
        """See `AsyncFiles`."""

    @abstractmethod
    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        """See `AsyncFiles`."""

    @abstractmethod
    async def remove(self, path: PathLike, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """See `AsyncFiles`."""

    @abstractmethod
    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        """See `AsyncFiles`."""

    @abstractmethod
    async def symlink(self, path: PathLike, target: str) -> None:
        """See `AsyncFiles`."""

    @abstractmethod
    async def chmod(self, path: PathLike, mode: int) -> None:
        """See `AsyncFiles`."""

    @abstractmethod
    def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        """See `AsyncFiles`."""

    @abstractmethod
    def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        """See `AsyncFiles`."""

    @abstractmethod
    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        """See `AsyncFiles`."""

    # What is derived.

    async def read(self, path: PathLike, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        """See `AsyncFiles`."""
        content = bytearray()
        stream = self.read_stream(path)
        try:
            async for chunk in stream:
                content += chunk
                if len(content) > max_bytes:
                    self._refuse_size(self.at(path), max_bytes)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()  # what runs inside for it is ended now, not when it is collected
        return bytes(content)

    async def read_text(
        self,
        path: PathLike,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int = DEFAULT_READ_LIMIT_BYTES,
    ) -> str:
        """See `AsyncFiles`."""
        return (await self.read(path, max_bytes=max_bytes)).decode(encoding, errors)

    async def edit(
        self,
        path: PathLike,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        expected_sha256: str | None = None,
    ) -> EditResult:
        """See `AsyncFiles`."""
        target = self.at(path)
        before, after = encode(old), encode(new)
        if not before:
            raise EditError("the text to replace is empty", path=target, op="edit", hint="say what shall be replaced")
        return await self._edit(target, before, after, replace_all=replace_all, expected_sha256=expected_sha256)

    async def exists(self, path: PathLike) -> bool:
        """See `AsyncFiles`."""
        try:
            await self.stat(path)
        except (SandboxFileNotFoundError, NotADirectoryError):
            return False
        return True

    async def upload(self, source: HostPath | str, target: PathLike) -> None:
        """See `AsyncFiles`."""
        origin = HostPath(source)
        if not await asyncio.to_thread(origin.exists):
            raise FileNotFoundError(f"nothing to upload: {str(source)!r} does not exist")
        if await asyncio.to_thread(origin.is_dir):
            # Closed by us, not when it is collected: a cancelled upload must not leave its pipe to chance.
            async with contextlib.aclosing(transfer.pack_host_tree(origin)) as archive:
                await self.unpack(target, archive)
            return
        if not await asyncio.to_thread(origin.is_file):
            raise SandboxFileError(f"{origin.name!r} is neither a file nor a folder", op="upload")
        mode = (await asyncio.to_thread(os.stat, origin)).st_mode & 0o777
        if str(target).endswith("/") or await self._is_folder(target):
            target = f"{str(target).rstrip('/')}/{origin.name}"
        async with contextlib.aclosing(transfer.read_host_file(origin)) as content:
            await self.write(target, content, mode=mode)

    async def download(
        self,
        source: PathLike,
        target: HostPath | str,
        *,
        max_bytes: int | None = None,
        git_settings: bool = False,
        git_settings_to: HostPath | str | None = None,
    ) -> DownloadResult:
        """See `AsyncFiles`."""
        goal = HostPath(target)
        info = await self.stat(source)
        if info.is_folder:
            aside = HostPath(git_settings_to) if git_settings_to is not None else None
            left_out = await transfer.unpack_to_host(
                self.pack(source), goal, max_bytes=max_bytes, git_settings=git_settings, aside=aside
            )
            return DownloadResult(left_out)
        if await asyncio.to_thread(goal.is_dir):
            goal = goal / info.name
        await transfer.write_host_file(self.read_stream(source), goal, mode=info.mode & 0o777, max_bytes=max_bytes)
        return DownloadResult()

    def _refuse_size(self, path: str, max_bytes: int) -> NoReturn:
        raise SandboxFileTooLargeError(
            f"{path} has more than {max_bytes} bytes",
            path=path,
            op="read",
            hint="raise max_bytes, or take it piece by piece with read_stream or download",
        )

    async def _is_folder(self, path: PathLike) -> bool:
        try:
            return (await self.stat(path)).is_folder
        except SandboxFileError:
            return False


def encode(text: str | bytes) -> bytes:
    """Bytes as they are, text as UTF-8 (surrogates stand for bytes that are not)."""
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def check_content(content: bytes | str | AsyncIterable[bytes]) -> bytes | AsyncIterable[bytes]:
    """What a caller wants written: bytes, or a stream of them. Raises: TypeError."""
    if isinstance(content, AsyncIterable):
        return content
    if isinstance(content, str):
        return encode(content)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"content must be bytes, text or an async iterable of bytes, not {type(content).__name__}")


async def stream_descriptor(descriptor: int, *, chunk_bytes: int) -> AsyncGenerator[bytes, None]:
    """The content of an open regular file, which is closed in the end.

    Up to the size it had when opened: a file that grows for ever must end here all the same.
    """
    try:
        remaining = os.fstat(descriptor).st_size
        while remaining > 0:
            # Not in a thread: the read is short, and a cancelled thread would go on with a closed descriptor.
            chunk = os.read(descriptor, min(chunk_bytes, remaining))
            if not chunk:
                return
            remaining -= len(chunk)
            yield chunk
            await asyncio.sleep(0)
    finally:
        os.close(descriptor)


def replace_text(
    path: str,
    content: bytes,
    old: bytes,
    new: bytes,
    *,
    replace_all: bool,
    expected_sha256: str | None,
    sandbox_id: str | None,
) -> tuple[bytes, EditResult]:
    """An edit of what is in a file: the changed content, and what is told of it.

    Raises:
        EditError: `old` is not there, or there more than once without `replace_all`.
        EditConflictError: the content is not `expected_sha256`.
    """
    if expected_sha256 is not None and hashlib.sha256(content).hexdigest() != expected_sha256:
        raise changed_meanwhile(path, sandbox_id=sandbox_id)
    count = content.count(old)
    if count != 1 and not (count and replace_all):
        text = f"the text to replace occurs {count} times" if count else "the text to replace is not in the file"
        hint = "give more of the text around it, or replace_all=True" if count else "read the file again"
        raise EditError(f"{path}: {text}", path=path, sandbox_id=sandbox_id, op="edit", hint=hint, count=count)
    changed = content.replace(old, new)
    return changed, EditResult(path, count, hashlib.sha256(changed).hexdigest(), len(changed))


def changed_meanwhile(path: str, *, sandbox_id: str | None) -> EditConflictError:
    """What an edit is told that comes too late."""
    text = f"{path}: the file has changed since it was read"
    return EditConflictError(text, path=path, sandbox_id=sandbox_id, op="edit", hint="read it again and retry")
