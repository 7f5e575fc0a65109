"""The folders an overlay needs in any storage: N/u for what was written and N/w for the kernel's own work."""

from __future__ import annotations

import os

from corral.engine.recipe import Identity, Recipe


def make_uppers(recipe: Recipe, identity: Identity, *, directory_fd: int) -> None:
    """Make them for each writable tree, owned by root inside."""
    for index, tree in enumerate(recipe.trees):
        if not tree.writable:
            continue
        for name in (str(index), f"{index}/u", f"{index}/w"):
            os.mkdir(name, 0o755, dir_fd=directory_fd)
            if not identity.rootless:
                os.chown(name, identity.outer_uid, identity.outer_gid, dir_fd=directory_fd)
