"""Which files of a tree make git run programs, so that a download of a folder leaves them out.

A repository's settings and hooks name programs (`core.fsmonitor`, filters, `pre-commit`) that the next `git status`
there would run, as the user, on the host. Commits are harmless: objects, refs and logs are copied.

Of a folder named `.git` only known data is copied. Any other folder is a repository if it has a `HEAD` and, beside it,
settings or hooks, which is known when the whole tree is there. Such files are held back until then, and only one of the
two kinds is copied.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Verdict = Literal["take", "leave", "hold", "index"]
Parts = tuple[str, ...]

_HEAD = "head"
_RUNS = ("config", "config.worktree", "commondir", "hooks")
"""Beside a HEAD, these define what git runs, or where that is defined."""
_FILES = frozenset(
    {_HEAD, "index", "packed-refs", "shallow", "description", "orig_head", "fetch_head", "merge_head", "auto_merge"}
    | {"cherry_pick_head", "revert_head", "commit_editmsg", "merge_msg", "merge_mode", "squash_msg"}
)
_FOLDERS = frozenset({"objects", "refs", "reftable", "logs"})
_INFO = frozenset({"exclude", "refs", "sparse-checkout"})
# Characters that Apple's file system ignores in a name.
_UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_MAX_INDEX_BYTES = 256 * 1024 * 1024
_ENTRY = struct.Struct(">40x20sH")
_EXTENDED = 0x4000


def is_git_folder(name: str) -> bool:
    """True if a name means `.git` on some file system: in any case, or as Windows and Apple also spell it."""
    bare = fold(name)
    return bare == ".git" or re.fullmatch(r"git~\d", bare) is not None


def find_git_folder(parts: Sequence[str]) -> Parts:
    """A path from its last `.git` on; empty if it has none."""
    places = [number for number, part in enumerate(parts) if is_git_folder(part)]
    return tuple(parts[places[-1] :]) if places else ()


def is_sample(parts: Sequence[str]) -> bool:
    """True for a sample hook, which git copies into every repository and never runs."""
    return list(parts[-2:-1]) == ["hooks"] and parts[-1].endswith(".sample")


def fold(name: str) -> str:
    """A name as the most tolerant file system compares it."""
    return _UNSEEN.sub("", name).partition(":")[0].rstrip(" .").casefold()


def judge(parts: Sequence[str], *, is_folder: bool) -> Verdict:
    """What to do with a file or folder of a tree, by its path.

    `hold`: `find_left_out` decides when the whole tree is there. `index`: take it if `is_safe_index`.
    """
    low = [fold(part) for part in parts]
    inside = False
    for number, part in enumerate(parts):
        if is_git_folder(part):
            inside = True
            if not (is_folder if number == len(parts) - 1 else _is_data(low[number + 1 :])):
                return "leave"
    if inside and low[-1] == "index" and not is_folder:
        return "index"
    return "hold" if _held_at(parts, is_folder=is_folder) else "take"


def _is_data(rest: list[str]) -> bool:
    """True if a path inside a `.git` folder is data, which can't name programs."""
    first, last = rest[0], rest[-1]
    if first in ("worktrees", "modules"):
        # A submodule's name may have slashes: then its folder begins further down.
        begins = range(2, len(rest)) if first == "modules" else range(2, 3)
        return "hooks" not in rest and any(_is_data(rest[begin:]) for begin in begins if rest[begin:])
    if first == "info":
        return len(rest) == 1 or (len(rest) == 2 and last in _INFO)
    if first in _FOLDERS:
        return rest[:2] != ["objects", "info"] or "alternates" not in last
    return first in _FILES and len(rest) == 1


def _held_at(parts: Sequence[str], *, is_folder: bool) -> list[int]:
    """The positions in a path of names that make a repository, or make one run programs."""
    last = len(parts) - 1
    names = [fold(part) for part in parts]
    return [
        number
        for number, name in enumerate(names)
        if name == "hooks" or (number == last and not is_folder and (name == _HEAD or name in _RUNS))
    ]


def find_left_out(held: Iterable[Parts], exists: Callable[[Parts], bool]) -> set[Parts]:
    """The paths among those held back that must be left out; `exists` tells what the host has already.

    A folder gets a HEAD from a sandbox, or the settings beside one; never both, in one download or in several.
    """
    paths = list(held)
    heads = {tuple(map(fold, path[:-1])) for path in paths if fold(path[-1]) == _HEAD}
    left: set[Parts] = set()
    for path in paths:
        if fold(path[-1]) == _HEAD:
            folder = path[:-1]
            if not exists((*folder, "HEAD")) and any(exists((*folder, name)) for name in _RUNS):
                left.add(path)
            continue
        # As a folder or a file: a folder that is named `config` was not held, and is not among these.
        for number in _held_at(path, is_folder=False):
            folder = path[:number]
            already = any(exists((*folder, name)) for name in _RUNS)
            if exists((*folder, "HEAD")) or (tuple(map(fold, folder)) in heads and not already):
                left.add(path)
    return left


def is_safe_index(data: bytes) -> bool:
    """True if git's index has no path in a `.git` folder: git writes to its paths without another check."""
    if len(data) > _MAX_INDEX_BYTES or len(data) < 12 or data[:4] != b"DIRC":
        return False
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3, 4):
        return False
    try:
        end = _check_entries(data, version, count)
    except (struct.error, ValueError, IndexError):
        return False
    # The extension `link` names another file with more entries.
    while end + 8 <= len(data) - 20:
        name, size = struct.unpack_from(">4sI", data, end)
        if name == b"link":
            return False
        end += 8 + size
    return end == len(data) - 20


def _check_entries(data: bytes, version: int, count: int) -> int:
    """Where the entries end. Raises: ValueError, struct.error or IndexError for an invalid one."""
    place, name = 12, b""
    for _ in range(count):
        begin = place
        flags = _ENTRY.unpack_from(data, place)[1]
        place += _ENTRY.size + (2 if flags & _EXTENDED else 0)
        if version == 4:
            cut, place = _read_number(data, place)
            name = name[: len(name) - cut] if cut <= len(name) else b""
        end = data.index(b"\0", place)
        name = (name if version == 4 else b"") + data[place:end]
        place = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
        parts = name.decode("utf-8", "surrogateescape").rstrip("/").split("/")
        if any(part in ("", ".", "..") or is_git_folder(part) for part in parts):
            raise ValueError("not a path that git accepts")
    return place


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    """A number in git's variable-length encoding, and where it ends."""
    value = data[place] & 0x7F
    while data[place] & 0x80:
        place += 1
        value = ((value + 1) << 7) | (data[place] & 0x7F)
    return value, place + 1
