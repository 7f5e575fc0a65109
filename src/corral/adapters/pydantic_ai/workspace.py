"""CorralWorkspace: a sandbox as the workspace of a Pydantic AI run, commands and files alike.

The contract is `pydantic_ai.workspaces`: nothing happens before the first operation; that makes one environment,
even for concurrent callers, or finds the one that the ref names. The end of a run does not end it; `destroy` does, or
its lifetime. A sandbox that is gone raises `WorkspaceUnavailableError` and is never replaced.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, Unpack

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from corral.adapters.pydantic_ai.opening import LIFETIME_SECONDS, LazySandbox, choose_spec, detach, find_sandbox, let_go
from corral.base.command import bash_text
from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    SandboxClosedError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxGoneError,
    SandboxNotFolderError,
    WorkdirError,
)
from corral.protocol import Backend
from corral.results import FileInfo, OutputChunk
from corral.spec import Spec, SpecOptions
from corral.tools.operations import follow_link
from corral.tools.permission import real_path

PROVIDER = "corral"
OUTPUT_LIMIT_BYTES = 10 * 1024 * 1024
"""How much a command may print on both streams together before it is ended."""
PREVIEW_BYTES = 64 * 1024


class _TooMuchOutputError(Exception):
    """Raised out of the output callback, which ends the program."""


class CorralWorkspace:
    """A `WorkspaceBackend` with commands, files and realpath, on any of Corral's backends.

    Give a `ref` to go on in an environment that is there, or the keywords of `corral.Sandbox` for a new one.
    `lifetime_seconds` is the lifetime of an environment that is not destroyed (None: no limit).
    """

    def __init__(
        self,
        ref: WorkspaceRef | None = None,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        lifetime_seconds: float | None = LIFETIME_SECONDS,
        **spec_options: Unpack[SpecOptions],
    ) -> None:
        self._origin = _Origin(backend, choose_spec(spec, spec_options), lifetime_seconds, ref)
        self._lazy = LazySandbox(self._origin.open)
        self._working_dir: str | None = None
        self._finalizer = weakref.finalize(self, let_go, self._lazy)
        self._finalizer.atexit = False  # a handle ends with the process

    @property
    def ref(self) -> WorkspaceRef | None:
        """Which environment this is: None before there is one."""
        return self._origin.ref

    async def sandbox(self) -> AsyncSandbox:
        """The sandbox itself, for everything that a workspace has no word for.

        Raises: WorkspaceUnavailableError, and whatever making a sandbox raises.
        """
        with _unavailable():
            return await self._open()

    async def working_dir(self) -> str:
        """Where commands run. Raises: WorkspaceUnavailableError."""
        with _unavailable():
            box = await self._open()
            path = await self._find_working_dir()
            if not (await box.files.stat(path)).is_folder:
                raise WorkspaceUnavailableError(f"the working directory {path} is not a folder")
            return path

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its end, in the working directory. Raises: WorkspaceTimeoutError, WorkspaceOutputLimitError,
        WorkspaceUnavailableError."""
        argv = _check_command(command, shell=shell)
        _check_timeout(timeout)
        beginning = _Beginning()
        with _unavailable():
            box = await self._open()
            workdir = await self._find_working_dir()
            try:
                result = await box.exec(
                    argv,
                    cwd=workdir,
                    env=env,
                    timeout=timeout,
                    on_output=beginning.take,
                    output_limit_bytes=OUTPUT_LIMIT_BYTES,
                )
            except WorkdirError as error:
                raise WorkspaceUnavailableError(f"the working directory {workdir} is gone") from error
            except _TooMuchOutputError:
                raise WorkspaceOutputLimitError(
                    f"the command printed more than {OUTPUT_LIMIT_BYTES} bytes and was killed; "
                    "redirect its output to a file and read part of that",
                    limit=OUTPUT_LIMIT_BYTES,
                    stdout=beginning.text("stdout"),
                    stderr=beginning.text("stderr"),
                ) from None
        if result.timed_out:
            raise WorkspaceTimeoutError(
                f"the command timed out after {result.usage.wall_seconds:.1f} s and was killed",
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def read_bytes(self, path: str) -> bytes:
        """A whole file. Raises: FileNotFoundError, IsADirectoryError and the like; WorkspaceUnavailableError."""
        with _unavailable():
            return await (await self._open()).files.read(_absolute(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file, with the folders above it. Readers see the old content or the new, never a part."""
        with _unavailable():
            files = (await self._open()).files
            try:
                await files.write(_absolute(path), data)
            except SandboxFileExistsError as error:
                # mkdir says so of a file that stands where a folder of the path should be.
                raise SandboxNotFolderError(f"a part of {path} is not a folder", path=path, op="write") from error

    async def stat(self, path: str) -> FileEntry:
        """Size and kind of a file or folder; links are followed. Raises: FileNotFoundError."""
        with _unavailable():
            info = await (await self._open()).files.stat(_absolute(path))
        return _entry(path, info)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """What is in a folder. Raises: FileNotFoundError, NotADirectoryError."""
        with _unavailable():
            files = (await self._open()).files
            return [
                _entry(info.path, await follow_link(files, info)) for info in await files.list(_absolute(path))
            ]  # fmt: skip

    async def make_dir(self, path: str) -> None:
        """Make a folder, with those above it. Raises: FileExistsError for a file of that name, NotADirectoryError."""
        with _unavailable():
            files = (await self._open()).files
            try:
                await files.mkdir(_absolute(path))
            except SandboxNotFolderError:
                with contextlib.suppress(SandboxFileError):
                    if not (await files.stat(path)).is_folder:
                        raise SandboxFileExistsError(f"{path} is a file", path=path, op="mkdir") from None
                raise
            except SandboxFileExistsError as error:
                if await files.exists(path):
                    raise
                # The same word from deeper down: a file where a folder of the path should be.
                raise SandboxNotFolderError(f"a part of {path} is not a folder", path=path, op="mkdir") from error

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. Raises: FileNotFoundError, and ValueError for the working
        directory."""
        with _unavailable():
            files = (await self._open()).files
            target = _absolute(path)
            folder = await real_path(files, posixpath.dirname(target), workdir="/")
            real = posixpath.join(folder, posixpath.basename(target))
            workdir = await self._find_working_dir()
            if workdir == real or workdir.startswith(real.rstrip("/") + "/"):
                raise ValueError("cannot remove the working directory or a folder above it")
            await files.remove(real, recursive=True)

    async def exists(self, path: str) -> bool:
        """Whether a path leads to something."""
        with _unavailable():
            return await (await self._open()).files.exists(_absolute(path))

    async def realpath(self, path: str) -> str:
        """The path with every link followed."""
        with _unavailable():
            return await real_path((await self._open()).files, _absolute(path), workdir="/")

    async def destroy(self) -> None:
        """End the environment for good; idempotent. Whatever is asked of it then raises `WorkspaceUnavailableError`."""
        if self.ref is None and await self._lazy.settle() is None:
            return
        with contextlib.suppress(WorkspaceUnavailableError), _unavailable():
            await (await self._open()).kill()

    async def aclose(self) -> None:
        """Release the handle. The environment keeps running, and `ref` finds it again. Idempotent."""
        box = await self._lazy.settle()
        self._lazy.forget()
        if box is not None:
            await box.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # Making and finding it.

    async def _open(self) -> AsyncSandbox:
        return await self._lazy.get()

    async def _find_working_dir(self) -> str:
        box = await self._open()
        if self._working_dir is None:
            self._working_dir = await real_path(box.files, box.spec.workdir, workdir="/")
        return self._working_dir


@dataclass(slots=True)
class _Origin:
    """How to find or create the environment. Not part of the workspace, so as not to keep a forgotten one alive."""

    backend: str | Backend
    spec: Spec
    lifetime_seconds: float | None
    ref: WorkspaceRef | None

    def __post_init__(self) -> None:
        if self.ref is not None and parse_ref(self.ref)[0] != self.backend_name:
            raise ValueError(f"{self.ref!r} is not a workspace of the backend {self.backend_name!r}")

    @property
    def backend_name(self) -> str:
        """The name of the maker."""
        return self.backend if isinstance(self.backend, str) else self.backend.name

    async def open(self) -> AsyncSandbox:
        """Find it, or make it."""
        maker = get_backend(self.backend)
        if self.ref is not None:
            return await find_sandbox(maker, parse_ref(self.ref)[1])
        box = await maker.create(self.spec)
        # Until this is done it is owned by this process, and ends with it; there is nothing to refer to yet.
        await detach(box, lifetime_seconds=self.lifetime_seconds)
        self.ref = WorkspaceRef(provider=PROVIDER, id=f"{self.backend_name}:{box.id}")
        return box


class _Beginning:
    """The beginnings of a command's output, for when there is too much of it."""

    def __init__(self) -> None:
        self._total = 0
        self._beginnings = {"stdout": bytearray(), "stderr": bytearray()}

    def take(self, chunk: OutputChunk) -> None:
        beginning = self._beginnings[chunk.stream]
        beginning += chunk.data[: PREVIEW_BYTES - len(beginning)]
        self._total += len(chunk.data)
        if self._total > OUTPUT_LIMIT_BYTES:
            raise _TooMuchOutputError

    def text(self, stream: str) -> str:
        return self._beginnings[stream].decode("utf-8", "replace")


def parse_ref(ref: WorkspaceRef) -> tuple[str, str]:
    """The backend's name and the sandbox's id. Raises: ValueError for a ref that is not ours."""
    name, colon, sandbox_id = ref.id.partition(":")
    if ref.provider != PROVIDER or not colon or not name or not sandbox_id:
        raise ValueError(f"{ref!r} is not a Corral workspace")
    return name, sandbox_id


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Pydantic AI has one error for gone, stopped and closed."""
    try:
        yield
    except (SandboxGoneError, SandboxClosedError) as error:
        raise WorkspaceUnavailableError(str(error)) from error


def _check_command(command: WorkspaceCommand, *, shell: bool) -> list[str]:
    if isinstance(command, str):
        if not shell:
            raise TypeError("a string needs shell=True; otherwise pass a list of strings")
        return bash_text(command)
    if shell:
        raise TypeError("shell=True needs a string, not a list")
    argv = list(command)
    if not all(isinstance(word, str) for word in argv):
        raise TypeError("a command must be a list of strings")
    if not argv:
        raise ValueError("the command is empty")
    return argv


def _check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not math.isfinite(timeout) or timeout <= 0:
        raise ValueError(f"timeout={timeout!r} must be a number of seconds above 0, or None")


def _absolute(path: str) -> str:
    if not posixpath.isabs(path):
        raise ValueError(f"the path {path!r} is not absolute")
    return path


def _entry(path: str, info: FileInfo) -> FileEntry:
    name = posixpath.basename(posixpath.normpath(path)) or "/"
    return FileEntry(name=name, path=path, is_dir=info.is_folder, size=None if info.is_folder else info.size)
