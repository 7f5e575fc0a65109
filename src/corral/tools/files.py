"""File tools: ls, read_file, write_file, edit_file, hashline_edit, glob, grep; with rules that hold for every path.

A rule is asked for the path as the model wrote it and for where it really leads, and then that real path is used. What
may not be read is not found by a search either.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import EditConflictError, EditError, PolicyError, SandboxFileError
from corral.results import FileInfo, GlobResult, GrepResult
from corral.tools.hashline import DEFAULT_HASH_LENGTH, edit_lines, line_hash, split_lines
from corral.tools.permission import Decision, Operation, Permissions, Rule, normal_path, real_path
from corral.tools.reading import (
    JUDGED_FILES,
    MAX_EDIT_BYTES,
    SNIFFED_BYTES,
    find_hidden_files,
    limit_search,
    read_window,
)
from corral.tools.render import (
    DEFAULT_MAX_CHARS,
    ToolText,
    quote,
    render_binary,
    render_error,
    render_glob,
    render_grep,
    render_lines,
    render_listing,
)
from corral.tools.schema import ArgumentsError, Parameter
from corral.tools.tool import Source, Tool

OnAsk = Callable[[str, str, str], bool | Awaitable[bool]]
"""Asked for an operation, a path and the rule's note: whether it may be done."""

DEFAULT_LINES = 2000
GLOB_LIMIT = 1000
GREP_LIMIT = 500
_MODES = ("content", "files_with_matches", "count")

_PATH = "a path inside the sandbox; relative ones are under the working directory"


@dataclass(frozen=True, slots=True)
class Entered:
    """Where an allowed call really leads, and which rules were asked about for it."""

    path: str
    operation: Operation
    permissions: Permissions | None
    """The rules, for the working folder of this sandbox."""
    asked: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """The rules of a set of tools, and whom to ask."""

    permissions: Permissions | None = None
    on_ask: OnAsk | None = None

    async def enter(self, box: AsyncSandbox, operation: Operation, path: str, *more: Operation) -> Entered:
        """The real path, if it may be used for an operation, and for `more` that this one comes to.

        Whoever is asked sees where the path really leads, and what was allowed is what is used.

        Raises:
            PolicyError: it may not.
            SandboxFileError: nobody knows where it leads.
        """
        workdir = box.spec.workdir
        real = await real_path(box.files, path, workdir=workdir)
        names = tuple(dict.fromkeys((normal_path(path, workdir=workdir), real)))
        permissions = self.permissions
        if permissions is not None:
            root = normal_path(".", workdir=workdir)
            real_root = await real_path(box.files, ".", workdir=workdir) if permissions.needs_workdir else root
            permissions = permissions.within(root, real_root)
        decisions = [
            (one, permissions.decide(one, name))
            for one in (operation, *more)
            for name in names
            if permissions is not None
        ]
        denied = [each for each in decisions if each[1].action == "deny"]
        to_ask = [each for each in decisions if each[1].action == "ask"]
        for one, decision in (denied or to_ask)[:1]:  # one question is enough for one call
            await self._ask(one, real, decision, given=path)
        if to_ask and real != await real_path(box.files, real, workdir=workdir):
            text = "what was asked about is a link to something else by now"
            raise PolicyError(f"{operation} of {quote(path)} is not allowed: {text}", op=operation)
        asked = [decision.rule for _, decision in to_ask if decision.rule is not None]
        return Entered(real, operation, permissions, tuple(asked))

    async def _ask(self, operation: Operation, real: str, decision: Decision, *, given: str) -> None:
        """Raises: PolicyError, unless somebody was to be asked and says yes."""
        note = decision.rule.note if decision.rule is not None else ""
        if decision.action == "ask" and self.on_ask is not None:
            answer = self.on_ask(operation, real, note)
            if await answer if inspect.isawaitable(answer) else answer:
                return
        why = f": {note}" if note else ""
        raise PolicyError(f"{operation} of {quote(given)} is not allowed{why}", op=operation)

    async def shows(self, box: AsyncSandbox, entered: Entered, info: FileInfo) -> bool:
        """Whether a search that was allowed may show this.

        Left out is what is denied, and what a rule of its own says to ask for. Nobody is asked again: a rule that was
        asked about when the search began holds for all that it finds.
        """
        if self.permissions is None:
            return True
        if not self.shows_path(entered, info.path):
            return False
        if info.kind != "link":
            return True  # a search follows no links: what it finds is where it says
        try:
            return self.shows_path(entered, await real_path(box.files, info.path, workdir=box.spec.workdir))
        except SandboxFileError:
            return False

    def shows_path(self, entered: Entered, path: str, *more: Operation) -> bool:
        """The same for a real path, for the search's own operation and for `more`."""
        return all(self._leaves(entered, operation, path) for operation in (entered.operation, *more))

    def _leaves(self, entered: Entered, operation: Operation, name: str) -> bool:
        decision = entered.permissions.decide(operation, name) if entered.permissions is not None else None
        if decision is None or decision.action == "allow":
            return True
        if decision.action == "deny":
            return False
        return decision.rule is None or (operation == entered.operation and decision.rule in entered.asked)


class FileTool(Tool):
    """One of the tools of `FileTools`."""

    def __init__(
        self,
        environment: Source,
        *,
        gate: Gate,
        name: str,
        description: str,
        parameters: Sequence[Parameter],
        max_chars: int,
        act: Callable[[FileTool, AsyncSandbox, Mapping[str, Any]], Awaitable[ToolText]],
    ) -> None:
        super().__init__(environment, name=name, description=description, parameters=parameters, max_chars=max_chars)
        self.gate = gate
        self._act = act

    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        """See `Tool`."""
        return await self._act(self, box, values)


class FileTools:
    """All file tools on one environment: iterate over them, or take one by its name.

    `permissions` are rules for every path; without them, the sandbox alone decides. What a rule says to ask for is put
    to `on_ask`, and refused where there is none. An operation that could never be allowed has no tool. `hashline` gives
    `hashline_edit` in the place of `edit_file`, and tags on the lines of `read_file`.
    """

    def __init__(
        self,
        environment: Source,
        *,
        permissions: Permissions | None = None,
        on_ask: OnAsk | None = None,
        hashline: bool = False,
        max_chars: int = DEFAULT_MAX_CHARS,
    ) -> None:
        gate = Gate(permissions, on_ask)
        table = dict(_TABLE)
        del table["edit_file" if hashline else "hashline_edit"]
        if hashline:
            table["read_file"] = replace(table["read_file"], act=_read_tagged)
        self._tools = {
            name: FileTool(
                environment,
                gate=gate,
                name=name,
                description=row.description,
                parameters=row.parameters,
                max_chars=max_chars,
                act=row.act,
            )
            for name, row in table.items()
            if permissions is None
            # An edit tells what is in a file.
            or not (permissions.never(row.operation) or (row.operation == "edit" and permissions.never("read")))
        }

    def __iter__(self) -> Iterator[FileTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> FileTool:
        return self._tools[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that there are."""
        return tuple(self._tools)


# What each does.


async def _list(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    entered = await tool.gate.enter(box, "ls", values["path"])
    entries = await box.files.list(entered.path)
    shown = [info for info in entries if await tool.gate.shows(box, entered, info)]
    return render_listing(values["path"], shown, max_chars=tool.max_chars)


async def _read(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    path = (await tool.gate.enter(box, "read", values["path"])).path
    window = await read_window(
        box.files, path, offset=values["offset"], limit=values["limit"], max_chars=tool.max_chars
    )
    if window.binary:
        size = (await box.files.stat(path)).size
        return render_binary(values["path"], size=size, beginning=window.beginning)
    if not window.lines and values["offset"] and window.total is not None:
        return render_error(f"{quote(values['path'])} has only {window.total} lines", code="arguments")
    return render_lines(
        window.lines,
        first=values["offset"] + 1,
        total=window.total,
        max_chars=tool.max_chars,
        beyond=window.beyond,
    )


async def _read_tagged(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    """As `_read`; but a hash is of a whole line, to the byte, so the whole file is needed."""
    path = (await tool.gate.enter(box, "read", values["path"])).path
    data = await box.files.read(path, max_bytes=MAX_EDIT_BYTES)
    if b"\0" in data[:SNIFFED_BYTES]:
        return render_binary(values["path"], size=len(data), beginning=data)
    lines, _ = split_lines(data.decode("utf-8", "surrogateescape"))
    offset = values["offset"]
    if offset >= len(lines):
        return render_error(f"{quote(values['path'])} has only {len(lines)} lines", code="arguments")
    shown = lines[offset : offset + values["limit"]]
    tags = [
        f"{number}:{line_hash(line, length=DEFAULT_HASH_LENGTH)}|"
        for number, line in enumerate(shown, start=offset + 1)
    ]
    bare = [line.removesuffix("\r") for line in shown]
    return render_lines(bare, first=offset + 1, total=len(lines), max_chars=tool.max_chars, tags=tags)


async def _write(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    path = (await tool.gate.enter(box, "write", values["path"])).path
    size = await box.files.write(path, values["content"])
    lines = values["content"].count("\n") + (not values["content"].endswith("\n") and bool(values["content"]))
    return ToolText(f"Wrote {lines} lines ({size} bytes) to {quote(values['path'])}")


async def _edit(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    path = (await tool.gate.enter(box, "edit", values["path"], "read")).path
    old, new, every = values["old_string"], values["new_string"], values["replace_all"]
    if old == new:
        raise ArgumentsError("'old_string' and 'new_string' are the same")
    try:
        done = await box.files.edit(path, old, new, replace_all=every)
    except EditError as error:
        # A model sees lines; which of the two ends they have it can't see.
        if error.count or "\n" not in old or "\r" in old:
            raise
        done = await box.files.edit(path, old.replace("\n", "\r\n"), new.replace("\n", "\r\n"), replace_all=every)
    return ToolText(f"Edited {quote(values['path'])}: replaced {done.replacements} occurrence(s)", result=done)


async def _edit_lines(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    path = (await tool.gate.enter(box, "edit", values["path"], "read")).path
    before = await box.files.read(path, max_bytes=MAX_EDIT_BYTES)
    done = edit_lines(
        before.decode("utf-8", "surrogateescape"),
        values["start_line"],
        values["start_hash"],
        values["new_content"],
        end_line=values["end_line"],
        end_hash=values["end_hash"],
        insert_after=values["insert_after"],
        hash_length=DEFAULT_HASH_LENGTH,
    )
    if done.error is not None:
        return render_error(done.error, code="edit")
    await _swap(box.files, path, before, done.content.encode("utf-8", "surrogateescape"))
    return ToolText(f"{done.summary} in {quote(values['path'])}")


async def _swap(files: AsyncFiles, path: str, before: bytes, after: bytes) -> None:
    """Put one content in the place of another, if it is still there. Raises: EditConflictError."""
    if before == after:
        return
    if before:
        await files.edit(path, before, after, expected_sha256=hashlib.sha256(before).hexdigest())
        return
    if (await files.stat(path)).size:
        raise EditConflictError(f"{path}: the file has changed since it was read", path=path, op="edit")
    await files.write(path, after)


async def _glob(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    pattern, path = values["pattern"], values["path"]
    if pattern.startswith("/"):
        # A search from the root is judged as one: the folder in the pattern is the one that is meant.
        fixed = re.split(r"[*?\[{]", pattern)[0].rpartition("/")[0] or "/"
        path, pattern = fixed, pattern[len(fixed) :].lstrip("/")
    entered = await tool.gate.enter(box, "glob", path)
    gate = tool.gate
    # Rules first, then the limit: what is not shown must not take its part of it.
    limit = GLOB_LIMIT if gate.permissions is None else JUDGED_FILES
    async with limit_search():
        found = await box.files.glob(pattern, path=entered.path, limit=limit)
    if found.truncated and gate.permissions is not None:
        raise PolicyError(f"more than {limit} files match, too many to keep rules in a search", op="glob")
    shown = [info for info in found.files if await gate.shows(box, entered, info)]
    truncated = found.truncated or len(shown) > GLOB_LIMIT
    result = GlobResult(tuple(shown[:GLOB_LIMIT]), truncated, _allowed(gate, entered, found.unreadable))
    return replace_result(render_glob(values["pattern"], result, max_chars=tool.max_chars), result)


def _allowed(gate: Gate, entered: Entered, unreadable: Sequence[str], *more: Operation) -> tuple[str, ...]:
    """Of what could not be looked into, what may be named."""
    return tuple(text for text in unreadable if gate.shows_path(entered, text.rpartition(": ")[0], *more))


async def _grep(tool: FileTool, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
    gate = tool.gate
    entered = await gate.enter(box, "grep", values["path"])
    if values["output_mode"] not in _MODES:
        raise ArgumentsError(f"'output_mode' must be one of {', '.join(_MODES)}")
    hidden = not values["ignore_hidden"]

    def shows(path: str) -> bool:
        """Content is content: what may not be read may not be searched."""
        return gate.shows_path(entered, path, "read")

    async with limit_search():
        without: tuple[str, ...] = ()
        if gate.permissions is not None:
            without = await find_hidden_files(box.files, entered.path, hidden=hidden, shows=shows)
        found = await box.files.grep(
            values["pattern"],
            path=entered.path,
            include=values["glob"],
            ignore_case=values["ignore_case"],
            fixed=values["fixed"],
            hidden=hidden,
            limit=GREP_LIMIT,
            without=without,
        )
    # Once more: a file may have come since the rules were asked.
    matches = tuple(match for match in found.matches if shows(match.path))
    result = GrepResult(matches, found.truncated, _allowed(gate, entered, found.unreadable, "read"))
    text = render_grep(values["pattern"], result, mode=values["output_mode"], max_chars=tool.max_chars)
    return replace_result(text, result)


def replace_result(text: ToolText, result: object) -> ToolText:
    """The same text, with what stands behind it."""
    return ToolText(text, ok=text.ok, error=text.error, truncated=text.truncated, result=result)


@dataclass(frozen=True, slots=True)
class _Row:
    operation: Operation
    description: str
    act: Callable[[FileTool, AsyncSandbox, Mapping[str, Any]], Awaitable[ToolText]]
    parameters: tuple[Parameter, ...]


_FOLDER = Parameter("path", "string", f"the folder: {_PATH}", default=".")
_FILE = Parameter("path", "string", f"the file: {_PATH}", required=True)
_TABLE: dict[str, _Row] = {
    "ls": _Row("ls", "List a folder: names, sizes, and what is a folder.", _list, (_FOLDER,)),
    "read_file": _Row(
        "read",
        "Read a text file, with line numbers. Long files come in pieces: the last line says how to read on.",
        _read,
        (
            _FILE,
            Parameter("offset", "integer", "how many lines to skip", default=0, least=0),
            Parameter("limit", "integer", "how many lines at most", default=DEFAULT_LINES, least=1),
        ),
    ),
    "write_file": _Row(
        "write",
        "Write a text file, whole; folders on the way are made, and what was in the file before is replaced.",
        _write,
        (_FILE, Parameter("content", "string", "the whole content", required=True)),
    ),
    "edit_file": _Row(
        "edit",
        "Replace a text in a file. It must be there exactly once, unless replace_all is true.",
        _edit,
        (
            _FILE,
            Parameter("old_string", "string", "the text to replace, to the letter, no line numbers", required=True),
            Parameter("new_string", "string", "what to put in its place", required=True),
            Parameter("replace_all", "boolean", "replace every occurrence", default=False),
        ),
    ),
    "hashline_edit": _Row(
        "edit",
        "Replace, delete or insert lines by number and hash, as read_file shows them: number:hash|content.",
        _edit_lines,
        (
            _FILE,
            Parameter("start_line", "integer", "the first line", required=True, least=1),
            Parameter("start_hash", "string", "its hash", required=True),
            Parameter("new_content", "string", "the new lines; empty to delete", required=True),
            Parameter("end_line", "integer", "the last line to replace; left out: only the first", least=1),
            Parameter("end_hash", "string", "its hash"),
            Parameter("insert_after", "boolean", "insert after the first line, and replace nothing", default=False),
        ),
    ),
    "glob": _Row(
        "glob",
        "Find files by a pattern such as **/*.py, where ** crosses folders.",
        _glob,
        (Parameter("pattern", "string", "the pattern", required=True), _FOLDER),
    ),
    "grep": _Row(
        "grep",
        "Find lines that match a regular expression, in text files.",
        _grep,
        (
            Parameter("pattern", "string", "the regular expression", required=True),
            Parameter("path", "string", f"a folder or a file: {_PATH}", default="."),
            Parameter("glob", "string", "only in files that match this pattern, such as *.py"),
            Parameter("output_mode", "string", "lines, files, or counts", default="content", choices=_MODES),
            Parameter("ignore_case", "boolean", "whether case does not matter", default=False),
            Parameter("fixed", "boolean", "take the pattern as plain text", default=False),
            Parameter("ignore_hidden", "boolean", "leave out names that begin with a dot", default=True),
        ),
    ),
}
