"""Where writes go: quotas that hold, and nothing on the host when it is over."""

import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.engine.recipe import Limits
from corral.engine.storage.loop import LoopStorage
from corral.errors import SandboxNoSpaceError
from corral.spec import Resources, Spec
from support.leftovers import list_loops, wait_until
from support.user import OrdinaryUser

MIB = 2**20
ROOM_MIB = 4  # a file system's own tables are given on top, and what they do not need is the sandbox's
SMALL = Resources(disk_bytes=32 * MIB, inodes=400)

FILL = """
import errno, os
os.makedirs("fill", exist_ok=True)
total = 0
try:
    with open("fill/large", "wb", buffering=0) as file:
        for _ in range(200):
            total += file.write(b"x" * 2**20)
except OSError as error:
    print(errno.errorcode[error.errno], end=" ")
print(total)
"""
FILL_INODES = """
import errno, os
os.makedirs("many", exist_ok=True)
count = 0
try:
    for count in range(5000):
        open(f"many/{count}", "w").close()
except OSError as error:
    print(errno.errorcode[error.errno], end=" ")
print(count)
"""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    await backend.aclose()


@pytest.mark.needs_root
async def test_bytes_of_a_disk_are_hard(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=SMALL)) as box:
        result = await box.run_code(FILL, check=True)
        # A single file is bounded by an rlimit of the same size, the rest by the file system.
        code, total = result.stdout.split()
        assert code in ("ENOSPC", "EFBIG")
        assert 16 * MIB < int(total) <= 32 * MIB
        for number in range(3):
            await box.exec(f"head -c 20M /dev/zero > fill/{number}")
        with pytest.raises(SandboxNoSpaceError):
            await box.files.write("more", b"x" * 10 * MIB)
        assert (await box.usage()).disk_bytes is not None
        used = (await box.exec("du -sm /home /tmp /workspace | awk '{ sum += $1 } END { print sum }'")).stdout
        assert int(used) <= 32 + ROOM_MIB + 3  # each of the three is rounded up
        # Full, but alive: what is removed can be used again.
        await box.files.remove("fill", recursive=True)
        await box.files.write("more", b"x" * 10 * MIB)


@pytest.mark.needs_root
async def test_inodes_of_a_disk_are_hard(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=SMALL)) as box:
        code, count = (await box.run_code(FILL_INODES, check=True)).stdout.split()
        assert code == "ENOSPC"
        assert 300 < int(count) < 800  # a file system has them in whole blocks
        await box.exec("touch more-1 more-2 more-3 more-4 more-5")  # the snippet's own file has made room for some
        with pytest.raises(SandboxNoSpaceError):
            await box.files.write("more", b"x")
        await box.exec("rm -rf many", check=True)
        await box.files.write("more", b"x")


@pytest.mark.needs_root
async def test_disk_is_bounded_for_root_inside_too(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=SMALL)) as box:
        await box.exec("for n in 1 2 3; do head -c 20M /dev/zero > /usr/local/$n; done", user="root")
        used = (await box.exec("cat /usr/local/1 /usr/local/2 /usr/local/3 | wc -c", user="root")).stdout
        assert 16 * MIB < int(used) <= (32 + ROOM_MIB) * MIB


@pytest.mark.needs_root
async def test_disk_costs_the_host_what_is_written_and_no_more(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=Resources(disk_bytes=4 * 2**30))) as box:
        image = backend.data_folder / "sandboxes" / box.id / "disk.img"
        assert image.stat().st_size >= 4 * 2**30
        assert image.stat().st_blocks * 512 < 8 * MIB


@pytest.mark.needs_root
async def test_loop_device_goes_with_its_sandbox(backend: EmbeddedBackend) -> None:
    folder = backend.data_folder
    async with await backend.create(Spec()) as one, await backend.create(Spec()) as two:
        assert len(list_loops(folder)) == 2
        await one.files.write("/workspace/x", b"1")
        assert not await two.files.exists("/workspace/x")
    assert wait_until(lambda: not list_loops(folder))
    assert wait_until(lambda: not list((folder / "trash").iterdir()))
    assert list((folder / "sandboxes").iterdir()) == []


async def test_ephemeral_bytes_and_inodes_are_hard_and_not_on_disk(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=SMALL, ephemeral=True)) as box:
        folder = backend.data_folder / "sandboxes" / box.id
        assert sorted(path.name for path in folder.iterdir()) == ["lock", "state.json"]
        code, total = (await box.run_code(FILL, check=True)).stdout.split()
        assert code in ("ENOSPC", "EFBIG")
        assert 16 * MIB < int(total) <= 32 * MIB
        await box.exec("rm -rf fill", check=True)
        code, count = (await box.run_code(FILL_INODES, check=True)).stdout.split()
        assert code == "ENOSPC"
        assert 100 < int(count) <= 400


async def test_ephemeral_files_are_gone_with_their_sandbox_and_apart(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(ephemeral=True)) as one, await backend.create(Spec(ephemeral=True)) as two:
        await one.files.write("x", b"1")
        assert not await two.files.exists("x")
        assert await one.files.read("x") == b"1"


SOFT = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Resources, Spec

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    assert (await backend.capabilities()).disk == "soft"
    async with await backend.create(Spec(resources=Resources(disk_bytes=20 * 2**20, inodes=2000))) as box:
        result = await box.exec(sys.argv[2], timeout=60)
        print(result.reason, result.limit)
        await box.exec("chmod -R 700 .; rm -rf /home/daytona/*", timeout=60)
        # The watch looks once a second; until then it ends what is started.
        while (again := await box.exec("sleep 1.5; echo usable again", timeout=60)).reason == "signalled":
            pass
        print(again.stdout.strip())
    await backend.aclose()

asyncio.run(main())
"""
WAYS_TO_FILL = {
    "large files": "for n in 1 2 3; do head -c 15M /dev/zero > $n; done; sleep 1000",
    "many files": "python3 -c 'for n in range(5000): open(str(n), \"w\").close()'; sleep 1000",
    "a folder that may not be listed": (
        "mkdir d; chmod 300 d; for n in 1 2 3; do head -c 15M /dev/zero > d/$n; done; sleep 1000"
    ),
    "a folder with the name of the kernel's own": (
        "mkdir -p w/work; for n in 1 2 3; do head -c 15M /dev/zero > w/work/$n; done; chmod 0 w/work; sleep 1000"
    ),
    "a folder deeper than a path": (
        'python3 -c \'import os\nfor n in range(40): os.mkdir("d" * 200); os.chdir("d" * 200)\n'
        'for n in range(3): open(str(n), "wb").write(bytes(15 * 2**20))\'; sleep 1000'
    ),
}


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("way", WAYS_TO_FILL)
def test_folder_is_watched_and_its_program_ended(ordinary_user: OrdinaryUser, way: str) -> None:
    done = ordinary_user.run(SOFT, args=[str(ordinary_user.home / "data"), WAYS_TO_FILL[way]], timeout=100)
    assert done.stdout == "signalled disk\nusable again\n", done.stderr


LOCKED = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Resources, Spec

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    async with await backend.create(Spec(resources=Resources(disk_bytes=20 * 2**20))) as box:
        make = "mkdir $mode; head -c 1M /dev/zero > $mode/x; chmod $mode $mode"
        wait = "while [ ! -e go ]; do sleep 0.1; done; echo alive"
        program = asyncio.create_task(box.exec(f"for mode in 300 100 400 000; do {make}; done; {wait}", timeout=60))
        while not program.done() and ((await box.usage()).disk_bytes or 0) < 4 * 2**20:
            await asyncio.sleep(0.1)  # until all of it has been measured
        if not program.done():
            await box.files.write("go", b"")
        result = await program
        print(result.reason, result.limit, result.stdout.strip())
    await backend.aclose()

asyncio.run(main())
"""


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_folders_that_the_code_may_not_read_are_measured_and_end_no_program(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(LOCKED, args=[str(ordinary_user.home / "data")], timeout=100)
    assert done.stdout == "exited None alive\n", done.stderr


@pytest.mark.needs_root
async def test_small_disk_needs_no_thought_about_inodes(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec(resources=Resources(disk_bytes="16MiB"))) as box:
        await box.files.write("x", b"1")
        assert (await box.exec("cat x")).stdout == "1"


def test_templates_that_were_not_used_for_long_are_collected(tmp_path: Path) -> None:
    if not LoopStorage.available():
        pytest.skip("mkfs.ext4 and loop devices are not here")
    storage = LoopStorage(str(tmp_path / "disks"))
    (tmp_path / "disks").mkdir()
    left = tmp_path / "disks" / "1-2.img.4711"
    left.touch()
    os.utime(left, (0, 0))
    first = Limits(memory_bytes=MIB, processes=1, cpus=1, disk_bytes=8 * MIB, inodes=16)
    for number in range(12):
        storage.copy_template(first, str(tmp_path / "copy"))
        other = dataclasses.replace(first, disk_bytes=(9 + number) * MIB)
        storage.copy_template(other, str(tmp_path / "copy"))
    kept = sorted(path.name for path in (tmp_path / "disks").iterdir())
    assert len(kept) == 8
    assert any(name.startswith(str(8 * MIB + 16 * 256 + 2 * MIB)) for name in kept)  # used all the time
    assert left.name not in kept


@pytest.mark.needs_root
async def test_sandboxes_of_many_sizes_leave_few_templates(tmp_path: Path) -> None:
    if not LoopStorage.available():
        pytest.skip("mkfs.ext4 and loop devices are not here")
    backend = EmbeddedBackend(tmp_path / "data")
    try:
        for number in range(10):
            box = await backend.create(Spec(resources=Resources(disk_bytes=(16 + number) * MIB)))
            await box.kill()
    finally:
        await backend.aclose()
    assert 1 <= len(list((tmp_path / "data").rglob("*-*.img"))) <= 8
