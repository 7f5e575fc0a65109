"""Uppers as plain folders. Works everywhere; the quota is soft."""

from __future__ import annotations

import os

from corral.engine import syscalls
from corral.engine.recipe import Identity, Layer, Recipe
from corral.engine.storage.layout import make_uppers


class FolderStorage:
    """A folder `disk` inside the sandbox's own folder."""

    kind = "folder"
    hard = False

    def prepare(self, recipe: Recipe, identity: Identity) -> int | None:
        path = os.path.join(recipe.folder, "disk")
        os.makedirs(path, 0o700, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not identity.rootless:
                os.chown(directory, identity.outer_uid, identity.outer_gid)  # init must pass through it
            make_uppers(recipe, identity, directory_fd=directory)
        finally:
            os.close(directory)
        if identity.rootless:
            return None
        tree = syscalls.open_tree(path)
        syscalls.mount_setattr(tree, attr_set=syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV)
        return tree


def mount_layer(layer: Layer) -> int:
    """A detached read-only mount of a layer."""
    tree = syscalls.open_tree(os.path.join(layer.folder, "disk"))
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_RDONLY
    try:
        syscalls.mount_setattr(tree, attr_set=attributes)
    except BaseException:
        os.close(tree)
        raise
    return tree
