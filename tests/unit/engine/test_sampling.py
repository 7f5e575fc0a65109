"""The soft disk limit: everything below is added up a little at a time, and nothing hides from it."""

import os
from pathlib import Path

import pytest

from corral.engine.sampling import ENTRIES_PER_LOOK, DiskWatch, next_in_turn
from support.user import OrdinaryUser

MIB = 2**20


def look_until_done(watch: DiskWatch, *, looks: int = 50) -> bool:
    """One whole round; each look is a moment later than the last."""
    return any(watch.look(float(number)) for number in range(looks))


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_empty_folder_is_within_any_limit(tmp_path: Path) -> None:
    assert not look_until_done(DiskWatch(str(tmp_path), MIB, 100))


def test_bytes_over_the_limit_are_noticed_at_any_depth(tmp_path: Path) -> None:
    watch = DiskWatch(str(tmp_path), MIB, 1000)
    write(tmp_path / "a/b/c/small", MIB // 2)
    assert not look_until_done(watch)
    assert MIB // 2 <= watch.used_bytes <= MIB
    write(tmp_path / "a/b/large", MIB)
    assert look_until_done(DiskWatch(str(tmp_path), MIB, 1000))


def test_number_of_files_over_the_limit_is_noticed(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / str(number)).touch()
    assert not look_until_done(DiskWatch(str(tmp_path), MIB, 60))
    assert look_until_done(DiskWatch(str(tmp_path), MIB, 59))


def test_sparse_file_counts_for_what_it_takes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1000 * MIB)
    assert not look_until_done(DiskWatch(str(tmp_path), MIB, 100))


def test_link_counts_for_itself_and_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside/large", 4 * MIB)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file").symlink_to(tmp_path / "outside/large")
    (inside / "folder").symlink_to(tmp_path / "outside")
    (inside / "loop").symlink_to(inside)
    assert not look_until_done(DiskWatch(str(inside), MIB, 100))


def test_one_look_at_a_large_tree_is_bounded(tmp_path: Path) -> None:
    for folder in range(8):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            (tmp_path / str(folder) / str(number)).touch()
    watch = DiskWatch(str(tmp_path), 100 * MIB, 8000)
    assert not watch.look(0.0)  # not even a third of it has been seen
    assert any(watch.look(0.0) for _ in range(40))


def test_one_look_at_a_large_folder_is_bounded(tmp_path: Path) -> None:
    """A single folder may hold more than the launcher can read without making its other callers wait."""
    for number in range(3 * ENTRIES_PER_LOOK):
        (tmp_path / str(number)).touch()
    watch = DiskWatch(str(tmp_path), 100 * MIB, 2 * ENTRIES_PER_LOOK)
    assert not watch.look(0.0)
    assert watch.walking
    assert not watch.look(0.0)
    assert watch.look(0.0)  # now it has seen more than is allowed
    assert not watch.walking


def test_sandboxes_take_turns(tmp_path: Path) -> None:
    """Each look at one of them, and none is left out however many files another has."""
    large, small = tmp_path / "large", tmp_path / "small"
    for folder in (large, small):
        folder.mkdir()
    for number in range(4 * ENTRIES_PER_LOOK):
        (large / str(number)).touch()
    first, second = DiskWatch(str(large), MIB, 100_000), DiskWatch(str(small), MIB, 100)
    seen = []
    for now in (1.0, 1.1, 1.2):
        watch = next_in_turn((first, second), now)
        assert watch is not None
        watch.look(now)
        seen.append(watch)
    assert seen == [first, second, first]
    first.close()


def test_folder_that_vanishes_is_no_error(tmp_path: Path) -> None:
    assert not look_until_done(DiskWatch(str(tmp_path / "gone"), MIB, 100))


def test_rounds_are_apart_from_each_other(tmp_path: Path) -> None:
    watch = DiskWatch(str(tmp_path), MIB, 100)
    assert not watch.look(10.0)
    write(tmp_path / "large", 2 * MIB)
    assert not watch.look(10.5)  # the last round was just now
    assert watch.look(11.5)
    assert watch.look(13.0)  # and again, as long as it is too much


MEASURE = """
import os, sys, time
from corral.engine.sampling import DiskWatch

MIB = 2**20
folder = os.path.join("disk", sys.argv[1])
os.makedirs(os.path.join(folder, "inner"))
for path, mib in (("one", 1), ("inner/two", 2)):
    with open(os.path.join(folder, path), "wb") as file:
        file.write(bytes(mib * MIB))

def is_over(mib, inodes):
    watch = DiskWatch("disk", mib * MIB, inodes)
    over = watch.look(0.0)
    while watch.walking:
        time.sleep(0.01)
        over = watch.look(0.0)
    return over, watch.used_bytes // MIB

for mode in (0o700, 0o300, 0o400, 0o100, 0o600, 0o000):
    os.chmod(os.path.join(folder, "inner"), mode)
    os.chmod(folder, mode)
    print(oct(mode), is_over(4, 100), is_over(2, 100)[0], is_over(4, 3)[0])
    assert os.stat(folder).st_mode & 0o777 == mode
    os.chmod(folder, 0o700)
    os.chmod(os.path.join(folder, "inner"), 0o700)
"""


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("folder", ["0/u/locked", "0/u/w/work"])
def test_folder_that_its_owner_may_not_read_is_measured_like_any_other(
    ordinary_user: OrdinaryUser, folder: str
) -> None:
    """It hides nothing, and is no offence either. The second has the name of the kernel's own folder elsewhere."""
    done = ordinary_user.run(MEASURE, args=[folder])
    modes = ("0o700", "0o300", "0o400", "0o100", "0o600", "0o0")
    assert done.stdout.splitlines() == [f"{mode} (False, 3) True True" for mode in modes], done.stderr


def test_folder_replaced_by_a_link_while_it_waits_is_no_offence(tmp_path: Path) -> None:
    write(tmp_path / "outside/large", 4 * MIB)
    inside = tmp_path / "inside"
    for number in range(2 * ENTRIES_PER_LOOK):
        (inside / str(number)).mkdir(parents=True)
    watch = DiskWatch(str(inside), 100 * MIB, 8 * ENTRIES_PER_LOOK)
    assert not watch.look(0.0)  # it has seen some of them, and looked into none
    assert watch.walking
    for folder in inside.iterdir():
        folder.rmdir()
        folder.symlink_to(tmp_path / "outside")
    while watch.walking:
        assert not watch.look(0.0)


def test_tree_too_deep_for_a_path_does_not_hide_what_is_in_it(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    descriptor = os.open("large", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder)
    os.write(descriptor, b"x" * 4 * MIB)
    os.close(descriptor)
    os.close(folder)
    assert look_until_done(DiskWatch(str(tmp_path), MIB, 1000))
    assert not look_until_done(DiskWatch(str(tmp_path), 8 * MIB, 1000))  # and depth alone is no offence
