"""THE CONTRACT. Read this first.

A `Backend` makes sandboxes; an `AsyncSandbox` runs programs and holds files. Everything else in Corral stands on these.
The rules that hold for every backend are numbered here; `corral.testing` has a check for each. What not every backend
can do is in `corral.base.powers`.

1.  A command's failure is a result; the sandbox's failure is an error. Neither is dressed as the other.
2.  A timeout ends the whole process tree at once, and the result carries the partial output. So does cancellation.
    Exit codes are POSIX: 124 timeout, 126 not executable, 127 not found, 128+n signal. A timeout is a result, and so is
    output beyond the limit (`truncated`, with byte counts). `check=True` turns a failure into `ExitError` or
    `ExecTimeoutError` with the result attached.
3.  The result arrives when the direct child ends, not when the last pipe closes.
4.  Memory is bounded on our side whatever the program prints, reads or writes; what was cut is said, with byte counts.
5.  No payload travels in argv. A 5 MB snippet and an 8 GB file both work.
6.  Float timeouts, per-call `env`, `cwd` and `stdin` are honoured. The spec's workdir exists and is the cwd.
7.  A sandbox that is gone raises `SandboxGoneError`; it is never replaced in silence.
8.  Create is cancel-safe and idempotent by client token: nothing is leaked, nothing is made twice.
9.  Usable from several event loops and threads, inside a running loop, and after `os.fork`.
10. Every sandbox has an owner and a deadline. What the owner forgets, the sweeper removes, also after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from corral.paths import HostPath
from corral.results import (
    Capabilities,
    CodeResult,
    DownloadResult,
    EditResult,
    ExecResult,
    FileInfo,
    GlobResult,
    GrepResult,
    OutputChunk,
    ReplaceResult,
    SandboxInfo,
    SandboxUsage,
    WatchEvent,
)
from corral.spec import Spec

PathLike = str | PurePosixPath
"""A path inside; relative ones are under the sandbox's workdir."""

Command = str | Sequence[str]
"""A list is an argv. A text is for `/bin/sh`."""

OnOutput = Callable[[OutputChunk], Awaitable[None] | None]
Stdin = bytes | str | AsyncIterable[bytes] | None


class Process(Protocol):
    """A program that runs in the background. It outlives the call that started it, never the sandbox."""

    @property
    def pid(self) -> int:
        """Its number inside."""

    def output(self) -> AsyncIterator[OutputChunk]:
        """Output as it comes, until the program ends. What nobody reads is kept up to the limit, then dropped.

        Raises:
            SandboxGoneError: the sandbox ended meanwhile.
        """

    async def write(self, data: bytes | str) -> None:
        """Feed its standard input (or its terminal).

        Raises:
            ExecError: it has no input, or has closed it.
        """

    async def close_stdin(self) -> None:
        """End of input. On a terminal: the end-of-file character."""

    async def signal(self, number: int) -> None:
        """Signal the program's process group. A program that has ended is left alone."""

    async def resize(self, *, rows: int, columns: int) -> None:
        """Set the terminal's size.

        Raises:
            ExecError: it has no terminal.
        """

    async def wait(self, *, timeout: float | None = None) -> ExecResult:
        """Wait for the end; may be called again and by several. A timeout here does not end the program.

        Raises:
            TimeoutError: it still runs after `timeout`.
            SandboxGoneError: the sandbox ended meanwhile.
        """

    async def kill(self) -> ExecResult:
        """End it with all that it started."""

    async def aclose(self) -> None:
        """End it if it still runs, and let go. Idempotent."""


class AsyncFiles(Protocol):
    """The files of a sandbox. Every method raises `SandboxGoneError`, `SandboxClosedError` and, beyond what is named,
    `SandboxPermissionError` where the user inside may not, `SandboxNoSpaceError` where the disk is full, and
    `SandboxFileError` for what no class of its own exists.

    A `FollowedPath` is one that rules were asked about: no link is followed on its way, and `SandboxLinkError` says
    that one has been put there since. `move`, `remove`, `mkdir`, `symlink`, `chmod`, `replace`, `watch`, `pack` and
    `unpack` take it as any other path."""

    async def read(self, path: PathLike, *, max_bytes: int = ...) -> bytes:
        """The whole content.

        Raises:
            SandboxFileNotFoundError, SandboxIsFolderError
            SandboxFileKindError: a FIFO, device, socket, or a file of /proc.
            SandboxLinkError: a part of a `FollowedPath` has become a link.
            SandboxFileTooLargeError: more than `max_bytes`, also if it grows while being read.
        """

    async def read_text(
        self, path: PathLike, *, encoding: str = "utf-8", errors: str = "strict", max_bytes: int = ...
    ) -> str:
        """The content as text. Raises: as `read`, and UnicodeDecodeError."""

    def read_stream(self, path: PathLike, *, chunk_bytes: int = ...) -> AsyncIterator[bytes]:
        """The content piece by piece; it ends at the size the file had when opened. Raises: as `read`, but no limit."""

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
        """Write atomically: readers see the old or the new content. Keeps the mode of a file it replaces.

        Gives the number of bytes.

        Raises:
            SandboxIsFolderError, SandboxFileKindError: something else than a regular file is there.
            SandboxFileExistsError: `exclusive` and it exists.
            SandboxFileNotFoundError: `parents=False` and the folder is missing.
            SandboxNotFolderError: a file is in the place of one of its folders.
            SandboxLinkError: a part of a `FollowedPath` has become a link.
        """

    async def edit(
        self,
        path: PathLike,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        expected_sha256: str | None = None,
    ) -> EditResult:
        """Replace text inside, byte for byte around it, by compare-and-swap.

        Raises:
            SandboxFileNotFoundError
            EditError: `old` is empty, not there, or there more than once without `replace_all`.
            EditConflictError: the content is not `expected_sha256`, or changes all the time.
            SandboxLinkError: a part of a `FollowedPath` has become a link.
        """

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """About one file. Raises: SandboxFileNotFoundError, SandboxLinkError."""

    async def exists(self, path: PathLike) -> bool:
        """Whether something is there; a link that leads nowhere is not."""

    async def list(self, path: PathLike = ".") -> Sequence[FileInfo]:
        """A folder's entries, sorted by name.

        Raises:
            SandboxFileNotFoundError, SandboxNotFolderError
            SandboxLinkError: a part of a `FollowedPath` has become a link.
        """

    async def glob(self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = ...) -> GlobResult:
        """Paths that match; `**` crosses folders. Raises: SandboxFileNotFoundError and SandboxLinkError, for `path`."""

    async def grep(
        self,
        pattern: str,
        *,
        path: PathLike = ".",
        include: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        hidden: bool = False,
        limit: int = ...,
        without: Collection[str] = (),
    ) -> GrepResult:
        """Lines that match a regular expression (or a fixed text), in text files; `limit` of them at most.

        Files `without`, by their absolute paths as `glob` gives them, are not looked into, and count for nothing.

        Raises:
            SandboxFileError: not a regular expression.
            SandboxFileNotFoundError, SandboxLinkError: for `path`.
        """

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
        """Replace in all text files below a path, each atomically.

        Raises:
            SandboxFileError: not a regular expression.
            SandboxFileNotFoundError: for `path`.
        """

    async def move(self, source: PathLike, target: PathLike, *, overwrite: bool = True) -> None:
        """Rename. Raises: SandboxFileNotFoundError, SandboxFileExistsError."""

    async def remove(self, path: PathLike, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete. Raises: SandboxFileNotFoundError; SandboxFileExistsError for a folder that is not empty."""

    async def mkdir(self, path: PathLike, *, parents: bool = True, mode: int | None = None) -> None:
        """Make a folder; with `parents`, one that is there already is fine.

        Raises:
            SandboxFileExistsError, SandboxFileNotFoundError
        """

    async def symlink(self, path: PathLike, target: str) -> None:
        """Make a link. Raises: SandboxFileExistsError."""

    async def chmod(self, path: PathLike, mode: int) -> None:
        """Set permission bits. Raises: SandboxFileNotFoundError."""

    def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[WatchEvent]:
        """Changes below a folder, from now on, until the iterator is closed.

        Raises:
            SandboxFileNotFoundError, SandboxNotFolderError
            CapabilityError: this backend can't watch.
        """

    def pack(self, path: PathLike) -> AsyncIterator[bytes]:
        """A tree as a tar stream: modes, links and empty folders kept, names relative.

        Raises:
            SandboxFileNotFoundError
        """

    async def unpack(self, path: PathLike, archive: AsyncIterable[bytes]) -> int:
        """Lay a tar stream (plain or compressed) down below a folder; the number of members.

        Raises:
            SandboxFileError: a broken archive, or a member that leads out of the folder.
        """

    async def upload(self, source: HostPath | str, target: PathLike) -> None:
        """Copy a file or folder of the host into the sandbox. Raises: FileNotFoundError for `source`."""

    async def download(
        self,
        source: PathLike,
        target: HostPath | str,
        *,
        max_bytes: int | None = None,
        git_settings: bool = False,
        git_settings_to: HostPath | str | None = None,
    ) -> DownloadResult:
        """Copy a file or folder of the sandbox to the host. Links that lead out of the folder are left out.

        Of a folder, so is whatever makes git run programs (`.git/config`, hooks, and the like in any folder that is a
        repository, and files that the host's git settings name, such as `core.hooksPath=.husky`): the host keeps its
        own, and the result names them. `git_settings=True` copies them, too; `git_settings_to` puts them into another
        folder. Commits, branches and other files come in any case.

        Raises:
            SandboxFileNotFoundError
            SandboxFileTooLargeError: more than `max_bytes` in all.
            FileExistsError: `target` is something else than a folder to put it in, or a file to replace.
        """


class AsyncSandbox(Protocol):
    """The living thing.

    Every method raises `SandboxGoneError` once it has ended and `SandboxClosedError` after `aclose`.
    """

    @property
    def id(self) -> str:
        """Its name on every list."""

    @property
    def spec(self) -> Spec:
        """The wish it was made from."""

    @property
    def files(self) -> AsyncFiles:
        """Its files."""

    async def exec(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        user: str | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        check: bool = False,
        read_only: Sequence[PathLike] = (),
        hidden: Sequence[PathLike] = (),
        output_limit_bytes: int | None = None,
    ) -> ExecResult:
        """Run a program to its end. `read_only` and `hidden` restrict what this one call sees.

        Raises:
            InvalidCommandError: a command, env, stdin or timeout that can't be.
            WorkdirError: `cwd` is missing or no folder.
            CapabilityError: a user or view this backend can't give.
            ExitError, ExecTimeoutError: with `check`.
        """

    async def run_code(
        self,
        code: str | bytes,
        language: str = "python",
        *,
        args: Sequence[str] = (),
        file: PathLike | None = None,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        check: bool = False,
        charts: bool = False,
        output_limit_bytes: int | None = None,
    ) -> CodeResult:
        """Run a snippet in a fresh process.

        With `charts`, the figures that Python code has shown by matplotlib are in the result: `result.png`.
        It goes without `file`.

        `file` is the path of a file inside that holds this very code: it is run from its place, so that its own name
        and folder, its imports and its tracebacks are those of the file. The code is then only looked at to choose the
        runtime.

        Raises:
            UnknownLanguageError: no such language.
            BackendUnavailableError: its runtime is missing inside; the hint says what to install.
            InvalidCommandError, WorkdirError, ExitError, ExecTimeoutError: as `exec`.
        """

    async def start(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = True,
        user: str | None = None,
        timeout: float | None = None,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        read_only: Sequence[PathLike] = (),
        hidden: Sequence[PathLike] = (),
        output_limit_bytes: int | None = None,
    ) -> Process:
        """Start a program in the background. Raises: as `exec`."""

    async def usage(self) -> SandboxUsage:
        """What it holds and has used."""

    async def info(self) -> SandboxInfo:
        """What a list says of it."""

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        """Let it live on without this process; gives the id for `connect`. Raises: CapabilityError."""

    async def aclose(self) -> None:
        """End it, if it is owned; let go of it, if it is detached. Idempotent, and safe to cancel."""

    async def kill(self) -> None:
        """End it, owned or detached. Idempotent."""


class Backend(Protocol):
    """The maker. One that isolates nothing has an attribute `isolated = False`, and no server takes it."""

    @property
    def name(self) -> str:
        """The name in the registry."""

    async def create(self, spec: Spec) -> AsyncSandbox:
        """Make a sandbox.

        Raises:
            SpecError: a wish that can't be met anywhere.
            CapabilityError: a wish that this backend can't meet.
            BackendUnavailableError: this machine can't; the hint says how it could.
        """

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        """A handle to a detached sandbox, by id or name. Raises: SandboxGoneError, CapabilityError."""

    async def list(self) -> Sequence[SandboxInfo]:
        """The detached sandboxes: those that live, and those that are stopped."""

    async def delete(self, sandbox_id: str) -> None:
        """End a detached sandbox, or remove a stopped one, by id or name. Raises: SandboxGoneError."""

    async def capabilities(self) -> Capabilities:
        """What holds here."""

    async def aclose(self) -> None:
        """End everything owned. Idempotent."""
