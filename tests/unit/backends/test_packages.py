"""Sets of packages on the host: kept, shared, compared with their hashes. A copy stands in for pip in its sandbox."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.embedded.packages import packages_folder, provide_packages
from corral.errors import BackendUnavailableError, SpecError
from support.wheels import make_wheel


class Index:
    """Wheels that are resolved to, whatever is asked for, and a count of how often."""

    def __init__(self, tmp_path: Path) -> None:
        self.wheels = tmp_path / "index"
        self.data = tmp_path / "data"
        self.resolved = 0
        self.built = False
        self.told: list[str] = []

    def add(self, name: str, version: str = "1.0", **more: str) -> Path:
        return make_wheel(self.wheels, name, version, **more)  # type: ignore[arg-type]

    async def resolve(self, packages: tuple[str, ...], folder: Path) -> bool:
        self.resolved += 1
        await asyncio.sleep(0)
        shutil.copytree(self.wheels, folder)
        return self.built

    async def provide(self, *packages: str) -> Path:
        return await provide_packages(self.data, packages, self.resolve, tell=self.told.append)

    @property
    def lock(self) -> Path:
        (path,) = (self.data / "packages/wheels").glob("*.json")
        return path

    def nothing_is_left(self) -> bool:
        return not list((self.data / "packages").rglob(".new*"))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
async def test_set_is_resolved_once_and_everybody_can_read_it(index: Index) -> None:
    index.add("one", program="tell")
    folder = await index.provide("One>=1")
    assert await index.provide("one >= 1") == folder
    assert index.resolved == 1
    assert (folder / "one.py").stat().st_mode & 0o777 == 0o644
    assert (folder / "bin/tell").stat().st_mode & 0o777 == 0o755
    assert folder.stat().st_mode & 0o777 == 0o755
    assert index.nothing_is_left()


async def test_set_is_unpacked_again_from_the_same_wheels(index: Index) -> None:
    index.add("one")
    folder = await index.provide("one")
    shutil.rmtree(folder)
    shutil.rmtree(index.wheels)
    assert await index.provide("one") == folder
    assert (folder / "one.py").read_text() == "version = '1.0'\n"
    assert index.resolved == 1
    (locked,) = json.loads(index.lock.read_bytes())["wheels"]
    assert (locked["name"], locked["version"], len(locked["sha256"])) == ("one", "1.0", 64)


async def test_wheel_is_kept_once_for_all_sets(index: Index) -> None:
    index.add("one")
    index.add("two")
    await index.provide("one")
    await index.provide("one", "two")
    assert sorted(path.name for path in (index.data / "packages/wheels").rglob("*.whl")) == [
        "one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl",
    ]  # fmt: skip


async def test_damaged_wheel_is_not_unpacked(index: Index) -> None:
    index.add("one")
    folder = await index.provide("one")
    shutil.rmtree(folder)
    (kept,) = (index.data / "packages/wheels").rglob("*.whl")
    with kept.open("ab") as file:
        file.write(b"damage")
    assert await index.provide("one") == folder
    assert index.resolved == 2


@pytest.mark.parametrize("built", [False, True])
async def test_wheel_that_has_changed_at_its_index_is_refused(index: Index, built: bool) -> None:
    """Unless it was built from source, which gives another file each time."""
    index.add("one")
    index.built = built
    folder = await index.provide("one")
    for path in (folder, *(index.data / "packages/wheels").glob("[0-9a-f]*[0-9a-f]/")):
        shutil.rmtree(path, ignore_errors=True)
    index.add("one", more="Summary: another\n")
    if built:
        assert await index.provide("one") == folder
        return
    with pytest.raises(SpecError, match=r"one-1\.0-py3-none-any\.whl has changed at its index") as raised:
        await index.provide("one")
    assert index.nothing_is_left()
    (index.data / str(raised.value.hint).split()[5]).unlink()  # as the hint says
    assert await index.provide("one") == folder


async def test_many_who_want_the_same_set_resolve_it_once(index: Index) -> None:
    index.add("one")
    assert len(set(await asyncio.gather(*(index.provide("one") for _ in range(5))))) == 1
    assert index.resolved == 1


async def test_failure_and_cancellation_leave_nothing(index: Index) -> None:
    async def fail(packages: tuple[str, ...], folder: Path) -> bool:
        folder.mkdir(parents=True)
        raise SpecError("no such package")

    with pytest.raises(SpecError, match="no such package"):
        await provide_packages(index.data, ("one",), fail, tell=index.told.append)
    assert index.nothing_is_left()
    begun = asyncio.Event()

    async def hang(packages: tuple[str, ...], folder: Path) -> bool:
        folder.mkdir(parents=True)
        begun.set()
        await asyncio.Event().wait()
        return False

    task = asyncio.create_task(provide_packages(index.data, ("one",), hang, tell=index.told.append))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert index.nothing_is_left()
    index.add("one")
    await index.provide("one")  # the lock is free


async def test_full_disk_is_an_error_that_says_what_to_do(index: Index) -> None:
    async def fill(packages: tuple[str, ...], folder: Path) -> bool:
        folder.mkdir(parents=True)
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    with pytest.raises(BackendUnavailableError, match="can't be kept on this machine: No space left") as raised:
        await provide_packages(index.data, ("one",), fill, tell=index.told.append)
    assert "packages/" in str(raised.value.hint)
    assert str(index.data) not in str(raised.value)
    assert index.nothing_is_left()


async def test_address_is_refused_below_the_spec_too(index: Index) -> None:
    with pytest.raises(SpecError, match="is not a package"):
        await index.provide("evil @ file:///x")
    assert index.resolved == 0


def test_each_set_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, two = packages_folder(tmp_path, ("a", "b")), packages_folder(tmp_path, ("b", "a"))
    assert one == two != packages_folder(tmp_path, ("a",))
