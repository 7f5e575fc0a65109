"""Reports of `corral.inside` about files as Corral's types and errors, from calls here or from an agent."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from corral.errors import (
    FILE_ERRORS_BY_ERRNO,
    CorralError,
    EditConflictError,
    EditError,
    SandboxFileError,
    SandboxFileKindError,
    SandboxFileTooLargeError,
    SandboxIsFolderError,
    became_a_link,
    shorten_path,
)
from corral.inside.lines import edit_text
from corral.inside.refusal import RefusedError, describe_refusal
from corral.results import EditResult, FileInfo, FileKind, GrepMatch


@contextlib.contextmanager
def told(path: str, *, sandbox_id: str | None, op: str) -> Iterator[None]:
    """Around calls of `corral.inside` that act on files here: translates their errors, and the kernel's."""
    try:
        yield
    except CorralError as error:
        error.sandbox_id = error.sandbox_id or sandbox_id
        raise
    except (OSError, RefusedError) as error:
        refusal = describe_refusal(error)
        assert refusal is not None, "each of them is described"
        raise file_error(refusal, path=path, sandbox_id=sandbox_id, op=op) from error


@contextlib.contextmanager
def parsing(path: str, *, sandbox_id: str | None, op: str) -> Iterator[None]:
    """Around parsing a reply of an agent, which runs inside and may say anything. Raises: SandboxFileError."""
    try:
        yield
    except CorralError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        text = f"{shorten_path(path)}: the sandbox's reply is malformed"
        raise SandboxFileError(text, path=path, sandbox_id=sandbox_id, op=op) from error


def file_error(refusal: Mapping[str, Any], *, path: str, sandbox_id: str | None, op: str) -> SandboxFileError:
    """The error for a refused file operation. The refusal comes from inside, and may contain anything."""
    code, text, number = str(refusal.get("error")), str(refusal.get("text", "")), _int(refusal.get("errno"))
    message = f"{shorten_path(path)}: {text}"
    if code == "link":
        return became_a_link(path, sandbox_id=sandbox_id, op=op)
    if code in ("no_match", "ambiguous"):
        hint = "include more of the text, or pass replace_all=True" if code == "ambiguous" else "read the file again"
        return EditError(message, path=path, sandbox_id=sandbox_id, op=op, hint=hint, count=_int(refusal.get("count")))
    if code == "conflict":
        return EditConflictError(message, path=path, sandbox_id=sandbox_id, op=op, hint="read it again and retry")
    if code in ("pattern", "replacement"):
        message = text
    kind = SandboxFileError
    if code == "not_regular":
        kind = SandboxIsFolderError if number == errno.EISDIR else SandboxFileKindError
    elif code == "too_big":
        kind = SandboxFileTooLargeError
    elif code == "os":
        kind = FILE_ERRORS_BY_ERRNO.get(number, SandboxFileError)
    return kind(message, path=path, sandbox_id=sandbox_id, op=op)


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
    """Edit the content of a file; returns the changed content and the result.

    Raises:
        EditError: `old` is not found, or found more than once without `replace_all`.
        EditConflictError: the content is not `expected_sha256`.
    """
    with told(path, sandbox_id=sandbox_id, op="edit"):
        changed, about = edit_text(content, old, new, replace_all=replace_all, expected_sha256=expected_sha256)
    return changed, EditResult(path, **about)


def file_info(item: Mapping[str, Any]) -> FileInfo:
    """A file's information, as an agent reports it."""
    kind: FileKind = item["kind"] if item["kind"] in get_args(FileKind) else "other"
    target = item.get("target")
    return FileInfo(
        path=str(item["path"]),
        kind=kind,
        size=int(item["size"]),
        mode=int(item["mode"]),
        modified=float(item["modified"]),
        uid=int(item["uid"]),
        gid=int(item["gid"]),
        target=str(target) if target is not None else None,
        file_id=str(item["id"])[:100],
        links=int(item["links"]),
    )


def grep_match(item: Mapping[str, Any]) -> GrepMatch:
    """A matching line, as an agent reports it."""
    return GrepMatch(str(item["path"]), int(item["line"]), str(item["text"]))


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
