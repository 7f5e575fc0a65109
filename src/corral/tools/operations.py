"""The work of file tools, written once: each operation checks the rules, does its work, and gives plain results.

`FileTools` and the adapters turn the results into texts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from corral.base.files import DEFAULT_MATCH_LIMIT, AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import EditConflictError, EditError, PolicyError, SandboxFileError
from corral.results import EditResult, FileInfo, GlobResult, GrepMatch, GrepResult
from corral.tools.gate import Entered, Gate
from corral.tools.hashline import LineChange, LineEdit, edit_lines
from corral.tools.permission import Operation, expand_braces
from corral.tools.reading import JUDGED_FILES, MAX_EDIT_BYTES, Window, find_hidden_files, limit_search, read_window

_EDIT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class FileOperations:
    """The file operations on one sandbox, under the rules of a gate. Relative paths are below `workdir`.

    All of them raise the errors of the gate, and SandboxFileError.
    """

    box: AsyncSandbox
    workdir: str
    gate: Gate = field(default_factory=Gate)

    @property
    def files(self) -> AsyncFiles:
        """The files of the sandbox, without rules."""
        return self.box.files

    async def enter(self, operation: Operation, path: str, *more: Operation) -> Entered:
        """Check the rules for a path. Raises: as `Gate.enter`."""
        return await self.gate.enter(self.files, operation, path, *more, workdir=self.workdir)

    async def list(self, path: str) -> list[FileInfo]:
        """The entries of a folder that may be shown."""
        entered = await self.enter("ls", path)
        entries = await self.files.list(entered.path)
        return [info for info in entries if await entered.shows_file(self.files, info)]

    async def read_window(self, path: str, *, offset: int, limit: int, max_chars: int) -> Window:
        """Some lines of a file."""
        entered = await self.enter("read", path)
        return await read_window(self.files, entered.path, offset=offset, limit=limit, max_chars=max_chars)

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """A whole file. Raises: SandboxFileTooLargeError."""
        return await self.files.read((await self.enter("read", path)).path, max_bytes=max_bytes)

    async def write(self, path: str, content: bytes | str) -> int:
        """Write a whole file, and create the folders above it; returns its size in bytes."""
        return await self.files.write((await self.enter("write", path)).path, content)

    async def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> EditResult:
        """Replace a text. In a file with CRLF line ends, a text with LF is found and replaced as CRLF.

        Raises:
            EditError: the text is not found, or found more than once.
        """
        target = (await self.enter("edit", path, "read")).path
        try:
            return await self.files.edit(target, old, new, replace_all=replace_all)
        except EditError as error:
            # A model sees lines, but not their line ends.
            if error.count or "\n" not in old or "\r" in old:
                raise
        old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old, new))
        return await self.files.edit(target, old, new, replace_all=replace_all)

    async def edit_lines(self, path: str, change: LineChange, *, hash_length: int) -> LineEdit:
        """Replace, insert or delete lines, if they still have the given hashes.

        By compare-and-swap: if the file changes meanwhile, it is read and its hashes are checked again.

        Raises:
            EditConflictError: the file kept changing.
        """
        target = (await self.enter("edit", path, "read")).path
        for _ in range(_EDIT_ATTEMPTS):
            before = await self.files.read(target, max_bytes=MAX_EDIT_BYTES)
            done = edit_lines(before.decode("utf-8", "surrogateescape"), change, hash_length=hash_length)
            if done.error is not None:
                return done
            with contextlib.suppress(EditConflictError):
                await self._swap(target, before, done.content.encode("utf-8", "surrogateescape"))
                return done
        raise EditConflictError("it kept changing while it was edited", path=path, op="edit")

    async def _swap(self, path: str, before: bytes, after: bytes) -> None:
        """Replace the content, if it has not changed. Raises: EditConflictError."""
        if before == after:
            return
        if before:
            await self.files.edit(path, before, after, expected_sha256=hashlib.sha256(before).hexdigest())
            return
        if (await self.files.stat(path)).size:
            raise EditConflictError(f"{path}: the file has changed since it was read", path=path, op="edit")
        await self.files.write(path, after)

    async def glob(
        self,
        pattern: str,
        path: str = ".",
        *,
        limit: int = DEFAULT_MATCH_LIMIT,
        any_depth: bool = False,
        only_files: bool = False,
    ) -> GlobResult:
        """Files that match and may be shown, by path. An absolute pattern includes the folder to search.

        With `any_depth`, a pattern without a slash matches in every folder below.

        Raises:
            PolicyError: there are too many files to apply the rules to.
        """
        if pattern.startswith("/"):
            # The rules are checked for the folder in the pattern, not for the root.
            path = re.split(r"[*?\[{]", pattern)[0].rpartition("/")[0] or "/"
            pattern = pattern[len(path) :].lstrip("/")
        elif any_depth and "/" not in pattern.strip("/"):
            pattern = f"**/{pattern}"
        entered = await self.enter("glob", path)
        ruled = entered.permissions is not None
        # Rules first, then the limit: files that are not shown must not count.
        most = JUDGED_FILES if ruled else limit
        found: dict[str, FileInfo] = {}
        unreadable: dict[str, None] = {}
        truncated = False
        async with limit_search():
            for one in expand_braces(pattern):
                result = await self.files.glob(one, path=entered.path, limit=most)
                if ruled and result.truncated:
                    raise PolicyError(f"more than {most} files match, too many to apply rules to", op="glob")
                truncated = truncated or result.truncated
                found |= {info.path: info for info in result.files if not (only_files and info.is_folder)}
                unreadable |= dict.fromkeys(result.unreadable)
        shown = [found[each] for each in sorted(found) if await entered.shows_file(self.files, found[each])]
        return GlobResult(
            tuple(shown[:limit]), truncated or len(shown) > limit, _may_be_named(entered, tuple(unreadable))
        )

    async def grep(
        self,
        pattern: str,
        path: str = ".",
        *,
        include: str | None = None,
        hidden: bool = False,
        ignore_case: bool = False,
        fixed: bool = False,
        or_fixed: bool = False,
        limit: int = DEFAULT_MATCH_LIMIT,
    ) -> GrepResult:
        """Lines that match, of files that may be searched and read, by path and line.

        With `or_fixed`, an invalid regular expression such as `print(` is searched as plain text.

        Raises:
            PolicyError: there are too many files to apply the rules to.
        """
        entered = await self.enter("grep", path)

        def shows(found: str) -> bool:
            return entered.shows(found, "read")  # a file that may not be read may not be searched

        search = functools.partial(
            self.files.grep, pattern, path=entered.path, ignore_case=ignore_case, hidden=hidden, limit=limit
        )
        matches: dict[tuple[str, int], GrepMatch] = {}
        unreadable: dict[str, None] = {}
        truncated = False
        async with limit_search():
            if entered.permissions is not None:
                without = await find_hidden_files(self.files, entered.path, hidden=hidden, shows=shows)
                search = functools.partial(search, without=without)
            for one in expand_braces(include) if include else (None,):
                try:
                    result = await search(include=one, fixed=fixed)
                except SandboxFileError as error:
                    if not or_fixed or type(error) is not SandboxFileError:
                        raise
                    result = await search(include=one, fixed=True)
                truncated = truncated or result.truncated
                # The rules are checked again: a file may have been created meanwhile.
                matches |= {(match.path, match.line): match for match in result.matches if shows(match.path)}
                unreadable |= dict.fromkeys(result.unreadable)
        found = tuple(matches[key] for key in sorted(matches))
        return GrepResult(
            found[:limit], truncated or len(found) > limit, _may_be_named(entered, tuple(unreadable), "read")
        )


def _may_be_named(entered: Entered, unreadable: Sequence[str], *more: Operation) -> tuple[str, ...]:
    """The unreadable folders that may be shown."""
    return tuple(text for text in unreadable if entered.shows(text.rpartition(": ")[0], *more))


async def follow_link(files: AsyncFiles, info: FileInfo) -> FileInfo:
    """The target of a link; the entry itself if it is no link, or a broken one."""
    if info.kind != "link":
        return info
    try:
        return await files.stat(info.path)
    except SandboxFileError:
        return info
