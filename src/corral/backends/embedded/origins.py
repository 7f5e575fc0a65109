"""Folders of the host that a sandbox has as copies or beneath overlays: copied before it begins, found for `apply`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.seam import mapped
from corral.backends.embedded.stopped import finished
from corral.base.changes import Origin
from corral.engine import sweep
from corral.engine.copies import make_copies
from corral.engine.plan import lower_paths
from corral.engine.recipe import Overlaid, Recipe
from corral.engine.state import DataFolder, read_state
from corral.errors import MountError, SandboxGoneError, SpecError

_NOTES = "applied.json"


@contextlib.asynccontextmanager
async def copied(
    trees: Sequence[Overlaid], *, data_folder: Path, parent_id: str | None, limit_bytes: int
) -> AsyncIterator[str]:
    """A folder with copies for the trees that want one, for `Recipe.copies`; "" without any. Removed if it is left.

    A fork, which has a parent, gets the parent's copies: what the host has changed since then is not in it.

    Raises:
        MountError: a folder can't be copied, or is larger than the limit.
    """
    if not any(tree.copied for tree in trees):
        yield ""
        return
    data = DataFolder(data_folder)
    data.prepare()
    sources = {} if parent_id is None else await asyncio.to_thread(_find_copies, data.folder(parent_id))
    with mapped(op="create"):
        draft = await finished(
            lambda: make_copies(data, trees, sources=sources, limit_bytes=limit_bytes),
            lambda made: sweep.discard(data, made),
        )
    try:
        yield str(draft)
    finally:
        sweep.discard(data, draft)


def _find_copies(folder: Path) -> Mapping[str, str]:
    """The copies of a sandbox, by their paths inside."""
    state = read_state(folder) or {}
    recipe = Recipe.from_json({**state["recipe"], "folder": str(folder)}) if "recipe" in state else None
    trees = recipe.trees if recipe is not None else ()
    return {
        tree.target: lower_paths(recipe, number)[0]
        for number, tree in enumerate(trees)
        if tree.copied and recipe is not None
    }


def find_origin(data_folder: Path, sandbox_id: str, path: str | None) -> Origin:
    """As `SandboxPrimitives.find_origin`."""
    folder = open_data(data_folder, op="diff").folder(sandbox_id)
    state = read_state(folder)
    if state is None:
        raise SandboxGoneError("the sandbox is gone", sandbox_id=sandbox_id, op="diff")
    recipe = Recipe.from_json({**state["recipe"], "folder": str(folder)})
    found = [
        Origin(
            path=tree.target,
            folder=Path(tree.lowers[0]),
            base=Path(lower_paths(recipe, number)[0]),
            since_ns=int(float(state.get("founded") or state["made"]) * 1e9),
            notes=folder / _NOTES,
            limit_bytes=recipe.limits.disk_bytes,
        )
        for number, tree in enumerate(recipe.trees)
        if tree.outside and path in (None, tree.target)
    ]
    if not found:
        where = "in this sandbox" if path is None else f"at {path}"
        hint = 'mount one: Mount("/work", source="~/project", mode="overlay")'
        raise MountError(
            f"no folder of the host is mounted {where} as a copy or beneath an overlay", op="diff", hint=hint
        )
    if len(found) > 1:
        raise SpecError(
            "there is more than one folder of the host", hint=f"say which: {', '.join(o.path for o in found)}"
        )
    return found[0]
