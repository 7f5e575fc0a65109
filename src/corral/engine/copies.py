"""Copies of folders of the host, for sandboxes that have one: made beside them, before they are created.

    copies/.new-PID-…/N    a copy for the tree N of a sandbox; its folder takes it in as `copies/N`

A copy is the lower layer of an overlay: it is never changed, so that what the sandbox has changed can be told from it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral.engine import sweep
from corral.engine.errors import SetupError
from corral.engine.recipe import Overlaid
from corral.engine.state import DataFolder
from corral.engine.storage.copying import TreeCopy
from corral.inside.nolinks import on_error, open_path, opened

STEP = "CopyFolder"
"""The step that fails if a folder can't be copied."""


def make_copies(data: DataFolder, trees: Sequence[Overlaid], *, sources: Mapping[str, str], limit_bytes: int) -> Path:
    """Copy the folders of those trees that want it, for `Recipe.copies`. Discard it if it is not used.

    `sources` has other folders to copy, by the paths inside.

    Raises:
        SetupError: one can't be read, or is larger than the limit.
    """
    wanted = [(number, tree) for number, tree in enumerate(trees) if tree.copied]
    draft = data.path / "copies" / f".new-{os.getpid()}-{os.urandom(6).hex()}"
    draft.mkdir(mode=0o700, parents=True)
    with on_error(sweep.discard, data, draft):
        for number, tree in wanted:
            target = draft / str(number)
            target.mkdir(mode=0o700)
            try:
                # No link on the path is followed: it was resolved before, and others may write there.
                source = open_path(sources.get(tree.target, tree.lowers[0]), os.O_RDONLY | os.O_DIRECTORY, links=False)
                with opened(source):
                    owners = os.geteuid() == 0
                    path = f"/proc/self/fd/{source}"
                    TreeCopy(path, str(target), owners=owners, limit_bytes=limit_bytes).run()
            except OSError as error:
                raise SetupError(_explain(tree, error, limit_bytes), step=STEP, errno=error.errno or 0) from error
    return draft


def _explain(tree: Overlaid, error: OSError, limit_bytes: int) -> str:
    if error.errno == errno.EFBIG:
        return f"{tree.lowers[0]} has more than {limit_bytes} bytes, as many as the sandbox's disk holds"
    return f"{tree.lowers[0]} can't be copied: {error.strerror}"
