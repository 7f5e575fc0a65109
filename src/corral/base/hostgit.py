"""The files of a folder that the host's own git settings name, so that a download does not replace them.

`core.hooksPath=.husky`, `include.path=../.gitconfig` or `filter.x.clean=./tools/clean` make git run files of the
project. Hooks and settings that git itself reads are known exactly. Of a command, only words that are files of the tree
are known, not what these run in turn.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral.base.gitsettings import Parts, fold

_SECONDS = 20.0
_MAX_WAYS = 100
_COMMANDS = re.compile(
    r"core\.(fsmonitor|editor|pager|askpass|gitproxy)|sequence\.editor|(alias|pager)\..*"
    r"|.*\.(\w*command|\w*cmd|textconv|clean|smudge|process|driver|helper|program|external|update|path|difffilter"
    r"|browser|uploadpack|receivepack|packobjectshook|tunnel|smtpserver)",
    re.DOTALL,
)
"""Settings whose values git runs, or passes to a shell."""
_BETWEEN_WORDS = re.compile(r"[\s'\"=;|&()<>`$!]+")


class NamedByGit:
    """Files and folders below `target` that settings of the host make git read as settings, or run."""

    def __init__(self, target: Path) -> None:
        self._target = target.resolve()
        self._named: set[Parts] = set()
        self._add(_find_top(self._target))
        # Bounded: a hostile tree has any number of folders.
        self._look = functools.lru_cache(maxsize=4096)(self._look_into)

    def covers(self, parts: Sequence[str], *, is_link: bool) -> bool:
        """True if the path is one of them or in one, or is a link on the way to one."""
        for number in range(1, len(parts)):
            self._look(tuple(parts[:number]))
        path = tuple(map(fold, parts))
        if any(path[:number] in self._named for number in range(len(path) + 1)):
            return True
        return is_link and any(named[: len(path)] == path for named in self._named)

    def _look_into(self, folder: Parts) -> None:
        """A folder of the tree may also be a repository of the host: a download creates neither of these two files."""
        git = self._target.joinpath(*folder, ".git")
        if (git / "config").is_file() or git.is_file():
            self._add(git.parent)

    def _add(self, top: Path) -> None:
        for path in _read_paths(top):
            for way in _follow(path):
                if way.is_relative_to(self._target):
                    self._named.add(tuple(map(fold, way.relative_to(self._target).parts)))
                elif self._target.is_relative_to(way):
                    self._named.add(())  # the whole folder is in it


def _find_top(folder: Path) -> Path:
    """The working tree around a folder; else the folder itself, where the user's settings apply once it is one."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def _follow(path: Path) -> set[Path]:
    """A path, and all paths that links of the host turn it into: a download could replace any of them."""
    found: set[Path] = set()
    todo = [path]
    while todo and len(found) < _MAX_WAYS:
        way = todo.pop()
        if way not in found:
            found.add(way)
            links = [part for part in (way, *way.parents) if part.is_symlink()]
            todo += [_join(link.parent, str(link.readlink() / way.relative_to(link))) for link in links]
    return found


def _read_paths(top: Path) -> Iterator[Path]:
    for origin, key, value in _read_settings(top):
        if not value:
            continue
        if key == "core.hookspath":
            yield _join(top, value)
        elif re.fullmatch(r"include(if\..*)?\.path", key, re.DOTALL):
            yield _join((top / origin.removeprefix("file:")).parent, value)
        elif _COMMANDS.fullmatch(key) and not (key.startswith("alias.") and not value.startswith("!")):
            first, *others = [word for word in _BETWEEN_WORDS.split(value) if word] or [""]
            words = others if "/" not in first else [first, *others]  # a program without a slash is found by PATH
            yield from (path for path in {_join(top, word) for word in words} if not path.is_dir())


def _join(folder: Path, path: str) -> Path:
    """A path relative to a folder, with each `..` resolved as written."""
    return Path(os.path.normpath(folder / (Path.home() / path[2:] if path.startswith("~/") else path)))


def _read_settings(top: Path) -> list[tuple[str, str, str]]:
    """The origin, name and value of each setting. Empty if git can't read them: then it can't run them either."""
    git = shutil.which("git")
    if git is None or not Path(git).is_absolute():  # else PATH names the working folder
        return []
    # For any owner of the repository: root may write what its owner's git will run.
    argv = [git, "-c", "safe.directory=*", "-C", str(top), "config", "--list", "--includes", "--show-origin", "-z"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    words = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    settings = [(origin, setting.partition("\n")) for origin, setting in zip(words[::2], words[1::2], strict=False)]
    return [(origin, key, value) for origin, (key, _, value) in settings]
