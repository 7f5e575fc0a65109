"""The console tools for an agent: ls, read_file, write_file, edit_file or hashline_edit, glob, grep and execute.

Errors that a model can correct are `ModelRetry`, and a failed call when its attempts are used up; a denied operation is
a failed call. `SandboxGoneError` is raised and ends the run: it must not look like output.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Never, TypeVar

from pydantic_ai import BinaryContent, FunctionToolset, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ToolFailed

from corral.adapters.pydantic_ai import texts
from corral.adapters.pydantic_ai.gate import RunGate, RunRules
from corral.adapters.pydantic_ai.results import MAX_OUTPUT_CHARS, EditResult, describe_window_error, is_truncated
from corral.adapters.pydantic_ai.rules import AskCallback, AskFallback, PermissionRuleset, as_permissions
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.adapters.pydantic_ai.source import AnySource, check_source, open_for_run
from corral.errors import PolicyError, SandboxFileError, SandboxFileNotFoundError, SandboxFileTooLargeError
from corral.tools.backgroundtools import BACKGROUND_TOOLS, BackgroundCommands
from corral.tools.gate import Gate
from corral.tools.hashline import DEFAULT_HASH_LENGTH, KNOWN_HASH_LENGTH
from corral.tools.permission import Operation, Permissions
from corral.tools.render import GrepMode, make_harmless, quote
from corral.tools.schema import make_schema
from corral.tools.tool import ToolSet

EditFormat = Literal["str_replace", "hashline"]
D = TypeVar("D")

IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
MAX_IMAGE_BYTES = 50 * 1024 * 1024
EXECUTE_SECONDS = 120


class CorralToolset(FunctionToolset[D]):
    """The tools as a toolset: `Agent(…, toolsets=[CorralToolset(sandbox)])`.

    Instead of a sandbox, it may be a `corral.Environment`: it is opened for each call, with the run's deps and
    conversation as its context. The default is `deps.backend`, or the run's workspace if that is a `CorralWorkspace`.
    `include_background` adds tools for commands in the background.

    `permissions` are rules for every path and command. `ask_callback` is called where they say "ask" (without it, an
    approval of Pydantic AI is required). With `hide_denied`, the kernel hides files that may not be read from commands,
    on backends with views. `edit_format="hashline"` edits by line and hash instead of by text.
    """

    def __init__(
        self,
        sandbox: AnySource | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as toolsets name it
        include_execute: bool = True,
        include_background: bool = False,
        require_write_approval: bool = False,
        require_execute_approval: bool = False,
        default_ignore_hidden: bool = True,
        permissions: Permissions | PermissionRuleset | None = None,
        ask_callback: AskCallback | None = None,
        ask_fallback: AskFallback = "error",
        hide_denied: bool = False,
        max_retries: int = 3,
        image_support: bool = True,
        max_image_bytes: int = MAX_IMAGE_BYTES,
        edit_format: EditFormat = "str_replace",
        hash_length: int = DEFAULT_HASH_LENGTH,
        descriptions: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(max_retries=max_retries, id=id)
        if edit_format not in ("str_replace", "hashline"):
            raise ValueError(f"unknown edit_format={edit_format!r}; use 'str_replace' or 'hashline'")
        self._source = check_source(sandbox) if sandbox is not None else None
        rules = as_permissions(permissions) if permissions is not None else None
        self._rules = RunRules(rules, ask_callback, ask_fallback, hide_denied)
        could_allow = Gate(rules).could_allow
        if hide_denied and (rules is None or include_background):
            raise ValueError("hide_denied= needs permissions=, and does not support commands in the background")
        self._ignore_hidden = default_ignore_hidden
        self._max_image_bytes = max_image_bytes if image_support else 0
        self._hash_length = hash_length
        self._hashline = edit_format == "hashline"
        own = descriptions or {}
        # With rules, the rules say when to ask.
        write, execute = (flag and rules is None for flag in (require_write_approval, require_execute_approval))

        def add(operation: Operation, tool: Callable[..., Any], *, approval: bool = False) -> None:
            name = tool.__name__
            if could_allow(operation):
                key = "read_file:hashline" if self._hashline and name == "read_file" else name
                text = own.get(name, texts.DESCRIPTIONS[key])
                self.add_function(tool, takes_ctx=True, description=text, requires_approval=approval or None)

        add("ls", self.ls)
        add("read", self.read_file)
        add("write", self.write_file, approval=write)
        add("edit", self.hashline_edit if self._hashline else self.edit_file, approval=write)
        add("glob", self.glob)
        add("grep", self.grep)
        if include_execute:
            add("execute", self.execute, approval=execute)
        if include_background and could_allow("execute"):
            for name, row in BACKGROUND_TOOLS.items():
                tool = Tool[D].from_schema(
                    functools.partial(self._call_background, name),
                    name,
                    own.get(name, row.description),
                    make_schema(row.parameters),
                    takes_ctx=True,
                )
                tool.requires_approval = execute and name in ("execute_background", "write_background")
                self.add_tool(tool)

    @contextlib.asynccontextmanager
    async def open_sandbox(self, ctx: RunContext[D]) -> AsyncIterator[AsyncCorralSandbox]:
        """The sandbox of a call, under the rules. Raises: UserError without one; ToolFailed for a `PolicyError`."""
        async with open_for_run(ctx, self._source) as sandbox:
            try:
                yield sandbox.raising(RunGate(self._rules, ctx, workdir=sandbox.work_dir))
            except PolicyError as error:
                raise ToolFailed(f"Permission denied for {error.op}: {quote(str(error))}") from error

    # The tools. Their docstrings describe the parameters to a model.

    async def ls(self, ctx: RunContext[D], path: str = ".") -> str:
        """List a folder.

        Args:
            path: The folder to list; the working folder if not given.
        """
        async with self.open_sandbox(ctx) as sandbox:
            return texts.render_listing(path, await sandbox.ls_info(path))

    async def read_file(
        self, ctx: RunContext[D], path: str, offset: int = 0, limit: int = 2000
    ) -> str | BinaryContent:  # fmt: skip
        """Read a file.

        Args:
            path: The file to read, absolute or below the working folder.
            offset: How many lines to skip.
            limit: How many lines to read at most.
        """
        async with self.open_sandbox(ctx) as sandbox:
            kind = IMAGE_TYPES.get(posixpath.splitext(path)[1].lower())
            if kind is not None and self._max_image_bytes:
                return await self._read_image(ctx, sandbox, path, kind)
            if self._hashline:
                return await self._read_tagged(ctx, sandbox, path, offset, limit)
            text = await sandbox.read(path, offset, limit)
            if text.startswith("Error: "):
                _retry(ctx, text)
            return make_harmless(text)

    async def write_file(self, ctx: RunContext[D], path: str, content: str) -> str:
        """Write a file.

        Args:
            path: The file to write, absolute or below the working folder.
            content: Everything that shall be in it.
        """
        async with self.open_sandbox(ctx) as sandbox:
            result = await sandbox.write(path, content)
            if result.error is not None:
                _retry(ctx, f"Error: {result.error}")
            return texts.render_written(path, content)

    async def edit_file(
        self,
        ctx: RunContext[D],
        path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - a tool's parameter
    ) -> str:
        """Replace a text in a file.

        Args:
            path: The file to edit, absolute or below the working folder.
            old_string: The text to replace, exactly as it stands there.
            new_string: The replacement.
            replace_all: Replace it wherever it stands; otherwise it must stand there exactly once.
        """
        async with self.open_sandbox(ctx) as sandbox:
            result = await sandbox.edit(path, old_string, new_string, replace_all)
            return f"Edited {quote(path)}: replaced {self._check_edit(ctx, result).occurrences} occurrence(s)"

    async def hashline_edit(
        self,
        ctx: RunContext[D],
        path: str,
        start_line: int,
        start_hash: str,
        new_content: str,
        end_line: int | None = None,
        end_hash: str | None = None,
        insert_after: bool = False,  # noqa: FBT001, FBT002 - a tool's parameter
    ) -> str:
        """Replace, insert or delete lines.

        Args:
            path: The file to edit, absolute or below the working folder.
            start_line: The number of the first line, as read_file shows it.
            start_hash: The hash of that line, as read_file shows it.
            new_content: The new lines; nothing deletes.
            end_line: The number of the last line, if there are several.
            end_hash: The hash of the last line.
            insert_after: Insert after the line instead of replacing it.
        """
        async with self.open_sandbox(ctx) as sandbox:
            result, summary = await sandbox.edit_lines(
                path,
                start_line,
                start_hash,
                new_content,
                end_line,
                end_hash,
                insert_after=insert_after,
                hash_length=self._hash_length,
            )
            self._check_edit(ctx, result)
            return f"Edited {quote(path)}: {summary}"

    async def glob(self, ctx: RunContext[D], pattern: str, path: str = ".") -> str:
        """Find files.

        Args:
            pattern: What their paths look like, such as `**/*.py`.
            path: The folder to look in; the working folder if not given.
        """
        async with self.open_sandbox(ctx) as sandbox:
            found = await sandbox.glob_info(pattern, path)
            return texts.render_found(pattern, path, found, truncated=is_truncated(found))

    async def grep(
        self,
        ctx: RunContext[D],
        pattern: str,
        path: str | None = None,
        glob_pattern: str | None = None,
        output_mode: GrepMode = "files_with_matches",
        ignore_hidden: bool | None = None,  # noqa: FBT001 - a tool's parameter
    ) -> str:
        """Search files.

        Args:
            pattern: A regular expression.
            path: The file or folder to search; the working folder if not given.
            glob_pattern: Only files whose names look like this, such as `*.py`.
            output_mode: The lines, the files they are in, or how many there are.
            ignore_hidden: Leave out files and folders whose names begin with a dot.
        """
        async with self.open_sandbox(ctx) as sandbox:
            hidden = self._ignore_hidden if ignore_hidden is None else ignore_hidden
            matches = await sandbox.grep_raw(pattern, path, glob_pattern, hidden)
            if isinstance(matches, str):
                _retry(ctx, matches)
            return texts.render_matches(pattern, matches, mode=output_mode, truncated=is_truncated(matches))

    async def execute(self, ctx: RunContext[D], command: str, timeout: float | None = EXECUTE_SECONDS) -> str:
        """Run a command.

        Args:
            command: The command, for a shell.
            timeout: How many seconds it may take.
        """
        async with self.open_sandbox(ctx) as sandbox:
            response = await sandbox.execute(command, timeout)
            if response.error is not None:
                _retry(ctx, response.output)
            return texts.render_execution(response)

    async def _call_background(self, name: str, ctx: RunContext[D], **arguments: Any) -> str:
        async with self.open_sandbox(ctx) as sandbox:
            gate = RunGate(self._rules, ctx, workdir=sandbox.work_dir)
            tools = ToolSet(
                await sandbox.get_box(),
                BACKGROUND_TOOLS,
                max_chars=MAX_OUTPUT_CHARS,
                prepare=lambda box: BackgroundCommands(box, {}, sandbox.work_dir, gate),
            )
            result = await tools[name].call(arguments)
            if not result.ok:
                _retry(ctx, result)
            return str(result)

    async def _read_image(self, ctx: RunContext[D], sandbox: AsyncCorralSandbox, path: str, kind: str) -> BinaryContent:
        try:
            data = await sandbox.read_image(path, max_bytes=self._max_image_bytes)
        except SandboxFileTooLargeError:
            limit = self._max_image_bytes / 1024 / 1024
            raise ToolFailed(f"Error: Image '{quote(path)}' too large (max {limit:.1f}MB)") from None
        except SandboxFileError:
            data = b""
        if not data:
            _retry(ctx, f"Error: Image file '{quote(path)}' not found or empty")
        return BinaryContent(data=data, media_type=kind)

    async def _read_tagged(
        self, ctx: RunContext[D], sandbox: AsyncCorralSandbox, path: str, offset: int, limit: int
    ) -> str:  # fmt: skip
        try:
            window = await sandbox.read_window(path, offset=offset, limit=limit)
        except SandboxFileNotFoundError:
            _retry(ctx, f"Error: File '{quote(path)}' not found")
        except SandboxFileError as error:
            _retry(ctx, f"Error: {quote(str(error))}")
        if (problem := describe_window_error(window, quote(path), offset)) is not None:
            _retry(ctx, f"Error: {problem}")
        return texts.render_tagged(window, offset=max(0, offset), hash_length=self._hash_length)

    def _check_edit(self, ctx: RunContext[D], result: EditResult) -> EditResult:
        if result.error is not None:
            _retry(ctx, f"Error: {quote(result.error, max_chars=1000)}")
        return result


def create_console_toolset(
    id: str | None = None,  # noqa: A002 - as toolsets name it
    include_execute: bool = True,  # noqa: FBT001, FBT002 - the known signature
    require_write_approval: bool = False,  # noqa: FBT001, FBT002
    require_execute_approval: bool = True,  # noqa: FBT001, FBT002
    default_ignore_hidden: bool = True,  # noqa: FBT001, FBT002
    permissions: Permissions | PermissionRuleset | None = None,
    max_retries: int = 1,
    image_support: bool = False,  # noqa: FBT001, FBT002
    max_image_bytes: int = MAX_IMAGE_BYTES,
    edit_format: EditFormat = "str_replace",
    descriptions: Mapping[str, str] | None = None,
    *,
    sandbox: AnySource | None = None,
    ask_callback: AskCallback | None = None,
    ask_fallback: AskFallback = "error",
    hash_length: int = KNOWN_HASH_LENGTH,
) -> CorralToolset[Any]:
    """A `CorralToolset` with the known signature and defaults, for deps that have a `backend`."""
    return CorralToolset(
        sandbox,
        id=id,
        include_execute=include_execute,
        require_write_approval=require_write_approval,
        require_execute_approval=require_execute_approval,
        default_ignore_hidden=default_ignore_hidden,
        permissions=permissions,
        ask_callback=ask_callback,
        ask_fallback=ask_fallback,
        max_retries=max_retries,
        image_support=image_support,
        max_image_bytes=max_image_bytes,
        edit_format=edit_format,
        hash_length=hash_length,
        descriptions=descriptions,
    )


def _retry(ctx: RunContext[Any], text: str) -> Never:
    """Raises: ModelRetry; ToolFailed, with which the run goes on, if the model has no attempt left."""
    text = make_harmless(text)
    if ctx.last_attempt:
        raise ToolFailed(text)
    raise ModelRetry(text)
