"""Where a sandbox's writes go. A storage owns its quota and its deletion.

| storage | for | quota |
|---|---|---|
| `LoopStorage` | root, with loop devices and mkfs.ext4 | hard: a file system of that size and number of inodes |
| `FolderStorage` | all users | soft: measured periodically (`sampling.py`), one file limited by an rlimit |
| memory (no class: a tmpfs inside) | `ephemeral=True` | hard |
"""

from __future__ import annotations

import os
from typing import Protocol

from corral.engine.perform import open_layer
from corral.engine.recipe import Identity, Layer, Recipe
from corral.engine.storage import loop
from corral.engine.storage.folder import FolderStorage
from corral.engine.storage.loop import LoopStorage

__all__ = ["FolderStorage", "LoopStorage", "Storage", "choose", "mount_layer"]


class Storage(Protocol):
    """A place on disk for one sandbox's uppers."""

    kind: str
    hard: bool

    def prepare(self, recipe: Recipe, identity: Identity) -> int | None:
        """Create it, or open it again after a stop. A detached mount as root; None if init mounts `folder/disk` itself.

        Raises:
            OSError: no space, or the kernel refused.
        """


def choose(data_folder: str, *, root: bool) -> Storage:
    """The best storage this machine offers."""
    if root and LoopStorage.available():
        return LoopStorage(os.path.join(data_folder, "disks"))
    return FolderStorage()


def mount_layer(layer: Layer) -> int:
    """A detached read-only mount of a layer. Raises: OSError."""
    if layer.kind == LoopStorage.kind:
        return loop.mount_layer(layer)
    return open_layer(os.path.join(layer.folder, "disk"))
