"""Volumes and folders of the host in a sandbox: how they are opened, and attached on a path that the sandbox wrote.

A source is first attached in the staging area, as a layer is, and from there a folder of it is shown at its mount
point. Earlier files of the sandbox, and of the volume, may have planted links anywhere: no path here follows one.

As root the files of a volume belong to one range of ids on disk, and every sandbox sees them with its own ids. A folder
of the host belongs to one user; inside, that user is the code's. Other owners appear as nobody.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from corral.engine import syscalls
from corral.engine.errors import SetupError
from corral.engine.recipe import BASE_FIRST_UID, CODE_GID, CODE_UID, UID_RANGE_SIZE, Bound, Identity, Recipe
from corral.engine.uidrange import make_shift
from corral.inside.nolinks import (
    HERE,
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    on_error,
    openat2,
    opened,
)

if TYPE_CHECKING:
    from corral.engine import plan
    from corral.engine.perform import Stage

HINTS = {
    "CopyFolder": 'mount a folder below it, use mode="overlay", or raise disk_bytes',
    "OpenSource": "give the real path of a folder without links",
    "MountPoint": "mount at another path, or remove it in a sandbox without this mount",
    "Show": "give another subpath; a missing folder is created by the first writable mount of it",
}
"""Steps that fail because of what the user asked for, not because of the machine; and what to do then."""
VOLUME_FIRST_UID = BASE_FIRST_UID
"""The first id of a volume's files on disk, as root."""
_NO_LINKS = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_source(path: str, *, writable: bool, userns_fd: int | None = None) -> int:
    """A detached mount of a folder on the host, without the mounts below it. Raises: OSError, also for a link."""
    with opened(openat2(HERE, os.fsencode(path), _FOLDER, resolve=_NO_LINKS)) as folder:
        tree = syscalls.open_tree_at(folder)
    with on_error(os.close, tree):
        guard(tree, writable=writable, userns_fd=userns_fd)
    return tree


def guard(tree_fd: int, *, writable: bool, userns_fd: int | None) -> None:
    """No set-user-id, no devices, and read-only unless `writable`; shifted when a user namespace is given."""
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    if not writable:
        attributes |= syscalls.MOUNT_ATTR_RDONLY
    if userns_fd is not None:
        attributes |= syscalls.MOUNT_ATTR_IDMAP
    syscalls.mount_setattr(tree_fd, attr_set=attributes, userns_fd=userns_fd or 0)


def shift_volume(identity: Identity) -> int:
    """A user namespace that shows a volume's files with the ids of a sandbox. Raises: OSError."""
    return make_shift((VOLUME_FIRST_UID, identity.outer_uid, UID_RANGE_SIZE))


def shift_folder(path: str, identity: Identity, *, writable: bool) -> int:
    """A user namespace that shows the files of a folder's owner as the code's. Raises: OSError.

    Where nothing can be written, files of root belong to root inside, so that an overlay can change its copies. In a
    writable folder they belong to nobody: root inside must not create files of the host's root.
    """
    owner = os.stat(path, follow_symlinks=False)
    users = [(owner.st_uid, identity.outer_uid + CODE_UID, 1)]
    groups = [(owner.st_gid, identity.outer_gid + CODE_GID, 1)]
    for extents, first in ((users, identity.outer_uid), (groups, identity.outer_gid)):
        if not writable and extents[0][0] != 0:
            extents.append((0, first, 1))
    return make_shift(*users, groups=tuple(groups))


# In init, while it builds the root.


def open_step(step: plan.OpenSource, stage: Stage) -> None:
    """As root, the launcher has opened it already."""
    if step.name not in stage.layers:
        try:
            stage.layers[step.name] = open_source(step.path, writable=step.writable)
        except OSError as error:
            bound = find_bound(step, stage.recipe)
            raise SetupError(explain(bound, error), step="OpenSource", errno=error.errno or 0) from error


def explain(bound: Bound, error: OSError) -> str:
    """Why a source can't be mounted, in the user's words."""
    what = f"the volume for {bound.target}" if bound.volume else f"the folder {bound.source}"
    if error.errno == errno.ELOOP:
        return f"{what} can't be mounted: there is a link on its path"
    if error.errno == errno.EINVAL:
        return f"{what} can't be mounted: its file system does not support it, or others are mounted below it"
    return f"{what} can't be mounted: {error.strerror}"


def find_bound(step: plan.OpenSource, recipe: Recipe) -> Bound:
    """What a step opens: one of the mounts, or a folder that is overlaid."""
    if step.name.startswith("v"):
        return recipe.mounts[int(step.name[1:])]
    return Bound(step.path, step.path, volume=False)


def make_mount_point(step: plan.MountPoint, stage: Stage) -> None:
    """Create missing folders, owned by the code's user."""
    os.close(_open_mount_point(step.target))


def _open_mount_point(target: str) -> int:
    folder = os.open("root", _FOLDER)
    for part in target.strip("/").split("/"):
        with opened(folder) as above:
            try:
                folder = _enter(above, part, make=True)
            except OSError as error:
                raise SetupError(
                    f"can't mount at {target}: {_describe(part, error)}", step="MountPoint", errno=error.errno or 0
                ) from error
    return folder


def _enter(above: int, part: str, *, make: bool) -> int:
    """A folder in an open one. Raises: OSError, with ELOOP for a link."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=above)
            os.chown(part, CODE_UID, CODE_GID, dir_fd=above, follow_symlinks=False)
    return openat2(above, os.fsencode(part), _FOLDER, resolve=_NO_LINKS | RESOLVE_BENEATH)


def _describe(part: str, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{part!r} on this path is a link, and links are not followed"
    return f"{part!r} on this path: {error.strerror}"


def show(step: plan.Show, stage: Stage) -> None:
    """Attach it, or a folder below it."""
    with opened(_open_below(step, stage)) as source:
        tree = syscalls.open_tree_at(source)
    with opened(tree), opened(_open_mount_point(step.target)) as target:
        syscalls.move_mount_onto(tree, target)


def _open_below(step: plan.Show, stage: Stage) -> int:
    here = os.open(step.name, _FOLDER)
    writable = stage.recipe.mounts[int(step.name[1:])].writable
    for part in step.subpath.split("/") if step.subpath else ():
        with opened(here) as above:
            try:
                here = _enter(above, part, make=writable)
            except OSError as error:
                text = f"can't mount {step.subpath!r} of the volume at {step.target}: {_describe(part, error)}"
                raise SetupError(text, step="Show", errno=error.errno or 0) from error
    return here
