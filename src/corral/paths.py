"""Paths inside a sandbox and paths of the host are different types, and never meet by accident."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from corral.errors import SandboxFileError

HostPath = Path
"""A path on this machine."""

MAX_PATH_BYTES = 4095
TEMPORARY = "/tmp"
"""The default folder of temporary files in a sandbox."""


class SandboxPath(str):
    """An absolute, normal path inside a sandbox. Always created by `inside`.

    A `str` and not a `PurePosixPath`, because names inside are bytes that need not be UTF-8 (surrogates carry them).
    """

    __slots__ = ()


class FollowedPath(SandboxPath):
    """A path whose links were all resolved before its permission was checked.

    Operations on it follow no links: a link added later raises `SandboxLinkError` instead of bypassing the rules.
    """

    __slots__ = ()


def inside(path: str | PurePosixPath, *, workdir: str) -> SandboxPath:
    """Parse a path given by a caller: relative ones are under `workdir`; `~` is not expanded.

    Raises:
        TypeError: neither a string nor a path.
        SandboxFileError: empty, with a NUL, or longer than the kernel's limit.
    """
    if isinstance(path, FollowedPath):
        return path
    if not isinstance(path, str | PurePath):
        raise TypeError(f"a path must be a string or a PurePosixPath, not {type(path).__name__}")
    text = str(path)
    if isinstance(path, Path):
        raise SandboxFileError(f"{text!r} is a host path", path=text, hint="give a string or a PurePosixPath")
    if not text:
        raise SandboxFileError("the path is empty", path=text, hint="give a path inside the sandbox")
    if "\0" in text:
        raise SandboxFileError(f"the path {text!r} has a NUL byte", path=text, hint="remove it")
    if len(text.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise SandboxFileError(f"the path is longer than {MAX_PATH_BYTES} bytes", path=text[:80] + "…")
    joined = posixpath.join(workdir, text)
    # Not normpath: "a/../b" means something else when a is a link. Only doubled slashes and dots are dropped.
    parts = [part for part in joined.split("/") if part not in ("", ".")]
    return SandboxPath("/" + "/".join(parts))


def describe(path: str) -> dict[str, Any]:
    """A path as requests to a file agent carry it, with whether links in it may be followed."""
    return {"path": path, "links": not isinstance(path, FollowedPath)}
