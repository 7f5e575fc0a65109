"""A data folder is used only where no other user can change its path or reach into it."""

import grp
import os
import pwd
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.backends.embedded import keepers, packages, report
from corral.backends.embedded.backend import EmbeddedBackend
from corral.backends.embedded.typescript import setup as typescript
from corral.engine import datafolder
from corral.engine.datafolder import make_part, secure
from corral.engine.errors import UnsafeFolderError
from corral.engine.recipe import BASE_FIRST_UID
from corral.engine.state import DataFolder
from corral.engine.uidrange import FIRST_UID, SLOTS, UID_RANGE_SIZE
from corral.errors import BackendUnavailableError
from corral.server.store.database import Database
from corral.spec import Spec
from support.leftovers import nothing_left_open


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0, 0o002, 0o022, 0o077], ids=lambda umask: f"umask {umask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_folder_is_made_closed_whatever_the_umask(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "above" / "data")
    data.prepare()
    make_part(data.path, "base")
    assert mode_of(data.path.parent) & 0o022 == 0
    for path in (data.path, *data.path.iterdir()):
        assert mode_of(path) == (0o700 if path.is_dir() else 0o600), path


def test_folder_that_is_not_there_is_not_made_by_a_look(tmp_path: Path) -> None:
    secure(tmp_path / "one" / "two", make=False)
    assert list(tmp_path.iterdir()) == []


def test_look_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with nothing_left_open():
        for path in (tmp_path / "data", tmp_path / "data", tmp_path / "link/tmp/x", tmp_path / "missing"):
            try:
                secure(path, make=path.name == "data")
            except UnsafeFolderError:
                continue


def test_old_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in ("base/0123456789abcdef/tmp", "base/.new-1-ab", "packages/one", "sandboxes", "runtimes/typescript"):
        (folder / name).mkdir(parents=True)
    for name in ("", "base", "packages", "sandboxes", "runtimes"):
        (folder / name).chmod(0o755)
    secure(folder, make=False)
    assert {mode_of(path) for path in (folder, *folder.iterdir())} == {0o700}
    assert all(path.name.startswith(datafolder.SET_ASIDE) for path in (folder / "base").iterdir())
    assert [path.name for path in (folder / "packages").iterdir()] == ["one"]
    assert [path.name for path in (folder / "runtimes").iterdir()] == ["typescript"]


def test_file_system_that_keeps_no_modes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # as on some: it says yes, and nothing changes
    with pytest.raises(UnsafeFolderError, match="file system"):
        secure(data)


def test_what_is_closed_already_is_left_alone(tmp_path: Path) -> None:
    (make_part(tmp_path / "data", "base") / "0123456789abcdef").mkdir()
    secure(tmp_path / "data")
    assert [path.name for path in (tmp_path / "data/base").iterdir()] == ["0123456789abcdef"]


def test_folder_with_somebodys_other_files_is_not_closed_for_them(tmp_path: Path) -> None:
    """Such as /var/lib, or a home, given by mistake."""
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "letter").touch()
    with pytest.raises(UnsafeFolderError, match="holds more than Corral's data"):
        secure(folder)
    assert mode_of(folder) == 0o755
    assert [path.name for path in folder.iterdir()] == ["letter"]
    folder.chmod(0o700)
    secure(folder)


# What is refused: how a path is spoilt, what the error says of it.


def is_link(folder: Path) -> Path:
    (folder / "real").mkdir(mode=0o700)
    (folder / "data").symlink_to("real")
    return folder / "data"


def is_link_to_nowhere(folder: Path) -> Path:
    (folder / "data").symlink_to("nowhere")
    return folder / "data"


def has_link_on_the_way(folder: Path) -> Path:
    (folder / "real" / "data").mkdir(parents=True, mode=0o700)
    (folder / "way").symlink_to("real")
    return folder / "way" / "data"


def has_link_and_goes_back(folder: Path) -> Path:
    (folder / "real" / "deep").mkdir(parents=True)
    (folder / "way").symlink_to("real/deep")
    return folder / "way" / ".." / "data"


def has_open_folder_above(folder: Path) -> Path:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o757)
    return folder / "open" / "data"


def has_folder_of_a_group_above(folder: Path) -> Path:
    (folder / "open").mkdir()
    os.chown(folder / "open", -1, 100 if os.geteuid() == 0 else os.getegid())
    (folder / "open").chmod(0o770)
    return folder / "open" / "data"


def is_open(folder: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o777)
    return folder / "data"


def is_open_and_sticky(folder: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o1777)
    return folder / "data"


def is_of_another(folder: Path) -> Path:
    (folder / "data").mkdir(mode=0o700)
    os.chown(folder / "data", 12340, 12340)
    return folder / "data"


def is_below_one_of_another(folder: Path) -> Path:
    (folder / "theirs").mkdir(mode=0o755)
    os.chown(folder / "theirs", 12340, 12340)
    return folder / "theirs" / "data"


def has_a_link_inside(folder: Path) -> Path:
    (folder / "data").mkdir(mode=0o700)
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "data" / "trash").symlink_to("../elsewhere")
    return folder / "data"


def is_file(folder: Path) -> Path:
    (folder / "data").touch()
    return folder / "data"


Spoil = Callable[[Path], Path]
LINKS: tuple[Spoil, ...] = (is_link, is_link_to_nowhere, has_link_on_the_way, has_link_and_goes_back)
OPEN: tuple[Spoil, ...] = (has_open_folder_above, is_open, is_open_and_sticky)


@pytest.mark.parametrize("spoil", LINKS)
def test_links_are_refused_with_the_real_path(tmp_path: Path, spoil: Spoil) -> None:
    path = spoil(tmp_path)
    with pytest.raises(UnsafeFolderError, match="is a link") as caught:
        secure(path)
    assert str(path) in str(caught.value)
    assert f"CORRAL_DATA_DIR={path.resolve()} " in caught.value.hint
    assert list(path.resolve().parent.glob("data/*")) == []


@pytest.mark.parametrize("spoil", OPEN)
def test_folders_that_others_can_write_are_refused(tmp_path: Path, spoil: Spoil) -> None:
    path = spoil(tmp_path)
    with pytest.raises(UnsafeFolderError, match="others can write to") as caught:
        secure(path)
    assert str(path) in str(caught.value)
    assert "chmod" in caught.value.hint


@pytest.mark.needs_root
def test_folders_of_a_group_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFolderError, match="others can write to"):
        secure(has_folder_of_a_group_above(tmp_path))


@pytest.mark.needs_root
@pytest.mark.parametrize("spoil", [is_of_another, is_below_one_of_another])
def test_folders_of_another_user_are_refused(tmp_path: Path, spoil: Spoil) -> None:
    path = spoil(tmp_path)
    with pytest.raises(UnsafeFolderError, match=r"belongs to another user \(uid 12340\)") as caught:
        secure(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_link_in_the_folder_is_refused(tmp_path: Path) -> None:
    path = has_a_link_inside(tmp_path)
    with pytest.raises(UnsafeFolderError, match="trash in it is not a folder that you own"):
        secure(path)


def test_file_in_its_place_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFolderError, match="can't be used: Not a directory"):
        secure(is_file(tmp_path))


def give_groups(
    monkeypatch: pytest.MonkeyPatch, *, group: str, members: list[str], others: dict[str, int] | None = None
) -> None:
    """Who runs the tests is called ann, and their group as given; `others` have names and primary groups."""
    person = pwd.struct_passwd(("ann", "x", os.geteuid(), os.getegid(), "", "/", ""))
    people = [pwd.struct_passwd((name, "x", 77, gid, "", "/", "")) for name, gid in (others or {}).items()]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: person)
    monkeypatch.setattr(pwd, "getpwall", lambda: [person, *people])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((group, "x", gid, members)))


def make_for_group(folder: Path) -> Path:
    """As a umask of 0002 makes them, which many distributions have."""
    for path in (folder / "above", folder / "above" / "data"):
        path.mkdir()
        path.chmod(0o775)
    return folder / "above" / "data"


def test_folder_of_a_persons_own_group_is_no_danger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_groups(monkeypatch, group="ann", members=["ann"])
    path = make_for_group(tmp_path)
    secure(path)
    assert mode_of(path) == 0o700


@pytest.mark.parametrize(("group", "members"), [("ann", ["ann", "bob"]), ("staff", [])])
def test_folder_of_a_group_with_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, members: list[str]
) -> None:
    give_groups(monkeypatch, group=group, members=members)
    with pytest.raises(UnsafeFolderError, match=r"others can write to .*above \(mode 0775"):
        secure(make_for_group(tmp_path))


def test_group_that_is_anothers_first_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_groups(monkeypatch, group="ann", members=[], others={"bob": os.getegid(), "eve": os.getegid() + 1})
    with pytest.raises(UnsafeFolderError, match="others can write"):
        secure(make_for_group(tmp_path))


def test_list_of_people_who_may_write_is_no_persons_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_groups(monkeypatch, group="ann", members=[])
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    entries = ((0x01, 7, 2**32 - 1), (0x02, 7, 12340), (0x04, 0, 2**32 - 1), (0x10, 7, 2**32 - 1), (0x20, 0, 2**32 - 1))
    access_list = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", access_list)
    except OSError:
        return  # no such lists on this file system, nor in this user namespace
    with pytest.raises(UnsafeFolderError, match="others can write to it"):
        secure(path)


def test_sticky_folder_above_is_no_danger(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    secure(tmp_path / "shared" / "data")
    assert mode_of(tmp_path / "shared" / "data") == 0o700


# Every door.


async def _create(path: Path) -> None:
    await EmbeddedBackend(path).create(Spec())


async def _list(path: Path) -> None:
    await EmbeddedBackend(path).list()


async def _connect(path: Path) -> None:
    await EmbeddedBackend(path).connect("0" * 8)


async def _connect_by_id(path: Path) -> None:
    await EmbeddedBackend(path).connect("00000000-0000-0000-0000-000000000000")


async def _start(path: Path) -> None:
    await EmbeddedBackend(path).start("0" * 8)


async def _delete(path: Path) -> None:
    await EmbeddedBackend(path).delete("0" * 8)


async def _capabilities(path: Path) -> None:
    await EmbeddedBackend(path).capabilities()


async def _list_snapshots(path: Path) -> None:
    await EmbeddedBackend(path).list_snapshots()


async def _delete_snapshot(path: Path) -> None:
    await EmbeddedBackend(path).delete_snapshot("x")


async def _from_snapshot(path: Path) -> None:
    EmbeddedBackend(path).find_layers(Spec(snapshot="x"))


async def _sweep(path: Path) -> None:
    keepers.sweep_now(path)


async def _examine(path: Path) -> None:
    report.examine(path)


async def _measure(path: Path) -> None:
    report.measure_leftovers(path)


async def _packages(path: Path) -> None:
    async def resolve(packages: tuple[str, ...], folder: Path) -> bool:
        raise AssertionError("the folder is checked first")

    await packages.provide_packages(path, ("nothing",), resolve, tell=print)


async def _typescript(path: Path) -> None:
    typescript.installed(path)


async def _typescript_remove(path: Path) -> None:
    typescript.remove(path)


async def _database(path: Path) -> None:
    Database(path / "server", serving=True)


DOORS = (_create, _list, _connect, _connect_by_id, _start, _delete, _capabilities, _list_snapshots, _delete_snapshot,
         _from_snapshot, _sweep, _examine, _measure, _packages, _typescript, _typescript_remove, _database)  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("door", DOORS)
async def test_no_door_leads_into_a_folder_that_is_not_safe(tmp_path: Path, door: Callable[[Path], object]) -> None:
    """Another user has prepared it: nothing in it is followed, and nothing there is removed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("trash", "base", "packages", "runtimes", "sandboxes", "snapshots", "layers"):
        (theirs / name).symlink_to(victim)
    theirs.chmod(0o777)
    with pytest.raises(BackendUnavailableError, match="others can write to") as caught:
        await door(theirs)  # type: ignore[misc]  # each is a coroutine function
    assert str(theirs) in caught.value.message
    assert "chmod 700" in caught.value.hint
    assert [path.name for path in victim.iterdir()] == ["precious"]


def test_owner_of_the_base_is_no_sandboxs_and_no_logins() -> None:
    assert BASE_FIRST_UID >= FIRST_UID + SLOTS * UID_RANGE_SIZE
    assert BASE_FIRST_UID + UID_RANGE_SIZE <= 2**31
