"""Volumes on the real kernel: what each sandbox sees, who may use one, and what is left when processes are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral import AsyncVolume, Mount, Resources, Spec
from corral.backends.embedded import EmbeddedBackend
from corral.engine.recipe import BASE_FIRST_UID
from corral.engine.state import DataFolder
from corral.engine.sweep import discard_dead
from corral.errors import (
    CapabilityError,
    MountError,
    SpecError,
    VolumeExistsError,
    VolumeInUseError,
    VolumeNotFoundError,
)
from support.leftovers import list_loops, wait_until
from support.user import OrdinaryUser

MIB = 2**20
pytestmark = pytest.mark.needs_userns


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    await backend.aclose()


async def test_two_sandboxes_share_a_volume_and_it_outlives_them(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with (
        await backend.create(Spec(mounts={"/data": "shared"})) as first,
        await backend.create(Spec(mounts={"/home/daytona/in": "shared:ro"})) as second,
    ):
        await first.exec("echo one > /data/file", check=True)
        seen = await second.exec("stat -c %U in in/file; cat in/file; echo two > in/file; id -u")
        assert seen.stdout == "daytona\ndaytona\none\n1000\n"
        assert "Read-only file system" in seen.stderr
    async with await backend.create(Spec(mounts={"/data": "shared"})) as third:
        assert (await third.files.read_text("/data/file")) == "one\n"


async def test_a_view_of_one_call_covers_volumes_too(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        result = await box.exec("echo x > /data/file", read_only=["/"])
        assert "Read-only file system" in result.stderr
        assert (await box.exec("echo x > /data/file")).ok


async def test_set_user_id_and_devices_have_no_effect_in_a_volume(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared", "/in": "shared:ro"})) as box:
        options = (await box.exec("grep -E ' /(data|in) ' /proc/self/mountinfo | cut -d' ' -f6")).stdout.split()
        assert len(options) == 2
        assert all({"nosuid", "nodev"} <= set(each.split(",")) for each in options)


async def test_an_exclusive_volume_has_one_user_who_is_named(backend: EmbeddedBackend) -> None:
    volume = await backend.create_volume("mine")
    alone = Spec(mounts=[Mount("/data", volume="mine", exclusive=True)])
    async with await backend.create(alone) as box:
        for spec in (alone, Spec(mounts={"/data": "mine"})):
            with pytest.raises(VolumeInUseError, match=box.id):
                await backend.create(spec)
        with pytest.raises(VolumeInUseError):
            await box.fork()
        with pytest.raises(VolumeInUseError, match=box.id):
            await backend.delete_volume("mine")
    async with await backend.create(Spec(mounts={"/data": volume.volume_id})):
        with pytest.raises(VolumeInUseError):
            await backend.create(alone)
    await backend.delete_volume(volume.volume_id)
    assert await backend.list_volumes() == []


async def test_mounts_survive_a_stop_and_a_stopped_sandbox_keeps_its_volume(backend: EmbeddedBackend) -> None:
    await backend.create_volume("kept")
    box = await backend.create(Spec(mounts=[Mount("/data", volume="kept", exclusive=True)]))
    await box.exec("echo before > /data/file", check=True)
    await box.stop()
    await box.aclose()
    with pytest.raises(VolumeInUseError, match=box.id):
        await backend.delete_volume("kept")
    async with await backend.start(box.id) as again:
        assert (await again.exec("cat /data/file")).stdout == "before\n"
        assert again.spec.mounts == (Mount("/data", volume="kept", exclusive=True),)
        with pytest.raises(VolumeInUseError, match=box.id):  # its keeper holds it, not this process
            await backend.create(Spec(mounts={"/data": "kept"}))
        await again.kill()
    await backend.delete_volume("kept")


async def test_a_fork_shares_the_volume_and_a_snapshot_does_not_contain_it(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        await box.exec("echo volume > /data/file; echo own > own", check=True)
        async with await box.fork() as fork:
            assert (await fork.exec("cat own /data/file; echo more >> /data/file")).stdout == "own\nvolume\n"
        assert (await box.exec("cat /data/file")).stdout == "volume\nmore\n"
        snapshot = await box.snapshot()
    async with await backend.create(Spec(snapshot=snapshot)) as plain:
        assert (await plain.exec("cat own; ls -A /data")).stdout == "own\n"


@pytest.mark.parametrize("subpath", ["link", "link/inner", "folder/up", "file"])
async def test_links_that_a_program_planted_in_a_volume_lead_nowhere(backend: EmbeddedBackend, subpath: str) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        await box.exec("cd /data; ln -s /etc link; mkdir folder; ln -s ../.. folder/up; touch file", check=True)
    for mode in ("ro", "rw"):
        with pytest.raises(MountError, match="subpath"):
            await backend.create(Spec(mounts=[Mount("/data", volume="shared", subpath=subpath, mode=mode)]))  # type: ignore[arg-type]


async def test_a_subpath_shows_only_itself(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts=[Mount("/data", volume="shared", subpath="a/b")])) as box:
        assert (await box.exec("echo x > /data/file; ls -A /data /data/..; stat -c %U /data")).ok
    async with await backend.create(Spec(mounts={"/all": "shared"})) as box:
        assert (await box.exec("cd /all; find . | sort")).stdout == ".\n./a\n./a/b\n./a/b/file\n"
    with pytest.raises(MountError, match="No such file"):
        await backend.create(Spec(mounts=[Mount("/data", volume="shared", subpath="missing", mode="ro")]))


async def test_links_in_the_sandboxs_own_files_are_no_mount_points(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec()) as box:
        await box.exec("ln -s /etc planted; touch file; ln -s /workspace /home/daytona/over", check=True)
        snapshot = await box.snapshot()
    for path in ("/home/daytona/planted", "/home/daytona/planted/new", "/home/daytona/over", "/home/daytona/file"):
        with pytest.raises(MountError, match="on this path"):
            await backend.create(Spec(snapshot=snapshot, mounts={path: "shared"}))


@pytest.mark.parametrize("path", ["/home/daytona", "/home/daytona/.local", "/home/daytona/.local/lib"])
async def test_our_own_files_are_never_written_into_a_volume(
    backend: EmbeddedBackend, tmp_path: Path, path: str
) -> None:
    """Another sandbox may have put links there, and a volume may be read-only."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    await backend.create_volume("home")
    for mode in ("rw", "ro"):
        with pytest.raises(MountError, match="/home/daytona/data"):
            await backend.create(Spec(mounts=[Mount(path, volume="home", mode=mode)], venv=str(venv)))  # type: ignore[arg-type]
    async with await backend.create(Spec(mounts={path: "home", "/mnt": "home"})) as box:
        assert (await box.exec("find . -mindepth 1; ls -A /mnt")).stdout in (
            "",
            "./.local\n",
            "./.local\n./.local/lib\n",
        )
        assert (await box.exec(f"echo x > {path}/file; cd /mnt && cat file")).stdout == "x\n"
    async with await backend.create(Spec(mounts={"/home/daytona/data": "home"}, venv=str(venv))) as box:
        assert (await box.exec("ls data")).stdout == "file\n"


async def test_volumes_do_not_count_in_the_sandboxs_disk(backend: EmbeddedBackend) -> None:
    await backend.create_volume("large")
    small = Spec(mounts={"/data": "large"}, resources=Resources(disk_bytes=24 * MIB))
    async with await backend.create(small) as box:
        for number in range(3):
            done = await box.exec(f"head -c {20 * MIB} /dev/urandom > /data/{number}")
            assert done.ok, done.output
        assert (await box.exec("echo still > here")).ok


async def test_missing_and_taken_names_are_errors_of_their_own(backend: EmbeddedBackend) -> None:
    with pytest.raises(VolumeNotFoundError, match="corral volume create"):
        await backend.create(Spec(mounts={"/data": "nothing"}))
    with pytest.raises(VolumeNotFoundError):
        await AsyncVolume.get("nothing", backend=backend)
    made = await AsyncVolume.get("one", create=True, backend=backend)
    assert (await AsyncVolume.get("one", create=True, backend=backend)).volume_id == made.volume_id
    with pytest.raises(VolumeExistsError):
        await backend.create_volume("one")
    with pytest.raises(SpecError):
        await backend.create_volume(made.volume_id)
    other = await backend.create_volume("one", owner="organisation")
    assert [info.volume_id for info in await backend.list_volumes()] == [made.volume_id]
    with pytest.raises(VolumeNotFoundError):
        await backend.delete_volume(other.volume_id)
    await made.delete()
    with pytest.raises(VolumeNotFoundError):
        await made.delete()


@pytest.mark.needs_root
async def test_the_quota_of_a_volume_is_hard_and_shared(backend: EmbeddedBackend) -> None:
    await backend.create_volume("small", size_bytes="16MiB")
    mounted = Spec(mounts={"/data": "small"})
    async with await backend.create(mounted) as first, await backend.create(mounted) as second:
        await first.exec(f"head -c {10 * MIB} /dev/zero > /data/one", check=True)
        failed = await second.exec(f"head -c {10 * MIB} /dev/zero > /data/two")
        assert "No space left" in failed.stderr
        assert len(list_loops(str(backend.data_folder / "volumes"))) == 1
    assert wait_until(lambda: not list_loops(str(backend.data_folder / "volumes")))
    [info] = await backend.list_volumes()
    assert info.size_bytes == 16 * MIB
    assert info.used_bytes is not None
    assert info.used_bytes > 10 * MIB


@pytest.mark.needs_root
async def test_a_volumes_files_belong_to_no_user_of_the_host(backend: EmbeddedBackend) -> None:
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        await box.exec("touch /data/mine", check=True)
        await box.exec("touch /data/roots", user="root", check=True)
        seen = _find_outside(backend, box.id, "data/mine").parent
        owners = {name: (seen / name).stat().st_uid for name in ("mine", "roots")}
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        assert (await box.exec("stat -c '%n %u' /data/*")).stdout == "/data/mine 1000\n/data/roots 0\n"
    assert owners["mine"] - owners["roots"] == 1000
    assert owners["roots"] < BASE_FIRST_UID


def _find_outside(backend: EmbeddedBackend, sandbox_id: str, path: str) -> Path:
    """A file of a sandbox as this machine sees it: through its init, which is one of its maker's children."""
    maker = json.loads((backend.data_folder / "sandboxes" / sandbox_id / "state.json").read_text())["maker"]
    children = Path(f"/proc/{maker}/task/{maker}/children").read_text().split()
    return next(found for pid in children if (found := Path(f"/proc/{pid}/root", path)).exists())


KILLED = """
import asyncio, sys
from corral import Mount, Spec
from corral.backends.embedded import EmbeddedBackend
async def main():
    backend = EmbeddedBackend(sys.argv[1])
    await backend.create_volume("shared")
    box = await backend.create(Spec(mounts=[Mount("/data", volume="shared", exclusive=True)]))
    await box.exec("echo kept > /data/file; sync", check=True)
    print(box.id, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_killed_owner_leaves_the_volume_free_and_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(data)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stdout is not None
    sandbox_id = await asyncio.to_thread(program.stdout.readline)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    assert sandbox_id
    backend = EmbeddedBackend(data)
    alone = Spec(mounts=[Mount("/data", volume="shared", exclusive=True)])

    async def mount() -> str:
        async with await backend.create(alone) as box:
            return (await box.exec("cat /data/file")).stdout

    async with asyncio.timeout(30):
        while True:
            try:
                assert await mount() == "kept\n"
            except VolumeInUseError:  # the launcher of the killed program is still clearing up
                await asyncio.sleep(0.05)
            else:
                break
    await backend.aclose()


async def test_drafts_of_a_killed_creation_are_swept(tmp_path: Path, backend: EmbeddedBackend) -> None:
    await backend.create_volume("whole")
    ended = subprocess.Popen(["true"])
    ended.wait()
    draft = backend.data_folder / "volumes" / f".new-{ended.pid}-00ff"
    draft.mkdir()
    (draft / "volume.json").write_text("{")
    assert [info.name for info in await backend.list_volumes()] == ["whole"]
    discard_dead(DataFolder(backend.data_folder))
    assert not draft.exists()


ROOTLESS = """
import asyncio, sys
from corral import Mount, Spec
from corral.backends.embedded import EmbeddedBackend
from corral.errors import CapabilityError, MountError, VolumeInUseError
async def main():
    backend = EmbeddedBackend(sys.argv[1])
    try:
        await backend.create_volume("small", size_bytes="16MiB")
    except CapabilityError as error:
        print("refused:", error)
    await backend.create_volume("shared")
    async with await backend.create(Spec(mounts={"/data": "shared"})) as box:
        await box.exec("echo one > /data/file; ln -s /etc /data/link", check=True)
        async with await backend.create(Spec(mounts={"/in": "shared:ro"})) as other:
            print((await other.exec("stat -c %U /in/file; cat /in/file; echo no > /in/file || echo read-only")).stdout)
            print("setuid:", (await box.exec("grep ' /data ' /proc/self/mountinfo")).stdout.count("nosuid,nodev"))
        print("view:", (await box.exec("echo x > /data/file", read_only=["/"])).ok)
        try:
            await backend.create(Spec(mounts=[Mount("/in", volume="shared", exclusive=True)]))
        except VolumeInUseError as error:
            print("in use:", box.id in str(error))
    try:
        await backend.create(Spec(mounts=[Mount("/in", volume="shared", subpath="link")]))
    except MountError as error:
        print("link:", error)
    await backend.delete_volume("shared")
    print("left:", await backend.list_volumes())
    await backend.aclose()
asyncio.run(main())
"""


def test_an_ordinary_user_has_volumes_without_quotas(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(ROOTLESS, args=[str(ordinary_user.home / "data")])
    assert done.returncode == 0, done.stderr
    assert "refused: a volume of a limited size is not possible here" in done.stdout
    assert "daytona\none\nread-only\n" in done.stdout
    assert "setuid: 1\nview: False\nin use: True\n" in done.stdout
    assert "'link' on this path is a link" in done.stdout
    assert done.stdout.endswith("left: []\n")


def test_sizes_need_root(tmp_path: Path) -> None:
    """The rule that a limit holds or is refused, where no loop device can be had either."""
    if os.geteuid() != 0:
        with pytest.raises(CapabilityError):
            asyncio.run(EmbeddedBackend(tmp_path / "data").create_volume("small", size_bytes="16MiB"))
