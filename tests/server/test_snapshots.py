"""The snapshots service through the official SDK: found, listed, named after others, switched off and on, forgotten."""

import uuid
from collections.abc import Iterator

import daytona_api_client
import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaNotFoundError,
    DaytonaUnprocessableEntityError,
    Image,
    Resources,
    Sandbox,
)
from daytona_api_client.exceptions import NotFoundException

from corral.errors import BackendUnavailableError, SnapshotNotFoundError
from corral.server.reconcile import reconcile
from corral.server.store.rows import Snapshot
from server.conftest import InProcess


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def name(daytona: Daytona, sandbox: Sandbox) -> Iterator[str]:
    """A snapshot of a sandbox with a file in it."""
    made = unique("kept")
    sandbox.process.exec("echo kept > file")
    sandbox.create_snapshot(made)
    yield made
    if made in [each.name for each in daytona.snapshot.list(limit=200).items]:
        daytona.snapshot.delete(made)


def test_snapshot_is_found_by_id_and_by_name(daytona: Daytona, sandbox: Sandbox, name: str) -> None:
    seen = daytona.snapshot.get(name)
    assert daytona.snapshot.get(seen.id).name == name
    assert (seen.state, seen.general, seen.source_sandbox_id) == ("active", False, sandbox.id)
    assert (seen.cpu, seen.mem, seen.disk) == (sandbox.cpu, sandbox.memory, sandbox.disk)
    with pytest.raises(DaytonaNotFoundError):
        daytona.snapshot.get(str(uuid.uuid4()))


def test_snapshot_keeps_its_user_and_so_do_its_other_names(daytona: Daytona) -> None:
    kept, other = unique("user"), unique("other")
    source = daytona.create(CreateSandboxFromSnapshotParams(os_user="1000"))
    made = [source]
    try:
        source.create_snapshot(kept)
        daytona.snapshot.create(CreateSnapshotParams(name=other, image=kept))
        for name in (kept, other):
            made.append(daytona.create(CreateSandboxFromSnapshotParams(snapshot=name)))
            assert made[-1].user == "1000"
        made.append(daytona.create(CreateSandboxFromSnapshotParams(snapshot=kept, os_user="daytona")))
        assert made[-1].user == "daytona"
    finally:
        for box in made:
            daytona.delete(box)
        for name in (other, kept):
            daytona.snapshot.delete(name)


def test_list_goes_by_pages(daytona: Daytona, sandbox: Sandbox, name: str) -> None:
    first, second = daytona.snapshot.list(page=1, limit=1), daytona.snapshot.list(page=2, limit=1)
    assert first.total == second.total >= 2
    assert (first.page, second.page, first.total_pages) == (1, 2, first.total)
    assert first.items[0].id != second.items[0].id
    assert daytona.snapshot.list(page=first.total + 1, limit=1).items == []
    of_one = daytona.snapshot.list(source_sandbox_id=sandbox.id)
    assert [each.name for each in of_one.items] == [name]


def test_name_is_given_once(daytona: Daytona, sandbox: Sandbox, name: str) -> None:
    with pytest.raises(DaytonaConflictError, match="already exists"):
        sandbox.create_snapshot(name)
    with pytest.raises(DaytonaConflictError, match="already exists"):
        daytona.snapshot.create(CreateSnapshotParams(name=name, image="default"))
    with pytest.raises(DaytonaBadRequestError, match="control characters"):
        sandbox.create_snapshot("a\nb")


def test_snapshot_outlives_its_sandbox_and_its_other_names(daytona: Daytona, name: str) -> None:
    """Named like an image, which is how clients that know only images come to it."""
    other = unique("registry.example.org/team/tools") + ":1.0"
    logs: list[str] = []
    wanted = CreateSnapshotParams(name=other, image=Image.base(name), resources=Resources(cpu=2, memory=1, disk=4))
    made = daytona.snapshot.create(wanted, on_logs=logs.append)
    assert (made.name, made.state, made.image_name, made.cpu, made.disk) == (other, "active", name, 2, 4)
    assert logs
    daytona.snapshot.delete(name)  # by name; the other stands for the same files
    box = daytona.create(CreateSandboxFromImageParams(image=other))
    try:
        assert (box.cpu, box.disk, box.snapshot) == (2, 4, other)
        assert box.process.exec("cat file").result == "kept\n"
        daytona.snapshot.delete(made)
        assert box.process.exec("cat file").result == "kept\n"
    finally:
        daytona.delete(box)
    with pytest.raises(DaytonaNotFoundError):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=other))


def test_snapshot_of_an_image_that_is_not_here_says_what_can_be_named(daytona: Daytona) -> None:
    with pytest.raises(DaytonaUnprocessableEntityError, match=r"debian:12.*such as 'default'"):
        daytona.snapshot.create(CreateSnapshotParams(name=unique("x"), image="debian:12"))
    with pytest.raises(DaytonaError, match="not supported by this server: building images"):
        daytona.snapshot.create(CreateSnapshotParams(name=unique("x"), image=Image.debian_slim().run_commands("ls")))


def test_snapshot_that_is_switched_off_starts_nothing(daytona: Daytona, name: str) -> None:
    client = daytona_api_client.SnapshotsApi(daytona._api_client)
    client.deactivate_snapshot(daytona.snapshot.get(name).id)
    assert daytona.snapshot.get(name).state == "inactive"
    with pytest.raises(DaytonaBadRequestError, match="inactive"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert daytona.snapshot.activate(name).state == "active"
    daytona.delete(daytona.create(CreateSandboxFromSnapshotParams(snapshot=name)))
    with pytest.raises(NotFoundException):  # the SDK does not translate this one
        daytona.snapshot.activate(unique("nothing"))


def test_base_is_everybodys(daytona: Daytona) -> None:
    base = daytona.snapshot.get("default")
    assert base.general
    with pytest.raises(DaytonaForbiddenError):
        daytona.snapshot.delete(base)
    assert daytona.snapshot.activate(base).state == "active"


async def test_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    service, name = async_daytona.snapshot, unique("async")
    made = await service.create(CreateSnapshotParams(name=name, image="default"))
    assert (await service.get(name)).id == made.id
    assert name in [each.name for each in (await service.list(1, 200)).items]
    assert (await service.activate(name)).state == "active"
    await service.delete(name)
    with pytest.raises(DaytonaNotFoundError):
        await service.get(name)


async def test_another_organisation_has_its_own(in_process: InProcess) -> None:
    mine, theirs = in_process.headers(), in_process.headers(in_process.new_key("others"))
    url = in_process.url + "/snapshots"
    ids = []
    for headers in (mine, theirs):
        async with in_process.session.post(url, json={"name": "same"}, headers=headers) as response:
            assert response.status == 200
            ids.append((await response.json())["id"])
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/activate"), ("POST", "/deactivate")):
        async with in_process.session.request(method, f"{url}/{ids[0]}{path}", headers=theirs) as response:
            assert response.status == 404
    async with in_process.session.get(url, headers=theirs) as response:
        listed = await response.json()
    assert {item["id"] for item in listed["items"] if not item["general"]} == {ids[1]}


@pytest.mark.needs_root  # what an ordinary user's sandbox has written is measured now and then only
def test_one_in_which_nothing_runs_rests_for_a_snapshot(daytona: Daytona, sandbox: Sandbox) -> None:
    """It is started anew behind the scenes, which shows only in the numbers of its processes."""
    sandbox.process.exec("head -c 50000000 /dev/urandom > much; echo kept > file")
    for _ in range(5):
        sandbox.process.exec("true")
    before = int(sandbox.process.exec("echo $$").result)
    made = unique("rested")
    sandbox.create_snapshot(made)
    try:
        assert int(sandbox.process.exec("echo $$").result) < before
        sandbox.refresh_data()
        assert sandbox.state == "started"
        assert sandbox.process.exec("cat file; stat -c %s much").result == "kept\n50000000\n"
        other = daytona.create(CreateSandboxFromSnapshotParams(snapshot=made))
        try:
            assert other.process.exec("cat file; stat -c %s much").result == "kept\n50000000\n"
        finally:
            other.delete()
    finally:
        daytona.snapshot.delete(made)


def test_programs_and_their_records_outlive_a_snapshot(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.process.exec("head -c 50000000 /dev/urandom > much; (sleep 1000 > /dev/null 2>&1 &)")
    sandbox.process.create_session("kept")
    made, other = unique("running"), None
    try:
        sandbox.create_snapshot(made)
        other = sandbox.fork()
        assert sandbox.process.exec("pgrep -x sleep").exit_code == 0
        assert [each.session_id for each in sandbox.process.list_sessions()] == ["kept"]
    finally:
        if other is not None:
            other.delete()
        daytona.snapshot.delete(made)


async def test_a_deletion_that_fails_at_the_backend_is_not_forgotten(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the backend would keep the files of a snapshot that no client can find."""
    server, headers = in_process.server, in_process.headers()
    organisation = server.keyring.organisation_named("default")
    snapshot = Snapshot(
        id=str(uuid.uuid4()), organisation_id=organisation.id, name="kept", engine_id="e", cpu=1, memory=1, disk=1
    )
    server.snapshots.put(snapshot)
    failures = [BackendUnavailableError("the disk can't be written"), BackendUnavailableError("nor now")]
    deleted = []

    async def delete_snapshot(snapshot_id: str) -> None:
        if failures:
            raise failures.pop()
        deleted.append(snapshot_id)
        raise SnapshotNotFoundError("it is gone already")

    monkeypatch.setattr(server.backend, "delete_snapshot", delete_snapshot)
    async with in_process.session.delete(in_process.url + "/snapshots/kept", headers=headers) as response:
        assert response.status == 503
    await reconcile(server.lifecycle, [])  # as after a restart
    assert (snapshot.state, server.snapshots.look_up("kept", organisation_id=organisation.id)) == ("removing", snapshot)
    async with in_process.session.delete(in_process.url + "/snapshots/kept", headers=headers) as response:
        assert response.status == 200
    assert deleted == ["e"]
    assert server.snapshots.look_up("kept", organisation_id=organisation.id) is None
