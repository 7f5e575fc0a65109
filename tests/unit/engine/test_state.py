"""The state file of each sandbox: always complete, locked by its holder, and found by other processes."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from corral.engine import sweep
from corral.engine.state import DataFolder, dead_folders, lock, read_state, write_state
from support.leftovers import nothing_left_open


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    return folder


def names_of_dead(data: DataFolder) -> list[str]:
    names = []
    for folder, descriptor in dead_folders(data):
        names.append(folder.name)
        os.close(descriptor)
    return names


def everything_below(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_data_folder_is_for_its_owner_only(data: DataFolder) -> None:
    for path in (data.path, data.sandboxes, data.trash):
        assert path.stat().st_mode & 0o777 == 0o700


def test_instance_is_chosen_once(data: DataFolder) -> None:
    name = data.instance()
    assert len(name) == 8
    assert DataFolder(data.path).instance() == name


def test_instances_of_two_folders_differ(tmp_path: Path) -> None:
    folders = [DataFolder(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        folder.prepare()
    assert folders[0].instance() != folders[1].instance()


def test_every_process_sees_the_same_instance_however_early_it_looks(data: DataFolder) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(data.instance())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_half_written_instance_does_not_change_once_it_was_used(data: DataFolder) -> None:
    (data.path / "instance").touch()  # a process was killed between creating the file and writing it
    assert data.instance() == data.instance() != ""


def test_founded_folder_has_its_state_and_is_held(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {"id": "a1", "cgroups": []})
    try:
        assert data.ids() == ["a1"]
        assert read_state(folder) == {"format": 1, "id": "a1", "cgroups": []}
        assert lock(folder) is None
        assert names_of_dead(data) == []
    finally:
        os.close(descriptor)
    assert names_of_dead(data) == ["a1"]


def test_name_is_given_once(data: DataFolder) -> None:
    _, descriptor = data.found("a1", {})
    try:
        with pytest.raises(FileExistsError):
            data.found("a1", {})
    finally:
        os.close(descriptor)
    assert everything_below(data.sandboxes) == ["a1", "a1/lock", "a1/state.json"]


def test_founding_that_fails_leaves_nothing(data: DataFolder) -> None:
    with nothing_left_open(), pytest.raises(TypeError):
        data.found("a1", {"not json": object()})
    assert everything_below(data.sandboxes) == []


def test_lock_is_let_go_when_its_holder_is_killed(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {})
    os.close(descriptor)
    script = (
        "import sys, time; from pathlib import Path; from corral.engine.state import lock; "
        "print(lock(Path(sys.argv[1])), flush=True); time.sleep(100)"
    )
    argv = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) > 2
        assert lock(folder) is None
        holder.kill()
    held = lock(folder)
    assert held is not None
    os.close(held)


def test_lock_does_not_go_along_to_other_programs(data: DataFolder) -> None:
    _, descriptor = data.found("a1", {})
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_state_is_replaced_as_a_whole(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {"round": 0})
    stop = threading.Event()
    seen: list[object] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(read_state(folder))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 200):
        write_state(folder, {"round": number, "filler": "x" * 5000})
    stop.set()
    reader.join()
    os.close(descriptor)
    assert seen
    assert None not in seen
    assert sorted(everything_below(folder)) == ["lock", "state.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "\0\0", '{"a": ' * 5000, "9" * 5000])
def test_state_that_can_not_be_read_is_none(data: DataFolder, text: str) -> None:
    folder, descriptor = data.found("a1", {})
    os.close(descriptor)
    (folder / "state.json").write_text(text)
    assert read_state(folder) is None


def test_state_that_is_not_utf8_is_none(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {})
    os.close(descriptor)
    (folder / "state.json").write_bytes(b"\xff\xfe{}")
    assert read_state(folder) is None


def test_missing_state_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "nowhere") is None


def test_sweep_removes_the_dead_and_spares_the_living_and_the_kept(data: DataFolder) -> None:
    for name in ("dead", "alive", "kept"):
        _, descriptor = data.found(name, {"cgroups": [], "kept": name == "kept"})
        if name != "alive":
            os.close(descriptor)
        else:
            alive = descriptor
    try:
        assert sweep.discard_dead(data) == ["dead"]
        sweep.empty_trash(data)
        assert data.ids() == ["alive", "kept"]
        assert everything_below(data.trash) == []
    finally:
        os.close(alive)


def test_sweep_removes_a_sandbox_whose_state_is_garbage(data: DataFolder) -> None:
    for name, text in (("a1", "garbage"), ("a2", '{"cgroups": 7}'), ("a3", '{"cgroups": null}'), ("a4", "{}")):
        folder, descriptor = data.found(name, {})
        os.close(descriptor)
        (folder / "state.json").write_text(text)
    assert sorted(sweep.discard_dead(data)) == ["a1", "a2", "a3", "a4"]
    sweep.empty_trash(data)
    assert data.ids() == []


def test_sweep_leaves_what_is_not_ours_alone(data: DataFolder, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    folder, descriptor = data.found("a1", {})
    os.close(descriptor)
    (folder / "link").symlink_to(foreign)
    (data.sandboxes / "stray-file").write_text("x")
    (data.path / "notes").mkdir()
    sweep.discard_dead(data)
    sweep.empty_trash(data)
    assert (foreign / "precious").read_text() == "x"
    assert (data.path / "notes").is_dir()
    assert (data.sandboxes / "stray-file").exists()


def test_sandbox_that_was_being_founded_when_its_maker_was_killed_is_swept(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {"cgroups": []})
    os.close(descriptor)
    folder.rename(data.sandboxes / ".new-a1")  # where it stood a moment before
    sweep.discard_dead(data)
    sweep.empty_trash(data)
    assert everything_below(data.sandboxes) == []


def test_sandbox_that_is_being_founded_right_now_is_spared(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {"cgroups": []})
    unfinished = data.sandboxes / ".new-a1"
    folder.rename(unfinished)
    try:
        sweep.discard_dead(data)
        sweep.empty_trash(data)
        assert (unfinished / "state.json").exists()
    finally:
        os.close(descriptor)


def test_folder_that_is_moved_away_before_it_is_locked_is_not_held(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, descriptor = data.found("a1", {"cgroups": []})
    flock = fcntl.flock

    def let_go_first(lock_descriptor: int, mode: int) -> None:
        folder.rename(data.path / "elsewhere")
        os.close(descriptor)
        flock(lock_descriptor, mode)

    monkeypatch.setattr(fcntl, "flock", let_go_first)
    with pytest.raises(FileNotFoundError):
        lock(folder)


def test_sweep_survives_a_neighbour_who_founds_at_the_same_time(data: DataFolder) -> None:
    """A folder under its first name may have its final one by the time it is looked at."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def found_on_and_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            folder, descriptor = data.found(f"n{number}", {"cgroups": []})
            sweep.discard(data, folder)
            os.close(descriptor)

    neighbour = threading.Thread(target=found_on_and_on)
    neighbour.start()
    try:
        for _ in range(150):
            for folder, descriptor in dead_folders(data):
                os.close(descriptor)
                assert not folder.name.startswith("n"), "a founder held this lock"
    except OSError as error:
        failures.append(error)
    finally:
        stop.set()
        neighbour.join()
    assert failures == []


@pytest.mark.parametrize(
    "name", ["base/.new-999999-ab", "packages/.new-999999-ab", "disks/1048576-100.img.999999", "trash/a1.999999.abc"]
)
def test_what_a_killed_process_was_making_is_swept(data: DataFolder, name: str) -> None:
    left = data.path / name
    left.parent.mkdir(exist_ok=True)
    if left.suffix == ".999999":
        left.write_bytes(b"x")
    else:
        left.mkdir()
        (left / "part").write_text("x")
    os.utime(left, (0, 0))  # long ago, so that its maker can't be at work still
    sweep.discard_dead(data)
    sweep.empty_trash(data)
    assert not left.exists()


def test_trash_is_emptied_however_deep_or_closed_it_is(data: DataFolder) -> None:
    top = data.trash / "a1.1.abc"
    top.mkdir()
    levels = [os.open(top, os.O_RDONLY | os.O_DIRECTORY)]
    for _ in range(600):
        os.mkdir("deep-enough", dir_fd=levels[-1])
        levels.append(os.open("deep-enough", os.O_RDONLY | os.O_DIRECTORY, dir_fd=levels[-1]))
    for level in reversed(levels):
        os.fchmod(level, 0)
        os.close(level)
    (data.trash / "link").symlink_to("/")
    os.mkfifo(data.trash / "fifo")
    (data.trash / os.fsdecode(b"bad-\xff\n")).write_text("x")
    sweep.empty_trash(data)
    assert list(data.trash.iterdir()) == []


def test_state_carries_its_format(data: DataFolder) -> None:
    folder, descriptor = data.found("a1", {})
    os.close(descriptor)
    assert json.loads((folder / "state.json").read_text())["format"] == 1
