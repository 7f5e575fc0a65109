"""CorralWorkspace: a sandbox as the workspace of a Pydantic AI run, commands and files alike.

The contract is `pydantic_ai.workspaces`: the first operation creates one environment, even for concurrent callers, or
finds the one that the ref names. It survives the end of a run; `destroy` ends it, or its lifetime. A sandbox that is
gone raises `WorkspaceUnavailableError` and is never replaced.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from corral.adapters.pydantic_ai.opening import LIFETIME_SECONDS, LazySandbox, detach, find_sandbox
from corral.base.command import bash_text
from corral.base.needs import describe_needs
from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.closing import AsyncClosing
from corral.errors import (
    InvalidCommandError,
    SandboxClosedError,
    SandboxFileError,
    SandboxFileExistsError,
    SandboxGoneError,
    SandboxNotFolderError,
    WorkdirError,
)
from corral.protocol import Backend
from corral.results import FileInfo, OutputChunk
from corral.spec import Spec, SpecOptions, check_timeout, choose_spec
from corral.tools.operations import follow_link
from corral.tools.permission import real_path

PROVIDER = "corral"
OUTPUT_LIMIT_BYTES = 10 * 1024 * 1024
"""How much a command may print on both streams together before it is killed."""
PREVIEW_BYTES = 64 * 1024


class _TooMuchOutputError(Exception):
    """Raised by the output callback, which kills the program."""


class CorralWorkspace(AsyncClosing):
    """A `WorkspaceBackend` with commands, files and realpath, on any of Corral's backends.

    Pass a `ref` to use an existing environment, or the keywords of `corral.Sandbox` for a new one. `lifetime_seconds`
    is the lifetime of an environment that is not destroyed (None: no limit).
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
        self._lazy.close_with(self)

    @property
    def ref(self) -> WorkspaceRef | None:
        """The environment's ref; None before it is created."""
        return self._origin.ref

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncSandbox]:
        """The sandbox. Pydantic AI has one error for gone, stopped and closed."""
        try:
            yield await self._lazy.get()
        except (SandboxGoneError, SandboxClosedError) as error:
            raise WorkspaceUnavailableError(str(error)) from error

    async def sandbox(self) -> AsyncSandbox:
        """The Corral sandbox, for everything that a workspace does not have.

        Raises: WorkspaceUnavailableError, and what creating a sandbox raises.
        """
        async with self._open() as box:
            return box

    async def working_dir(self) -> str:
        """The working directory of commands. Raises: WorkspaceUnavailableError."""
        async with self._open() as box:
            path = await self._find_working_dir(box)
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
        check_timeout(timeout, what="timeout", error=InvalidCommandError)
        beginning = _Beginning()
        async with self._open() as box:
            workdir = await self._find_working_dir(box)
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
        stderr = result.stderr
        if line := describe_needs(result, box.spec.network, door="model"):
            stderr = f"{stderr}{'' if not stderr or stderr.endswith(chr(10)) else chr(10)}[{line}]\n"
        return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=stderr)

    async def read_bytes(self, path: str) -> bytes:
        """A whole file. Raises: FileNotFoundError, IsADirectoryError and the like; WorkspaceUnavailableError."""
        async with self._open() as box:
            return await box.files.read(_absolute(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file atomically, with the folders above it."""
        async with self._open() as box:
            try:
                await box.files.write(_absolute(path), data)
            except SandboxFileExistsError as error:
                # From mkdir, for a file where a folder of the path should be.
                raise SandboxNotFolderError(f"a part of {path} is not a folder", path=path, op="write") from error

    async def stat(self, path: str) -> FileEntry:
        """Size and kind of a file or folder; links are followed. Raises: FileNotFoundError."""
        async with self._open() as box:
            return _entry(path, await box.files.stat(_absolute(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """The entries of a folder. Raises: FileNotFoundError, NotADirectoryError."""
        async with self._open() as box:
            found = await box.files.list(_absolute(path))
            return [_entry(info.path, await follow_link(box.files, info)) for info in found]

    async def make_dir(self, path: str) -> None:
        """Create a folder, with those above it. Raises: FileExistsError for a file of that name, NotADirectoryError."""
        async with self._open() as box:
            try:
                await box.files.mkdir(_absolute(path))
            except SandboxNotFolderError:
                with contextlib.suppress(SandboxFileError):
                    if not (await box.files.stat(path)).is_folder:
                        raise SandboxFileExistsError(f"{path} is a file", path=path, op="mkdir") from None
                raise
            except SandboxFileExistsError as error:
                if await box.files.exists(path):
                    raise
                # The same error, for a file where a folder of the path should be.
                raise SandboxNotFolderError(f"a part of {path} is not a folder", path=path, op="mkdir") from error

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. Raises: FileNotFoundError; ValueError for the working
        directory."""
        async with self._open() as box:
            target = _absolute(path)
            folder = await real_path(box.files, posixpath.dirname(target), workdir="/")
            real = posixpath.join(folder, posixpath.basename(target))
            workdir = await self._find_working_dir(box)
            if workdir == real or workdir.startswith(real.rstrip("/") + "/"):
                raise ValueError("cannot remove the working directory or a folder above it")
            await box.files.remove(real, recursive=True)

    async def exists(self, path: str) -> bool:
        """True if the path exists."""
        async with self._open() as box:
            return await box.files.exists(_absolute(path))

    async def realpath(self, path: str) -> str:
        """The path with every link followed."""
        async with self._open() as box:
            return await real_path(box.files, _absolute(path), workdir="/")

    async def destroy(self) -> None:
        """Delete the environment; idempotent. Later operations raise `WorkspaceUnavailableError`."""
        if self.ref is None and await self._lazy.settle() is None:
            return
        with contextlib.suppress(WorkspaceUnavailableError):
            async with self._open() as box:
                await box.kill()

    async def aclose(self) -> None:
        """Release the handle. The environment keeps running, and `ref` finds it again. Idempotent."""
        box = await self._lazy.settle()
        self._lazy.forget()
        if box is not None:
            await box.aclose()

    async def _find_working_dir(self, box: AsyncSandbox) -> str:
        if self._working_dir is None:
            self._working_dir = await real_path(box.files, box.spec.workdir, workdir="/")
        return self._working_dir


@dataclass(slots=True)
class _Origin:
    """Finds or creates the environment. Apart from the workspace, so that it does not keep a forgotten one alive."""

    backend: str | Backend
    spec: Spec
    lifetime_seconds: float | None
    ref: WorkspaceRef | None

    def __post_init__(self) -> None:
        if self.ref is not None and parse_ref(self.ref)[0] != self.backend_name:
            raise ValueError(f"{self.ref!r} is not a workspace of the backend {self.backend_name!r}")

    @property
    def backend_name(self) -> str:
        """The name of the backend."""
        return self.backend if isinstance(self.backend, str) else self.backend.name

    async def open(self) -> AsyncSandbox:
        """Find or create it."""
        maker = get_backend(self.backend)
        if self.ref is not None:
            return await find_sandbox(maker, parse_ref(self.ref)[1])
        box = await maker.create(self.spec)
        # Until this is done, this process owns it, so there is no ref yet.
        await detach(box, lifetime_seconds=self.lifetime_seconds)
        self.ref = WorkspaceRef(provider=PROVIDER, id=f"{self.backend_name}:{box.id}")
        return box


class _Beginning:
    """The start of a command's output, for the error if there is too much of it."""

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


def _absolute(path: str) -> str:
    if not posixpath.isabs(path):
        raise ValueError(f"the path {path!r} is not absolute")
    return path


def _entry(path: str, info: FileInfo) -> FileEntry:
    name = posixpath.basename(posixpath.normpath(path)) or "/"
    return FileEntry(name=name, path=path, is_dir=info.is_folder, size=None if info.is_folder else info.size)
