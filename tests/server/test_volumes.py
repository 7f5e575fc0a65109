"""Volumes through the official SDK, and what another organisation sees of them: nothing."""

import uuid
from collections.abc import Iterator

import aiohttp
import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    VolumeMount,
)
from daytona.common.volume import Volume
from yarl import URL

from corral.server.auth import Keyring
from corral.server.store.database import Database
from support.serving import ServedProcess, make_client


@pytest.fixture
def volume(daytona: Daytona) -> Iterator[Volume]:
    made = daytona.volume.create(f"data-{uuid.uuid4().hex[:8]}")
    yield made
    if made.id in [each.id for each in daytona.volume.list()]:
        daytona.volume.delete(made)


def mounted(*mounts: VolumeMount) -> CreateSandboxFromSnapshotParams:
    return CreateSandboxFromSnapshotParams(volumes=list(mounts))


def test_a_volume_is_created_found_and_deleted(daytona: Daytona, volume: Volume) -> None:
    assert volume.state == "ready"
    assert daytona.volume.get(volume.name).id == volume.id
    with pytest.raises(DaytonaBadRequestError, match=f"Volume with name {volume.name} already exists"):
        daytona.volume.create(volume.name)
    daytona.volume.delete(volume)
    with pytest.raises(DaytonaNotFoundError, match=f"Volume with name {volume.name} not found"):
        daytona.volume.get(volume.name)
    again = daytona.volume.get(volume.name, create=True)
    assert again.id != volume.id
    daytona.volume.delete(again)
    with pytest.raises(DaytonaNotFoundError):
        daytona.volume.delete(again)


def test_sandboxes_share_a_volume_and_folders_of_it(daytona: Daytona, volume: Volume) -> None:
    whole = daytona.create(mounted(VolumeMount(volume_id=volume.id, mount_path="/home/daytona/volume")))
    part = daytona.create(
        mounted(VolumeMount(volume_id=volume.name, mount_path="/data", subpath="users/alice"))  # a name will do
    )
    forked = None
    try:
        assert [(each.volume_id, each.mount_path) for each in whole.volumes or ()] == [
            (volume.id, "/home/daytona/volume")
        ]
        assert [each.subpath for each in daytona.get(part.id).volumes or ()] == ["users/alice"]
        part.process.exec("echo shared > /data/file")
        assert whole.process.exec("cat volume/users/alice/file").result == "shared\n"
        part.stop()
        with pytest.raises(DaytonaConflictError, match=whole.id):
            daytona.volume.delete(volume)
        part.start()
        assert part.process.exec("cat /data/file").result == "shared\n"
    finally:
        for box in filter(None, (whole, part, forked)):
            daytona.delete(box)
    assert daytona.volume.get(volume.name).last_used_at


@pytest.mark.parametrize("path", ["/", "/etc/x", "data", "/data/../etc", "/proc"])
def test_mount_paths_that_would_break_a_sandbox_are_refused(daytona: Daytona, volume: Volume, path: str) -> None:
    with pytest.raises(DaytonaBadRequestError):
        daytona.create(mounted(VolumeMount(volume_id=volume.id, mount_path=path)))


@pytest.mark.parametrize("subpath", ["..", "/etc", "a/../../b", "link"])
def test_subpaths_stay_in_the_volume(daytona: Daytona, volume: Volume, subpath: str) -> None:
    planter = daytona.create(mounted(VolumeMount(volume_id=volume.id, mount_path="/data")))
    try:
        planter.process.exec("ln -sfn /etc /data/link")
        with pytest.raises(DaytonaBadRequestError):
            daytona.create(mounted(VolumeMount(volume_id=volume.id, mount_path="/data", subpath=subpath)))
    finally:
        daytona.delete(planter)


@pytest.mark.parametrize(
    "wanted",
    ["..", "../../sandboxes", "%2e%2e", "{id}/../{id}", "{id}%2f..", "{ID}", "{{{id}}}", "{id}%20", "urn:uuid:{id}"],
)
async def test_ids_are_compared_exactly(server: ServedProcess, volume: Volume, wanted: str) -> None:
    asked = wanted.replace("{id}", volume.id).replace("{ID}", volume.id.upper())
    body = {"volumes": [{"volumeId": asked, "mountPath": "/data"}]}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as session:
        if volume.id.upper() != volume.id:
            async with session.post(f"{server.url}/sandbox", json=body) as response:
                assert response.status in (400, 404), await response.text()
        if "/" not in asked:
            async with session.delete(URL(f"{server.url}/volumes/{asked}", encoded=True)) as response:
                assert response.status in (400, 404), await response.text()


def test_another_organisation_has_volumes_of_its_own(server: ServedProcess, daytona: Daytona, volume: Volume) -> None:
    database = Database(server.data_folder / "server", serving=False)
    try:
        keyring = Keyring(database)
        _, key = keyring.create(organisation=keyring.organisation_named(f"other-{uuid.uuid4().hex[:8]}"), name="other")
    finally:
        database.close()
    other = Daytona(DaytonaConfig(api_url=server.url, api_key=key))
    assert other.volume.list() == []
    own = other.volume.create(volume.name)  # the same name, and another volume
    try:
        assert own.id != volume.id
        with pytest.raises(DaytonaNotFoundError):
            other.volume.delete(volume)
        for wanted in (volume.id,):
            with pytest.raises(DaytonaNotFoundError):
                other.create(mounted(VolumeMount(volume_id=wanted, mount_path="/data")))
        assert volume.id in [each.id for each in daytona.volume.list()]
    finally:
        other.volume.delete(own)


@pytest.mark.needs_root
async def test_volumes_count_in_the_disk_of_an_organisation_and_are_limited(server: ServedProcess) -> None:
    database = Database(server.data_folder / "server", serving=False)
    try:
        keyring = Keyring(database)
        organisation = keyring.organisation_named(f"small-{uuid.uuid4().hex[:8]}")
        keyring.set_quota(organisation, sandboxes=None, cpu=None, memory_gib=None, disk_gib=12)
        _, key = keyring.create(organisation=organisation, name="small")
    finally:
        database.close()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        async with session.post(f"{server.url}/volumes", json={"name": "first"}) as response:
            first = await response.json()
            assert response.status == 200, first
        async with session.post(f"{server.url}/volumes", json={"name": "second"}) as response:
            assert response.status == 403, await response.text()
        async with session.post(f"{server.url}/sandbox", json={}) as response:
            assert response.status == 403, await response.text()
            assert "GiB of disk" in (await response.json())["message"]
        async with session.delete(f"{server.url}/volumes/{first['id']}") as response:
            assert response.status == 200


def test_a_folder_of_the_host_is_no_volume(daytona: Daytona) -> None:
    for name in ("/etc", "../..", "/"):
        with pytest.raises(DaytonaError):
            daytona.create(mounted(VolumeMount(volume_id=name, mount_path="/data")))
        with pytest.raises(DaytonaBadRequestError, match="is not a valid name of a volume"):
            daytona.volume.create(name)


def test_mounts_survive_the_server(own_server: ServedProcess) -> None:
    client = make_client(own_server)
    volume = client.volume.create("kept")
    box = client.create(mounted(VolumeMount(volume_id=volume.id, mount_path="/data")))
    box.process.exec("echo kept > /data/file")
    own_server.kill()
    own_server.start()
    client = make_client(own_server)
    again = client.get(box.id)
    assert again.process.exec("cat /data/file").result == "kept\n"
    with pytest.raises(DaytonaConflictError):
        client.volume.delete(volume)
    client.delete(again)
    client.volume.delete(volume)


async def test_the_async_client_has_volumes_too(async_daytona: AsyncDaytona) -> None:
    name = f"data-{uuid.uuid4().hex[:8]}"
    made = await async_daytona.volume.get(name, create=True)
    box = await async_daytona.create(mounted(VolumeMount(volume_id=made.id, mount_path="/data", subpath="a")))
    try:
        await box.fs.upload_file(b"by the API", "/data/file")
        assert (await box.process.exec("cat /data/file")).result == "by the API"
        assert name in [each.name for each in await async_daytona.volume.list()]
        with pytest.raises(DaytonaConflictError, match="in use"):
            await async_daytona.volume.delete(made)
    finally:
        await async_daytona.delete(box)
    await async_daytona.volume.delete(made)
    with pytest.raises(DaytonaNotFoundError):
        await async_daytona.volume.get(name)
