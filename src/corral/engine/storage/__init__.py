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

from corral.engine.recipe import Identity, Layer, Recipe
from corral.engine.storage import folder, loop
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
    return loop.mount_layer(layer) if layer.kind == LoopStorage.kind else folder.mount_layer(layer)
