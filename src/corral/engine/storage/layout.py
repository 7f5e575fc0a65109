"""The folders that an overlay needs in any storage: N/u for written files and N/w for the kernel's own work."""

from __future__ import annotations

import os

from corral.engine.recipe import Identity, Recipe
from corral.inside.files import remove_tree


def make_uppers(recipe: Recipe, identity: Identity, *, directory_fd: int) -> None:
    """Create them for each writable tree, owned by root inside. Written files stay.

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
                os.chown(name, identity.outer_uid, identity.outer_gid, dir_fd=directory_fd)
