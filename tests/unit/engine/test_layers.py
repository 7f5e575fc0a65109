"""Layers and snapshots as files: who may go when, and what a killed process leaves for the next."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corral.engine import sweep
from corral.engine.errors import RefusedError
from corral.engine.layers import MAX_LAYERS, LayerStore, Snapshot, ensure_not_too_deep, process_mark
from corral.engine.recipe import Limits, Overlaid, Recipe
from corral.engine.state import DataFolder, read_state, write_state

LIMITS = Limits(memory_bytes=1, processes=1, cpus=1, disk_bytes=1, inodes=1)
RECIPE = Recipe("box", "", (Overlaid("/usr", ("/usr",)), Overlaid("/", ("/base",), writable=True)), LIMITS)


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    data = DataFolder(tmp_path)
    data.prepare()
    return data


def make_snapshot(data: DataFolder, *, below: tuple[str, ...] = (), name: str | None = None) -> Snapshot:
    store = LayerStore(data)
    draft = store.draft(RECIPE, kind="folder", first_uid=None)
    (draft / "disk").mkdir()
    return store.publish(draft, below=below, name=name, sandbox_id="box")


def make_passing(data: DataFolder, mark: str) -> Snapshot:
    store = LayerStore(data)
    draft = store.draft(RECIPE, kind="folder", first_uid=None)
    return store.publish(draft, below=(), name=None, sandbox_id="box", passing=mark)


def make_stopped(data: DataFolder, content: str = "written", **more: Any) -> tuple[Path, dict[str, Any]]:
    folder = data.folder("box")
    (folder / "disk" / "1" / "u").mkdir(parents=True)
    (folder / "disk" / "1" / "u" / "f").write_text(content)
    state = {"recipe": RECIPE.to_json(), "stopped": True, "first_uid": None, **more}
    write_state(folder, state)
    return folder, state


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_layer_knows_where_each_tree_lies(data: DataFolder) -> None:
    snapshot = make_snapshot(data)
    layer = LayerStore(data).layer(snapshot.layers[0])
    assert (layer.kind, layer.first_uid, layer.trees) == ("folder", None, {"/": 1})


def test_layer_goes_with_the_last_that_names_it(data: DataFolder) -> None:
    store = LayerStore(data)
    first = make_snapshot(data, name="first")
    second = make_snapshot(data, below=first.layers)
    folder = data.folder("user")
    folder.mkdir()
    write_state(folder, {"layers": list(second.layers)})
    store.delete("first")
    store.delete(second.snapshot_id)
    assert names(data.layers) == set(second.layers), "a sandbox stands on them"
    sweep.discard(data, folder)
    store.collect()
    assert not names(data.layers)


def test_what_is_being_made_is_not_collected(data: DataFolder) -> None:
    store = LayerStore(data)
    draft = store.draft(RECIPE, kind="folder", first_uid=None)
    store.collect()
    assert draft.is_dir()


def test_draft_of_a_dead_process_is_swept(data: DataFolder) -> None:
    LayerStore(data).draft(RECIPE, kind="folder", first_uid=None)
    dead = data.layers / f".new-{2**22 + 1}-abc"  # above the highest number a process can have
    dead.mkdir()
    sweep.discard_dead(data)
    sweep.empty_trash(data)
    assert dead.name not in names(data.layers)
    assert len(names(data.layers)) == 1


def test_name_is_taken_once(data: DataFolder) -> None:
    make_snapshot(data, name="same")
    with pytest.raises(RefusedError) as caught:
        make_snapshot(data, name="same")
    assert caught.value.code == "name_taken"
    LayerStore(data).delete("same")
    make_snapshot(data, name="same")


def test_unknown_snapshot_is_refused(data: DataFolder) -> None:
    with pytest.raises(RefusedError) as caught:
        LayerStore(data).find("none")
    assert caught.value.code == "no_snapshot"


def test_spoilt_snapshot_file_hides_no_others(data: DataFolder) -> None:
    snapshot = make_snapshot(data)
    (data.snapshots / "bad.json").write_text("{")
    assert LayerStore(data).snapshots() == [snapshot]


def test_stopped_sandbox_is_pushed_down_without_a_copy(data: DataFolder) -> None:
    store = LayerStore(data)
    folder, state = make_stopped(data)
    inode = (folder / "disk" / "1" / "u" / "f").stat().st_ino
    state = store.push_down(folder, state)
    (layer,) = store.layers(state["layers"])
    assert (Path(layer.folder) / "disk" / "1" / "u" / "f").stat().st_ino == inode
    assert not (folder / "disk").exists()
    assert (read_state(folder) or {})["layers"] == state["layers"]
    assert store.push_down(folder, state) == state, "nothing was written since"


def test_move_that_was_cut_short_is_finished(data: DataFolder) -> None:
    store = LayerStore(data)
    folder, state = make_stopped(data, layers=["new"], moving="new")
    (data.layers / "new").mkdir()
    store.collect()
    state = store.settle(folder, state)
    assert (data.layers / "new" / "disk" / "1" / "u" / "f").read_text() == "written"
    assert "moving" not in state
    assert store.settle(folder, state) == state


def test_rollback_that_was_cut_short_drops_the_newer_files(data: DataFolder) -> None:
    snapshot = make_snapshot(data)
    folder, state = make_stopped(data, layers=list(snapshot.layers), dropping=True)
    LayerStore(data).settle(folder, state)
    assert not (folder / "disk").exists()


def test_rollback_leaves_the_files_of_the_snapshot(data: DataFolder) -> None:
    store = LayerStore(data)
    folder, state = make_stopped(data)
    state = store.push_down(folder, state)
    snapshot = store.publish(None, below=tuple(state["layers"]), name=None, sandbox_id="box")
    newer = store.push_down(*make_stopped(data, "newer", layers=state["layers"]))
    assert len(newer["layers"]) == 2
    store.roll_back(folder, newer, snapshot.snapshot_id)
    assert (read_state(folder) or {})["layers"] == list(snapshot.layers)
    assert names(data.layers) == set(snapshot.layers), "layers without a reference are gone"


def test_stopped_sandbox_is_not_swept(data: DataFolder) -> None:
    folder, _ = make_stopped(data)
    assert sweep.discard_dead(data) == []
    sweep.empty_trash(data)
    assert folder.is_dir()


def test_layers_have_an_end() -> None:
    ensure_not_too_deep(MAX_LAYERS - 1)
    with pytest.raises(RefusedError):
        ensure_not_too_deep(MAX_LAYERS)


def test_what_a_fork_needs_goes_with_the_process_that_forks(data: DataFolder) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    kept = make_snapshot(data)
    ours, theirs = make_passing(data, process_mark(os.getpid())), make_passing(data, process_mark(child.pid))
    LayerStore(data).collect()
    assert names(data.layers) == {*kept.layers, *ours.layers, *theirs.layers}
    child.kill()
    child.wait()
    LayerStore(data).collect()
    assert [snapshot.snapshot_id for snapshot in LayerStore(data).snapshots()] == [kept.snapshot_id, ours.snapshot_id]
    assert names(data.layers) == {*kept.layers, *ours.layers}


def test_another_process_with_the_same_number_is_another(data: DataFolder) -> None:
    pid, _, started = process_mark(os.getpid()).partition(":")
    make_passing(data, f"{pid}:{int(started) - 1}")
    make_passing(data, "not a mark")
    LayerStore(data).collect()
    assert names(data.layers) == set()
