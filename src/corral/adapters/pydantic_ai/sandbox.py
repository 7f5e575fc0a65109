"""AsyncCorralSandbox: a sandbox in the terms of Pydantic AI's sandbox protocol, on any backend.

Failures of commands and file operations are returned, as the protocol requires: as `ExecuteResponse`, in `.error`, or
as text that begins with "Error: ". A sandbox that is gone is raised, because a model must not take that for a program's
output. Each returned error is also kept in `last_error` and logged with the sandbox's id.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import posixpath
import time
from collections.abc import Callable, Coroutine, Sequence
from types import EllipsisType
from typing import Any, Self, TypeVar, Unpack, cast

from corral.adapters.pydantic_ai.opening import LazySandbox, SandboxRequest
from corral.adapters.pydantic_ai.results import (
    MAX_OUTPUT_CHARS,
    BackgroundOutput,
    EditResult,
    ExecuteResponse,
    FileInfo,
    Found,
    GrepMatch,
    WriteResult,
    as_text,
    describe_edit_error,
    describe_file,
    describe_window_error,
    narrow_result,
)
from corral.base.command import bash_text
from corral.base.files import encode
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.concurrency.closing import AsyncClosing
from corral.errors import (
    BackendError,
    CorralError,
    EditError,
    EngineFaultError,
    NotRecordedError,
    PolicyError,
    SandboxClosedError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxGoneError,
)
from corral.protocol import Backend
from corral.spec import HOME, Spec, SpecOptions, choose_spec
from corral.tools.background import (
    READ_BYTES,
    BackgroundHandle,
    BackgroundProcessInfo,
    kill_shell,
    list_shells,
    read_shell,
    start_shell,
    write_shell,
)
from corral.tools.gate import Gate
from corral.tools.hashline import LineChange
from corral.tools.operations import FileOperations, follow_link
from corral.tools.permission import normal_path, real_path
from corral.tools.reading import Window
from corral.tools.view import View, run_in_view

log = logging.getLogger("corral.adapters.pydantic_ai")

DEFAULT_TIMEOUT_SECONDS = 1800.0
ALIVE_SECONDS = 10.0
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])


def _returns(tell: Callable[[CorralError], Any]) -> Callable[[M], M]:
    """The seam between our errors and the protocol: instead of raising an error, the method returns `tell(error)`."""

    def decorate(method: M) -> M:
        @functools.wraps(method)
        async def call(self: AsyncCorralSandbox, *args: Any, **kwargs: Any) -> Any:
            try:
                return await method(self, *args, **kwargs)
            except CorralError as error:
                self._note(error, method.__name__)
                return tell(error)

        return cast("M", call)

    return decorate


class AsyncCorralSandbox(AsyncClosing):
    """The protocol for async callers. The sandbox is created at the first use, or by `start`.

    With a `sandbox_id`, any process finds it again under that id until `stop`; without one it belongs to this process
    and ends with it at the latest. `lifetime_seconds` is how long a sandbox with an id lives after it was last opened:
    None is no limit, which is also the default, except on a Daytona service, where it is a day. Other keywords are
    those of `corral.Sandbox`; `over(box)` takes an existing sandbox.
    """

    _gate = Gate()
    returns_failures = False
    """True if even `SandboxGoneError` is returned, as in the classes with the known names."""

    def __init__(
        self,
        sandbox_id: str | None = None,
        work_dir: str = HOME,
        startup_timeout: float | None = 180,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        lifetime_seconds: float | EllipsisType | None = ...,
        **spec_options: Unpack[SpecOptions],
    ) -> None:
        if "workdir" in spec_options:
            raise TypeError("use work_dir= instead of workdir=")
        chosen = choose_spec(spec, {**spec_options, "workdir": work_dir} if spec is None else spec_options)
        self._use(SandboxRequest(backend, chosen, sandbox_id, lifetime_seconds, startup_timeout))

    def _use(self, request: SandboxRequest) -> None:
        lazy = LazySandbox(request.make, request.finish)
        self._begin(lazy, work_dir=request.spec.workdir, sandbox_id=request.sandbox_id)

    @classmethod
    def over(cls, box: AsyncSandbox | Sandbox, *, work_dir: str | None = None) -> Self:
        """The protocol for an existing sandbox, which is not ended with this object."""
        self = cls.__new__(cls)
        living = box.async_sandbox if isinstance(box, Sandbox) else box
        self._begin(LazySandbox.of(living), work_dir=work_dir or living.spec.workdir, sandbox_id=living.id)
        self._origin = box
        self._finalizer.detach()
        return self

    def _begin(self, lazy: LazySandbox, *, work_dir: str, sandbox_id: str | None) -> None:
        self._lazy = lazy
        self._origin: object = None
        self._sandbox_id = sandbox_id
        self._stopped = False
        self._ended = False
        self.work_dir = work_dir
        self.last_error: Exception | None = None
        self._used = [time.time()]  # shared with views of `raising`
        self._finalizer = lazy.close_with(self)

    @property
    def id(self) -> str:
        """The given `sandbox_id`, or the id of the new sandbox; empty before it is created."""
        box = self._lazy.box
        return self._sandbox_id or (box.id if box is not None else "")

    @property
    def box(self) -> AsyncSandbox | None:
        """The Corral sandbox, for everything that the protocol does not have; None before it is created."""
        return self._lazy.box

    @property
    def ended(self) -> bool:
        """True if `stop` has succeeded."""
        return self._ended or (self._stopped and not self._lazy.requested)

    async def get_box(self) -> AsyncSandbox:
        """The Corral sandbox, created if needed. Raises: what creating one raises; SandboxClosedError after `stop`."""
        if self._stopped:
            raise SandboxClosedError("the sandbox was stopped", sandbox_id=self.id or None, hint="make a new one")
        self.touch()
        return await self._lazy.get()

    # Life.

    async def start(self) -> None:
        """Create or find the sandbox, if that was not done yet. Raises: what creating one raises."""
        await self.get_box()

    async def stop(self, purge: bool = False) -> None:  # noqa: FBT001, FBT002 - the known signature
        """Delete the sandbox; idempotent. A failure is raised, or logged by the classes that return failures."""
        self._stopped = True
        box = await self._lazy.settle()
        if self._ended or box is None:
            return
        try:
            await box.kill()
        except SandboxGoneError:
            pass  # it had ended already
        except CorralError as error:
            self._note(error, "stop")  # the next `stop` tries again
            return
        self._ended = True
        self._finalizer.detach()
        await self._lazy.close()

    async def is_alive(self) -> bool:
        """True if a command answers within ten seconds. Never raises, and creates nothing."""
        if not self._lazy.requested:
            return False
        try:
            box = await self.get_box()
            return (await box.exec("echo ok", timeout=ALIVE_SECONDS)).ok
        except CorralError as error:
            self.last_error = error
            return False

    def raising(self, gate: Gate | None = None) -> Self:
        """The same sandbox for tools of models: `SandboxGoneError` is raised, and the rules of the gate apply."""
        if not self.returns_failures and gate is None:
            return self
        view = copy.copy(self)
        # The view keeps its origin alive: otherwise the garbage collector could end the sandbox.
        vars(view).update(returns_failures=False, _origin=self, _gate=gate or self._gate)
        return view

    def touch(self) -> None:
        """Note that it was used now."""
        self._used[0] = time.time()

    @property
    def last_activity(self) -> float:
        """When it was last used, as Unix time."""
        return self._used[0]

    async def aclose(self) -> None:
        """Delete an owned sandbox; release one with a `sandbox_id`. Idempotent."""
        if self._finalizer.detach() is not None:
            await self._lazy.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    # Commands.

    @_returns(lambda error: ExecuteResponse(f"Error: {error}", 1, error=error))
    async def execute(
        self,
        command: str,
        timeout: float | None = None,
        *,
        read_only: Sequence[str] = (),
        hidden: Sequence[str] = (),
    ) -> ExecuteResponse:
        """Run a command in bash (or sh, without bash), in `work_dir`. The default timeout is half an hour.

        `read_only` and `hidden` restrict what this command may write and see, on backends with views.
        """
        box = await self.get_box()
        await self._gate.check_command(command)
        seconds = timeout or box.spec.exec_timeout or DEFAULT_TIMEOUT_SECONDS

        async def make_view() -> View:
            view = await self._gate.make_view(box, workdir=self.work_dir)
            return View((*read_only, *view.read_only), (*hidden, *view.hidden))

        result = await run_in_view(box, bash_text(command), make_view, cwd=self.work_dir, timeout=seconds)
        return narrow_result(result, timeout=seconds, network=box.spec.network)

    # Commands in the background.

    async def execute_background(self, command: str) -> BackgroundHandle:
        """Start a command in bash (or sh, without bash), in `work_dir`. It runs until it ends or the sandbox does.

        Raises:
            ExecError: the command can't be started, or too many are running.
            SandboxGoneError: the sandbox has ended.
        """
        return await start_shell(await self.get_box(), command, cwd=self.work_dir)

    async def read_background(
        self, shell_id: str, *, wait_seconds: float = 0.0, newest: bool = False, max_bytes: int = READ_BYTES
    ) -> BackgroundOutput:
        """The output since the last reading.

        `wait_seconds` is how long to wait for new output or the end. Output beyond `max_bytes` is left for the next
        reading; with `newest`, older output is skipped instead.
        """
        try:
            found = await read_shell(
                await self.get_box(), shell_id, wait_seconds=wait_seconds, newest=newest, max_bytes=max_bytes
            )
        except CorralError as error:
            self._note(error, "read_background")
            return BackgroundOutput(shell_id, "", f"Error: {error}", running=False, error=error)
        return BackgroundOutput(
            shell_id,
            found.stdout.decode("utf-8", "replace"),
            found.stderr.decode("utf-8", "replace"),
            running=found.running,
            exit_code=found.exit_code,
            output=found.output.decode("utf-8", "replace"),
            waiting=found.waiting,
            lost_bytes=found.lost_bytes,
        )

    @_returns(lambda _: False)
    async def write_background(self, shell_id: str, text: str | bytes, *, close: bool = False) -> bool:
        """Write to its standard input, and close that with `close`; returns True on success."""
        await write_shell(await self.get_box(), shell_id, text, close=close)
        return True

    @_returns(lambda _: False)
    async def kill_background(self, shell_id: str) -> bool:
        """Kill it with everything it started; returns True if it was running."""
        return await kill_shell(await self.get_box(), shell_id)

    @_returns(lambda _: [])
    async def list_background(self) -> list[BackgroundProcessInfo]:
        """The running commands, and those that have ended."""
        return await list_shells(await self.get_box())

    @_returns(lambda _: None)
    async def kill_all_background(self) -> None:
        """Kill all running commands."""
        box = await self.get_box()
        for shell in await list_shells(box):
            with contextlib.suppress(NotRecordedError):  # forgotten meanwhile
                await kill_shell(box, shell.shell_id)

    # Files.

    @_returns(lambda _: False)
    async def exists(self, path: str) -> bool:
        """True if the path is a file, not a folder."""
        try:
            box = await self.get_box()
            return not (await box.files.stat(self.at(path))).is_folder
        except (SandboxFileNotFoundError, NotADirectoryError):
            return False

    @_returns(lambda _: b"")
    async def read_bytes(self, path: str) -> bytes:
        """The whole content; empty if it can't be read (`last_error` says why)."""
        box = await self.get_box()
        return await box.files.read(self.at(path))

    @_returns(lambda error: f"Error: {error}")
    async def read(self, path: str, offset: int = 0, limit: int = 2000) -> str:
        """Lines with their numbers, as text; the text begins with "Error: " if it can't be read."""
        try:
            window = await self.read_window(path, offset=offset, limit=limit)
        except SandboxFileNotFoundError as error:
            self.last_error = error
            return f"Error: File '{path}' not found"
        if (problem := describe_window_error(window, path, offset)) is not None:
            return f"Error: {problem}"
        numbered = enumerate(window.lines, max(0, offset) + 1)
        text = "\n".join(f"{number:6d}\t{as_text(line)}" for number, line in numbered)
        shown = max(0, offset) + len(window.lines)
        if window.total is not None and shown >= window.total and not window.cut:
            return text
        return f"{text}\n\n{self._say_what_is_left(shown, window.total)}"

    def _say_what_is_left(self, shown: int, total: int | None) -> str:
        if total is not None and shown >= total:
            return "... (output truncated)"  # a line was too long
        more = "" if total is None else f"{total - shown} "
        return f"[... {more}more lines. Use offset={shown} to read more.]"

    @_returns(lambda error: WriteResult(error=f"Failed to write file: {error}", cause=error))
    async def write(self, path: str, content: str | bytes) -> WriteResult:
        """Write a whole file, atomically; missing folders are created."""
        await (await self._operate()).write(path, encode(content))
        return WriteResult(path=path)

    @_returns(lambda error: EditResult(error=f"Failed to edit file: {error}", cause=error))
    async def edit(
        self,
        path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the known signature
    ) -> EditResult:
        """Replace a text that occurs once, or every occurrence. It is done inside; the rest of the file is unchanged.

        In a file with CRLF line ends, a text with LF is found and replaced as CRLF.
        """
        try:
            done = await (await self._operate()).edit(path, old_string, new_string, replace_all=replace_all)
        except SandboxFileNotFoundError as error:
            self.last_error = error
            return EditResult(error=f"File not found: {path}", cause=error)
        except EditError as error:
            self.last_error = error
            return EditResult(error=describe_edit_error(error, old_string), cause=error)
        return EditResult(path=path, occurrences=done.replacements, sha256=done.sha256)

    @_returns(lambda error: (EditResult(error=f"Failed to edit file: {error}", cause=error), ""))
    async def edit_lines(
        self,
        path: str,
        start_line: int,
        start_hash: str,
        new_content: str,
        end_line: int | None = None,
        end_hash: str | None = None,
        *,
        insert_after: bool = False,
        hash_length: int = 2,
    ) -> tuple[EditResult, str]:
        """Replace, insert or delete lines if they still match their hashes; returns a summary as well.

        By compare-and-swap: if the file changes meanwhile, it is read again and the hashes are compared again.
        """
        change = LineChange(start_line, start_hash, new_content, end_line, end_hash, insert_after)
        try:
            done = await (await self._operate()).edit_lines(path, change, hash_length=hash_length)
        except SandboxFileNotFoundError as error:
            self.last_error = error
            return EditResult(error=f"File not found: {path}", cause=error), ""
        if done.error is not None:
            return EditResult(error=done.error), ""
        return EditResult(path=path, occurrences=1), done.summary

    @_returns(lambda _: [])
    async def ls_info(self, path: str) -> list[FileInfo]:
        """A folder's entries, folders first, then by name; empty if it can't be listed."""
        operations = await self._operate()
        entries = [
            describe_file(info, await follow_link(operations.files, info))
            for info in await operations.list(path or ".")
        ]
        return sorted(entries, key=lambda entry: (not entry["is_dir"], entry["name"]))

    @_returns(lambda _: [])
    async def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """The matching files below `work_dir` or another folder. `**` crosses folders; a pattern without a slash
        matches at any depth; an absolute pattern ignores `path`."""
        found = await (await self._operate()).glob(pattern, self._root(path), any_depth=True, only_files=True)
        return Found((describe_file(info, info) for info in found.files), truncated=found.truncated)

    @_returns(lambda error: f"Error: {error}")
    async def grep_raw(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        ignore_hidden: bool = True,  # noqa: FBT001, FBT002 - the known signature
    ) -> list[GrepMatch] | str:
        """Lines that match a regular expression, or an error text.

        An invalid regular expression, such as `print(`, is searched as plain text.
        """
        found = await (await self._operate()).grep(
            pattern, self._root(path), include=glob, hidden=not ignore_hidden, or_fixed=True
        )
        matches = (GrepMatch(path=match.path, line_number=match.line, line=match.text) for match in found.matches)
        return Found(matches, truncated=found.truncated)

    async def read_image(self, path: str, *, max_bytes: int) -> bytes:
        """The whole content. Raises: as `corral.base.files.AsyncFiles.read`."""
        return await (await self._operate()).read(path, max_bytes=max_bytes)

    async def read_window(self, path: str, *, offset: int, limit: int) -> Window:
        """Lines of a file. Raises: as `corral.base.files.AsyncFiles.read_stream`."""
        return await (await self._operate()).read_window(
            path, offset=max(0, offset), limit=max(0, limit), max_chars=MAX_OUTPUT_CHARS
        )

    async def real_path(self, path: str) -> str:
        """The path with links followed inside. Raises: as `corral.tools.permission.real_path`."""
        box = await self.get_box()
        return await real_path(box.files, self.at(path), workdir=self.work_dir)

    def at(self, path: str) -> str:
        """An absolute path: relative ones are below `work_dir`, as for commands."""
        return posixpath.join(self.work_dir, path)

    def normal(self, path: str) -> str:
        """The same, with `..` resolved as text."""
        return normal_path(path, workdir=self.work_dir)

    async def _operate(self) -> FileOperations:
        return FileOperations(await self.get_box(), self.work_dir, self._gate)

    def _root(self, path: str | None) -> str:
        """The folder to search. In the protocol, "/" means the working folder."""
        return path if path and path != "/" else "."

    def _note(self, error: CorralError, operation: str) -> None:
        """Keep and log an error that will be returned. Raises: the error, if the sandbox or a rule is the reason."""
        self.last_error = error
        if isinstance(error, PolicyError):
            raise error
        ours = isinstance(error, SandboxError | BackendError | EngineFaultError)
        if ours and not self.returns_failures:
            raise error
        level = logging.WARNING if ours else logging.DEBUG
        log.log(level, "%s failed in sandbox %s: %s", operation, self.id or "(none)", error)
