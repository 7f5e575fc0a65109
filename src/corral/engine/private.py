"""Finds the files that other users of the host may not read, in the folders that every sandbox shows, to cover them.

As root, a sandbox shows the host's `/usr` with owners shifted: root's files are root's inside, and those of the host's
user 1000 are the code's. Files that only their owner may read would then be readable inside.

Searching all of `/usr` takes a second, so the result is cached: in the machine's folder of locks if there is one, else
in the data folder. It is used for an hour and then renewed in the background; after packages were installed, it is
renewed before the next sandbox. Files that become private in another way are covered after the next renewal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral.engine.forking import fork_in_background

FRESH_SECONDS = 3600.0
PACKAGE_LISTS = (
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/var/lib/pacman/local",
    "/lib/apk/db/installed",
)
"""Files that package managers change whenever they install something."""


def find_private(tree: str, kept_in: Path, package_lists: Sequence[str] = PACKAGE_LISTS) -> list[str]:
    """Paths below `tree`, relative to it, that others may not read.

    Only for single-threaded processes: an old result is renewed by a child.
    """
    file = kept_in / name_of(tree)
    found = _read(file)
    if found is None or _is_installed_since(found[0], package_lists):
        return _renew(tree, file)
    made, entries = found
    if not 0 <= time.time() - made < FRESH_SECONDS:
        fork_in_background(lambda: _renew(tree, file))
    return entries


def _is_installed_since(moment: float, package_lists: Sequence[str]) -> bool:
    for path in package_lists:
        with contextlib.suppress(OSError):
            changed = os.stat(path).st_mtime
            if moment <= changed <= time.time():  # one from the future would mean a new search each time
                return True
    return False


def name_of(tree: str) -> str:
    """The name of the file that caches the private paths of a tree."""
    return f"private-{hashlib.sha256(os.fsencode(tree)).hexdigest()[:16]}.json"


def look_through(tree: str) -> Iterator[str]:
    """Regular files and folders that others may not read. Nothing below such a folder, nor on another file system."""
    device = os.lstat(tree).st_dev
    stack = [""]
    while stack:
        folder = stack.pop()
        try:
            scan = os.scandir(os.path.join(tree, folder))
        except OSError:
            continue  # it was removed meanwhile
        with scan:
            for entry in scan:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    path = os.path.join(folder, entry.name)
                    if stat.S_ISDIR(about.st_mode):
                        if about.st_mode & 0o005 != 0o005:
                            yield path
                        elif about.st_dev == device:
                            stack.append(path)
                    elif stat.S_ISREG(about.st_mode) and not about.st_mode & 0o004:
                        yield path


def _read(file: Path) -> tuple[float, list[str]] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
        return float(found["made"]), [str(path) for path in found["paths"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _renew(tree: str, file: Path) -> list[str]:
    made, paths = time.time(), list(look_through(tree))
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # no room: then the next sandbox searches again
        draft.write_text(json.dumps({"made": made, "paths": paths}), encoding="utf-8", errors="surrogateescape")
        draft.rename(file)
    return paths
