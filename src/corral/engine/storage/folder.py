"""Uppers as plain folders. Works everywhere; the quota is soft."""

from __future__ import annotations

import os

from corral.engine.perform import open_layer
from corral.engine.recipe import Identity, Recipe
from corral.engine.storage.layout import make_uppers
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
