"""Layers and snapshots: files that sandboxes have written up to some moment, for other sandboxes to start from.

    layers/NAME/        layer.json, and disk or disk.img; never changed once it is there
    snapshots/ID.json   the names of its layers, uppermost first, and what a list shows of it
    layers.lock         held to create, use or drop a reference

A layer is deleted when no snapshot and no sandbox names it any more. References are not counted, but read from all
snapshots and sandboxes each time; so a killed process leaves nothing inconsistent, only files that the next look
removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corral.engine import sweep
from corral.engine.datafolder import FORMAT
from corral.engine.errors import RefusedError
from corral.engine.recipe import Layer, Recipe
from corral.engine.state import DataFolder, holding, read_state, write_state
from corral.inside.processes import read_stat

MAX_LAYERS = 64
"""More layers slow down every look-up of a missing file, and each is a separate mount."""
_DISKS = {"loop": "disk.img", "folder": "disk"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of a sandbox's files."""

    snapshot_id: str
    name: str | None
    sandbox_id: str
    created: float
    layers: tuple[str, ...]
    passing: str | None = None
    """The mark of the process for whose fork it was created: it is deleted with that process. None: it stays."""


class LayerStore:
    """The layers and snapshots of one data folder. Any process of its user may use it."""

    def __init__(self, data: DataFolder) -> None:
        self._data = data

    # Reading.

    def snapshots(self) -> list[Snapshot]:
        """All of them, oldest first."""
        found = []
        for path in self._data.snapshots.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads(path.read_text())
                layers = tuple(str(name) for name in about["layers"])
                created, passing = float(about["created"]), about.get("passing")
                found.append(Snapshot(path.stem, about["name"], about["sandbox_id"], created, layers, passing))
        return sorted(found, key=lambda snapshot: snapshot.created)

    def find(self, wanted: str) -> Snapshot:
        """By id or name. Raises: RefusedError (`no_snapshot`)."""
        for snapshot in self.snapshots():
            if wanted in (snapshot.snapshot_id, snapshot.name):
                return snapshot
        raise RefusedError(f"snapshot {wanted!r} not found", code="no_snapshot")

    def layer(self, name: str) -> Layer:
        """A layer by its name. Raises: RefusedError (`no_snapshot`)."""
        folder = self._data.layers / name
        try:
            about = json.loads((folder / "layer.json").read_text())
            return Layer(name, str(folder), about["kind"], about["first_uid"], dict(about["trees"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedError(f"the layer {name!r} is gone", code="no_snapshot") from error

    def layers(self, names: list[str] | tuple[str, ...]) -> tuple[Layer, ...]:
        """Several at once. Raises: as `layer`."""
        return tuple(self.layer(name) for name in names)

    def size_bytes(self, snapshot: Snapshot) -> int | None:
        """The size of the uppermost layer on disk; None if that would have to be added up."""
        with contextlib.suppress(OSError, IndexError):
            return os.stat(self._data.layers / snapshot.layers[0] / "disk.img").st_blocks * 512
        return None

    def locked(self) -> contextlib.AbstractContextManager[bool]:
        """While it is held, no process can create, use or drop a reference. Held briefly, never during a copy."""
        return holding(self._data.path / "layers.lock")

    # Creating.

    def draft(self, recipe: Recipe, *, kind: str, first_uid: int | None) -> Path:
        """A folder for an unfinished layer. Our pid is in its name, so that a sweeper can see whether we live."""
        folder = self._data.layers / f".new-{os.getpid()}-{os.urandom(6).hex()}"
        folder.mkdir(mode=0o700, parents=True)
        trees = {tree.target: index for index, tree in enumerate(recipe.trees) if tree.writable}
        about = {"format": FORMAT, "kind": kind, "first_uid": first_uid, "trees": trees}
        (folder / "layer.json").write_text(json.dumps(about))
        return folder

    def publish(
        self,
        draft: Path | None,
        *,
        below: tuple[str, ...],
        name: str | None,
        sandbox_id: str,
        passing: str | None = None,
    ) -> Snapshot:
        """Turn a draft into a layer, and create a snapshot of it and the layers below; without a draft, of those alone.

        Raises:
            RefusedError: `name_taken`.
        """
        with self.locked():
            self.ensure_name_free(name)
            layers = below
            if draft is not None:
                layer = uuid.uuid4().hex
                draft.rename(self._data.layers / layer)
                layers = (layer, *below)
            snapshot = Snapshot(str(uuid.uuid4()), name, sandbox_id, time.time(), layers, passing)
            unfinished = self._data.snapshots / f".new-{os.getpid()}-{os.urandom(4).hex()}"
            unfinished.write_text(json.dumps({"format": FORMAT, **asdict(snapshot)}))
            unfinished.rename(self._data.snapshots / f"{snapshot.snapshot_id}.json")
        return snapshot

    def ensure_name_free(self, name: str | None) -> None:
        """Raises: RefusedError (`name_taken`)."""
        if name is not None and any(snapshot.name == name for snapshot in self.snapshots()):
            raise RefusedError(f"a snapshot named {name!r} already exists", code="name_taken")

    def delete(self, wanted: str) -> None:
        """Delete a snapshot. Its layers stay as long as a sandbox or snapshot uses them. Raises: as `find`."""
        with self.locked():
            snapshot = self.find(wanted)
            (self._data.snapshots / f"{snapshot.snapshot_id}.json").unlink(missing_ok=True)
            self._collect()

    def collect(self) -> None:
        """Discard unused layers, and leftovers of a killed fork."""
        if any(self._data.layers.iterdir()) or any(self._data.snapshots.iterdir()):
            with self.locked():
                self._collect()

    def _collect(self) -> None:
        used: set[str] = set()
        for snapshot in self.snapshots():
            if snapshot.passing is not None and not _is_alive(snapshot.passing):
                (self._data.snapshots / f"{snapshot.snapshot_id}.json").unlink(missing_ok=True)
            else:
                used.update(snapshot.layers)
        for folder in self._data.sandboxes.iterdir():  # those being founded included
            state = read_state(folder) or {}
            used.update(str(name) for name in state.get("layers") or ())
        for folder in self._data.layers.iterdir():
            if folder.name not in used and not folder.name.startswith("."):
                sweep.discard(self._data, folder)

    # Stopped sandboxes. The caller holds the lock of the sandbox's folder.

    def settle(self, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
        """Finish the work of a killed process, which had recorded its intent first."""
        state = dict(state)
        moving, dropping = state.pop("moving", None), state.pop("dropping", None)
        if moving is None and dropping is None:
            return state
        for disk in _DISKS.values():
            if (folder / disk).exists():
                if moving is not None:
                    (folder / disk).rename(self._data.layers / moving / disk)
                else:
                    sweep.discard(self._data, folder / disk)
        write_state(folder, state)
        return state

    def push_down(self, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
        """Turn the written files into a layer, without a copy; new writes go on top of it. Returns the new state."""
        state = self.settle(folder, state)
        kinds = [kind for kind, disk in _DISKS.items() if (folder / disk).exists()]
        if not kinds:
            return state  # nothing was written since the last time
        recipe = Recipe.from_json(state["recipe"])
        below = tuple(state.get("layers") or ())
        ensure_not_too_deep(len(below))
        with self.locked():
            draft = self.draft(recipe, kind=kinds[0], first_uid=state.get("first_uid"))
            layer = uuid.uuid4().hex
            # A collector must find the layer named before it finds the layer.
            state = {**state, "layers": [layer, *below], "moving": layer}
            write_state(folder, state)
            draft.rename(self._data.layers / layer)
            return self.settle(folder, state)

    def roll_back(self, folder: Path, state: dict[str, Any], wanted: str) -> None:
        """Replace the files with those of a snapshot. Raises: as `find`."""
        state = self.settle(folder, state)
        with self.locked():
            snapshot = self.find(wanted)
            state = {**state, "layers": list(snapshot.layers), "dropping": True}
            write_state(folder, state)
            self.settle(folder, state)
            self._collect()


def process_mark(pid: int) -> str:
    """Identifies a process: its pid and its start time, since a later process may have the same pid."""
    return f"{pid}:{read_stat(f'/proc/{pid}')[19].decode()}"  # field 22 of proc(5)


def _is_alive(mark: str) -> bool:
    try:
        return process_mark(int(mark.partition(":")[0])) == mark
    except (OSError, ValueError, IndexError):
        return False


def ensure_not_too_deep(layers: int) -> None:
    """Check that one more layer may be added. Raises: RefusedError (`too_deep`)."""
    if layers >= MAX_LAYERS:
        text = f"the sandbox has {layers} layers, which is the limit"
        raise RefusedError(text, code="too_deep", hint="copy its files into a new sandbox")
