"""File tools: ls, read_file, write_file, edit_file, hashline_edit, glob, grep; with rules that hold for every path.

The rules are checked by `corral.tools.gate`. What may not be read is not found by a search either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from corral.tools.gate import Gate, OnAsk
from corral.tools.hashline import DEFAULT_HASH_LENGTH, LineChange, line_hash, split_lines
from corral.tools.operations import FileOperations
from corral.tools.permission import Permissions
from corral.tools.reading import MAX_EDIT_BYTES, SNIFFED_BYTES
from corral.tools.render import (
    DEFAULT_MAX_CHARS,
    GrepMode,
    ToolText,
    count_lines,
    quote,
    render_binary,
    render_error,
    render_glob,
    render_grep,
    render_lines,
    render_listing,
)
from corral.tools.schema import ArgumentsError, Parameter
from corral.tools.tool import Row, Source, ToolSet

DEFAULT_LINES = 2000
GLOB_LIMIT = 1000
GREP_LIMIT = 500
_MODES: tuple[GrepMode, ...] = get_args(GrepMode)

_PATH = "a path inside the sandbox; relative ones are under the working directory"


class FileTools(ToolSet[FileOperations]):
    """All file tools on one environment: iterate over them, or take one by its name.

    `permissions` are rules for every path; without them, only the sandbox limits the tools. If a rule says to ask,
    `on_ask` is called; without it, the call is refused. An operation that could never be allowed has no tool.
    `hashline` replaces `edit_file` by `hashline_edit`, and adds tags to the lines of `read_file`.
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
        rows = dict(_TABLE)
        del rows["edit_file" if hashline else "hashline_edit"]
        if hashline:
            rows["read_file"] = replace(rows["read_file"], act=_read_tagged)
        super().__init__(
            environment,
            {name: row for name, row in rows.items() if gate.could_allow(row.operation)},
            max_chars=max_chars,
            prepare=lambda box: FileOperations(box, box.spec.workdir, gate),
        )


async def _list(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    entries = await operations.list(values["path"])
    return render_listing(values["path"], entries, max_chars=max_chars)


async def _read(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    path, offset = values["path"], values["offset"]
    window = await operations.read_window(path, offset=offset, limit=values["limit"], max_chars=max_chars)
    if window.binary:
        return render_binary(path, size=window.size, beginning=window.beginning)
    if not window.lines and offset and window.total is not None:
        return render_error(f"{quote(path)} has only {window.total} lines", code="arguments")
    return render_lines(window.lines, first=offset + 1, total=window.total, max_chars=max_chars, beyond=window.beyond)


async def _read_tagged(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    """As `_read`, but of the whole file, since a hash covers every byte of a line."""
    path, offset = values["path"], values["offset"]
    data = await operations.read(path, max_bytes=MAX_EDIT_BYTES)
    if b"\0" in data[:SNIFFED_BYTES]:
        return render_binary(path, size=len(data), beginning=data)
    lines, _ = split_lines(data.decode("utf-8", "surrogateescape"))
    if offset >= len(lines):
        return render_error(f"{quote(path)} has only {len(lines)} lines", code="arguments")
    shown = lines[offset : offset + values["limit"]]
    tags = [
        f"{number}:{line_hash(line, length=DEFAULT_HASH_LENGTH)}|"
        for number, line in enumerate(shown, start=offset + 1)
    ]
    bare = [line.removesuffix("\r") for line in shown]
    return render_lines(bare, first=offset + 1, total=len(lines), max_chars=max_chars, tags=tags)


async def _write(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    content = values["content"]
    size = await operations.write(values["path"], content)
    return ToolText(f"Wrote {count_lines(content)} lines ({size} bytes) to {quote(values['path'])}")


async def _edit(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    old, new = values["old_string"], values["new_string"]
    if old == new:
        raise ArgumentsError("'old_string' and 'new_string' are the same")
    done = await operations.edit(values["path"], old, new, replace_all=values["replace_all"])
    return ToolText(f"Edited {quote(values['path'])}: replaced {done.replacements} occurrence(s)", result=done)


async def _edit_lines(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    change = LineChange(**{name: value for name, value in values.items() if name != "path"})
    done = await operations.edit_lines(values["path"], change, hash_length=DEFAULT_HASH_LENGTH)
    if done.error is not None:
        return render_error(done.error, code="edit")
    return ToolText(f"{done.summary} in {quote(values['path'])}")


async def _glob(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    found = await operations.glob(values["pattern"], values["path"], limit=GLOB_LIMIT)
    return render_glob(values["pattern"], found, max_chars=max_chars)


async def _grep(operations: FileOperations, values: Mapping[str, Any], max_chars: int) -> ToolText:
    if values["output_mode"] not in _MODES:
        raise ArgumentsError(f"'output_mode' must be one of {', '.join(_MODES)}")
    found = await operations.grep(
        values["pattern"],
        values["path"],
        include=values["glob"],
        ignore_case=values["ignore_case"],
        fixed=values["fixed"],
        hidden=not values["ignore_hidden"],
        limit=GREP_LIMIT,
    )
    return render_grep(values["pattern"], found, mode=values["output_mode"], max_chars=max_chars)


_FOLDER = Parameter("path", "string", f"the folder: {_PATH}", default=".")
_FILE = Parameter("path", "string", f"the file: {_PATH}", required=True)
_TABLE: dict[str, Row[FileOperations]] = {
    "ls": Row("ls", "List a folder: names, sizes and kinds.", _list, (_FOLDER,)),
    "read_file": Row(
        "read",
        "Read a text file with line numbers. Long files are returned in parts; the last line says how to continue.",
        _read,
        (
            _FILE,
            Parameter("offset", "integer", "how many lines to skip", default=0, least=0),
            Parameter("limit", "integer", "how many lines at most", default=DEFAULT_LINES, least=1),
        ),
    ),
    "write_file": Row(
        "write",
        "Write a whole text file. Missing parent folders are created, and existing content is replaced.",
        _write,
        (_FILE, Parameter("content", "string", "the whole content", required=True)),
    ),
    "edit_file": Row(
        "edit",
        "Replace text in a file. It must occur exactly once, unless replace_all is true.",
        _edit,
        (
            _FILE,
            Parameter("old_string", "string", "the exact text to replace, without line numbers", required=True),
            Parameter("new_string", "string", "the replacement", required=True),
            Parameter("replace_all", "boolean", "replace every occurrence", default=False),
        ),
    ),
    "hashline_edit": Row(
        "edit",
        "Replace, delete or insert lines by number and hash, as read_file shows them: number:hash|content.",
        _edit_lines,
        (
            _FILE,
            Parameter("start_line", "integer", "the first line", required=True, least=1),
            Parameter("start_hash", "string", "its hash", required=True),
            Parameter("new_content", "string", "the new lines; empty to delete", required=True),
            Parameter("end_line", "integer", "the last line to replace; omit it to replace only the first", least=1),
            Parameter("end_hash", "string", "its hash"),
            Parameter("insert_after", "boolean", "insert after the first line, and replace nothing", default=False),
        ),
    ),
    "glob": Row(
        "glob",
        "Find files by a glob pattern such as **/*.py, where ** matches any number of folders.",
        _glob,
        (Parameter("pattern", "string", "the pattern", required=True), _FOLDER),
    ),
    "grep": Row(
        "grep",
        "Search text files for lines that match a regular expression.",
        _grep,
        (
            Parameter("pattern", "string", "the regular expression", required=True),
            Parameter("path", "string", f"a folder or a file: {_PATH}", default="."),
            Parameter("glob", "string", "only search files that match this pattern, such as *.py"),
            Parameter("output_mode", "string", "lines, files, or counts", default="content", choices=_MODES),
            Parameter("ignore_case", "boolean", "ignore case", default=False),
            Parameter("fixed", "boolean", "treat the pattern as plain text", default=False),
            Parameter("ignore_hidden", "boolean", "skip names that start with a dot", default=True),
        ),
    ),
}
