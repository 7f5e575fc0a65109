"""Clears up after killed processes, and deletes files in the background."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from corral.engine import base, cgroup
from corral.engine.datafolder import SET_ASIDE
from corral.engine.forking import fork_in_background
from corral.engine.state import DataFolder, dead_folders, holding, is_held, read_state
from corral.engine.storage import loop
from corral.inside.files import remove_tree
from corral.inside.nolinks import opened

PATIENCE_SECONDS = 2.0


def discard_dead(data: DataFolder) -> list[str]:
    """Clean up every sandbox whose owner is dead, and leave the deletion to another process; returns the ids."""
    removed = []
    for folder, lock_fd in dead_folders(data):
        with opened(lock_fd):
            state = read_state(folder) or {}
            if state.get("kept"):
                continue
            loop.thaw_left_over(str(folder / "disk.img"))  # a process that waits for a frozen disk can't die
            groups = state.get("cgroups")
            if isinstance(groups, list) and cgroup.remove([str(path) for path in groups]):
                continue  # a process in it has not died yet: the next sweep tries again
            if state.get("stopped"):
                continue
            discard(data, folder)
            removed.append(folder.name)
    _remove_stale_groups(data)
    _remove_unfinished(data)
    _discard_old(data)
    return removed


def _remove_unfinished(data: DataFolder) -> None:
    """Delete unfinished files of killed processes: the pid is in the name."""
    parts = ("base", "packages", "layers", "snapshots", "volumes", "copies")
    wheels = ("packages/wheels/.new-*-*", "packages/wheels/*/.new-*-*")
    for pattern in (*(f"{part}/.new-*-*" for part in parts), *wheels, "disks/*.img.*"):
        for path in data.path.glob(pattern):
            maker = path.name.split("-")[1] if path.name.startswith(".new-") else path.name.rpartition(".")[2]
            if maker.isdigit() and not os.path.exists(f"/proc/{maker}"):
                with contextlib.suppress(OSError):
                    delete(str(path))


def _discard_old(data: DataFolder) -> None:
    """Remove bases of earlier versions, and those that others could have changed, once no running sandbox uses them."""
    old = list(_find_old(data))
    if not old:
        return
    used: set[str] = set()
    for sandbox_id in data.ids():
        if is_held(data.folder(sandbox_id)):
            recipe = (read_state(data.folder(sandbox_id)) or {}).get("recipe") or {}
            used.update(lower for tree in recipe.get("trees", ()) for lower in tree["lowers"])
    for path, known_as in old:
        if known_as not in used:
            discard(data, path)


def _find_old(data: DataFolder) -> Iterator[tuple[Path, str]]:
    """Each with the path that it had when sandboxes were created on it."""
    for path in (path for part in (base.FOLDER, "packages", "runtimes") for path in data.path.glob(f"{part}/*")):
        if path.name.startswith(SET_ASIDE):
            yield path, str(path.parent / path.name.removeprefix(SET_ASIDE).rpartition("-")[0])
        elif path.parent.name == base.FOLDER and not base.is_current(path.name):
            yield path, str(path)


def discard(data: DataFolder, folder: Path) -> None:
    """Move a file or folder to the trash, which is emptied later."""
    with contextlib.suppress(FileNotFoundError):
        folder.rename(data.trash / f"{folder.name}.{os.getpid()}.{os.urandom(3).hex()}")


def empty_trash(data: DataFolder, *, patience_seconds: float | None = None) -> bool:
    """Delete discarded files. False if another process was busy with it for too long.

    One process at a time: two that delete the same tree would both fail.
    """
    with holding(data.trash_lock, patience_seconds=patience_seconds) as alone:
        if not alone:
            return False
        for entry in list(data.trash.iterdir()):
            with contextlib.suppress(OSError):
                delete(str(entry))
    return True


def empty_trash_or_leave_it(data: DataFolder) -> None:
    """At the end of a process: empty the trash, or fork a process that does so when others are done with it."""
    if not empty_trash(data, patience_seconds=PATIENCE_SECONDS):
        delete_in_background(data)


def delete(path: str) -> None:
    """Delete a file, or a folder with its content."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    # For an ordinary user, folders that the code has locked are locked too.
    remove_tree(path, unlock=os.geteuid() != 0)


def delete_in_background(data: DataFolder) -> None:
    """Fork a process that empties the trash. Only for the single-threaded launcher and keeper."""
    fork_in_background(lambda: empty_trash(data))


def _remove_stale_groups(data: DataFolder) -> None:
    """Remove groups with our mark whose sandbox has no folder any more."""
    try:
        hierarchy = cgroup.detect()
    except OSError:
        return
    mark = f"corral-{data.instance()}-"
    # The groups first, then the ids: a sandbox that is being created has its folder before its groups.
    groups = hierarchy.list_groups()
    known = set(data.ids())
    for entry in groups:
        owner = entry.name.removeprefix("corral-probe-")
        stale_probe = owner != entry.name and not os.path.exists(f"/proc/{owner}")
        if stale_probe or (entry.name.startswith(mark) and entry.name.removeprefix(mark) not in known):
            cgroup.remove([str(entry)])
