"""The texts of the console tools, exactly as models know them; text from inside is made harmless."""

from __future__ import annotations

from collections.abc import Sequence

from corral.adapters.pydantic_ai.results import ExecuteResponse, FileInfo, GrepMatch
from corral.tools.hashline import line_hash
from corral.tools.reading import Window
from corral.tools.render import GrepMode, count_lines, make_harmless, quote

MAX_FILES = 100
MAX_MATCHES = 50
MAX_LINE_CHARS = 100
NOT_ALL = "  [the search ended early, and there are more: give a narrower pattern or path]"


DESCRIPTIONS = {
    "ls": """\
List the files and folders in a folder, with sizes.

To find files by name anywhere below a folder, use `glob`.""",
    "read_file": """\
Read a text file; lines come with their numbers, as from `cat -n`. Images are shown as images.

Read a file before you edit it. Of a long file, read the part you need with `offset` and `limit`.""",
    "read_file:hashline": """\
Read a text file; each line comes as `number:hash|content`. Images are shown as images.

Read a file before you edit it: `hashline_edit` needs the number and the hash of a line. Of a long file, read the part
you need with `offset` and `limit`.""",
    "write_file": """\
Write a whole file; folders on the way are made. What was in the file is lost.

For new files and complete rewrites. To change a part of a file, edit it instead.""",
    "edit_file": """\
Replace a text in a file; everything else in it stays as it is.

`old_string` must be there exactly as given, spaces and line breaks included, and exactly once unless `replace_all` is
set. If it is there more often, give more of the text around it.""",
    "hashline_edit": """\
Edit lines of a file by their numbers and hashes, as `read_file` shows them.

Replace one line, or with `end_line` and `end_hash` several; delete with an empty `new_content`; insert with
`insert_after`. If a hash does not match, the file has changed: read it again. Make several edits from the bottom up, so
that the numbers above stay right.""",
    "glob": """\
Find files by a pattern: `*` matches within a name, `**` crosses folders, `{a,b}` is one or the other.

A name without a folder, such as `*.py`, is found at any depth.""",
    "grep": """\
Search the contents of files for a regular expression.

`output_mode` gives the files that match (the default), the lines with their numbers (`content`), or how many there are
(`count`).""",
    "execute": """\
Run a shell command in the working folder and get what it prints.

For running programs, tests and builds. To read, write, find and search files, use the other tools. Commands that depend
on each other go into one call with `&&`. Of a long output only the beginning is shown: write it to a file, and read
that. After `timeout` seconds the command and all it started are ended.""",
}


def render_listing(path: str, entries: Sequence[FileInfo]) -> str:
    """The entries of a folder."""
    if not entries:
        return f"Directory '{quote(path)}' is empty or does not exist"
    lines = [
        f"  {quote(entry['name'])}/" if entry["is_dir"] else f"  {quote(entry['name'])} ({entry['size']} bytes)"
        for entry in entries
    ]
    return "\n".join([f"Contents of {quote(path)}:", *lines])


def render_written(path: str, content: str) -> str:
    """The message for a written file."""
    return f"Wrote {count_lines(content)} lines to {quote(path)}"


def render_found(pattern: str, path: str, found: Sequence[FileInfo], *, truncated: bool = False) -> str:
    """The files that match a pattern. `truncated`: the search was not finished."""
    if not found:
        return f"No files matching '{quote(pattern)}' in {quote(path)}"
    lines = [f"  {quote(info['path'], max_chars=1000)}" for info in found[:MAX_FILES]]
    if len(found) > MAX_FILES:
        lines.append(f"  ... and {len(found) - MAX_FILES} more")
    if truncated:
        lines.append(NOT_ALL)
    return "\n".join([f"Found {len(found)} file(s) matching '{quote(pattern)}':", *lines])


def render_matches(pattern: str, matches: Sequence[GrepMatch], *, mode: GrepMode, truncated: bool = False) -> str:
    """The matching lines, their files, or their number. `truncated`: the search was not finished."""
    if not matches:
        lines = [f"No matches for '{quote(pattern)}'"]
    elif mode == "count":
        lines = [f"Found {len(matches)} match(es) for '{quote(pattern)}'"]
    elif mode == "files_with_matches":
        paths = dict.fromkeys(match["path"] for match in matches)
        found = [f"  {quote(path, max_chars=1000)}" for path in paths]
        lines = [f"Files containing '{quote(pattern)}':", *_cut(found, "files")]
    else:
        found = [
            f"  {quote(match['path'], max_chars=1000)}:{match['line_number']}: "
            f"{make_harmless(match['line'][:MAX_LINE_CHARS])}"
            for match in matches
        ]
        lines = [f"Matches for '{quote(pattern)}':", *_cut(found, "matches")]
    return "\n".join([*lines, NOT_ALL] if truncated else lines)


def _cut(lines: list[str], what: str) -> list[str]:
    more = [f"  ... and {len(lines) - MAX_MATCHES} more {what}"] if len(lines) > MAX_MATCHES else []
    return lines[:MAX_MATCHES] + more


def render_execution(response: ExecuteResponse) -> str:
    """The output of a command, with the exit code if it failed, and what the network refused."""
    text = make_harmless(response.output)
    if response.truncated:
        text = f"{text}\n\n... (output truncated)"
    if response.remark:
        text = "\n".join(filter(None, (text.rstrip("\n"), f"[{response.remark}]")))
    if response.exit_code:
        return f"Command failed (exit code {response.exit_code}):\n{text}"
    return text


def render_tagged(window: Window, *, offset: int, hash_length: int) -> str:
    """Lines with their numbers and hashes."""
    text = "\n".join(
        f"{number}:{line_hash(line, length=hash_length)}|{make_harmless(line)}"
        for number, line in enumerate(window.lines, offset + 1)
    )
    shown = offset + len(window.lines)
    if window.total is None:
        return f"{text}\n\n... (more lines)"
    if shown < window.total:
        return f"{text}\n\n... ({window.total - shown} more lines)"
    return f"{text}\n\n... (output truncated)" if window.cut else text
