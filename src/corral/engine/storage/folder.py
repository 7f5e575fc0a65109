"""Uppers as plain folders. Works everywhere; the quota is soft."""

from __future__ import annotations

import os

from corral.engine.perform import open_layer
from corral.engine.recipe import CODE_GID, CODE_UID, Identity, Recipe
from corral.inside.files import remove_tree
from corral.inside.nolinks import opened


class FolderStorage:
    """A folder `disk` inside the sandbox's own folder."""

    kind = "folder"
    hard = False

    def prepare(self, recipe: Recipe, identity: Identity) -> int | None:
        path = os.path.join(recipe.folder, "disk")
        os.makedirs(path, 0o700, exist_ok=True)
        with opened(os.open(path, os.O_RDONLY | os.O_DIRECTORY)) as directory:
            if not identity.rootless:
                os.chown(directory, identity.outer_uid, identity.outer_gid)  # init must pass through it
            make_uppers(recipe, identity, directory_fd=directory)
        return None if identity.rootless else open_layer(path, writable=True)


def make_uppers(recipe: Recipe, identity: Identity, *, directory_fd: int) -> None:
    """Create what an overlay needs for each writable tree: N/u for written files, and N/w for the kernel's own work.

    They are owned by root inside, but that of a folder of the host by the code's user. Written files stay.
    The kernel's own work is deleted: an overlay that was mounted `volatile` marks it, and can't be mounted again.
    """
    for index, tree in enumerate(recipe.trees):
        if not tree.writable:
            continue
        for name in (str(index), f"{index}/u", f"{index}/w"):
            try:
                os.mkdir(name, 0o755, dir_fd=directory_fd)
            except FileExistsError:
                if not name.endswith("/w"):
                    continue
                remove_tree(f"/proc/self/fd/{directory_fd}/{name}", unlock=identity.rootless)
                os.mkdir(name, 0o755, dir_fd=directory_fd)
            if not identity.rootless:
                # A folder of the host belongs to the code, like its owner's files in it.
                user = (CODE_UID, CODE_GID) if tree.outside and name.endswith("/u") else (0, 0)
                owner = identity.outer_uid + user[0], identity.outer_gid + user[1]
                os.chown(name, *owner, dir_fd=directory_fd)
