"""Sandboxes through the official SDK: made, found, changed and ended."""

import time
import uuid
from typing import Any

import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaUnprocessableEntityError,
    Sandbox,
)
from daytona_api_client import SandboxState

from corral.server import living
from corral.server.tables import all_routes
from server.conftest import InProcess


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_a_sandbox_is_started_when_create_answers(sandbox: Sandbox) -> None:
    assert sandbox.state == SandboxState.STARTED
    assert str(uuid.UUID(sandbox.id)) == sandbox.id
    assert (sandbox.cpu, sandbox.memory, sandbox.disk, sandbox.gpu) == (1, 1, 3, 0)
    assert sandbox.created_at
    assert sandbox.updated_at
    assert sandbox.user == "daytona"


def test_a_sandbox_is_found_by_id_and_by_name(daytona: Daytona) -> None:
    name = unique("found")
    box = daytona.create(CreateSandboxFromSnapshotParams(name=name, target="anywhere"))
    try:
        assert daytona.get(name).id == box.id
        assert daytona.get(box.id).name == name
        assert box.target == "anywhere"
    finally:
        daytona.delete(box)


def test_a_name_is_given_once(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromSnapshotParams(name=unique("once")))
    try:
        with pytest.raises(DaytonaConflictError, match="already exists"):
            daytona.create(CreateSandboxFromSnapshotParams(name=box.name))
    finally:
        daytona.delete(box)
    again = daytona.create(CreateSandboxFromSnapshotParams(name=box.name))
    daytona.delete(again)


def test_a_deleted_sandbox_is_gone(daytona: Daytona) -> None:
    box = daytona.create()
    daytona.delete(box)
    assert daytona.get(box.id).state == SandboxState.DESTROYED  # for a while: older clients look
    with pytest.raises(DaytonaNotFoundError):
        daytona.delete(box)
    assert box.id not in [each.id for each in daytona.list()]


def test_a_deleted_sandbox_is_not_found_by_its_name(daytona: Daytona) -> None:
    name = unique("workspace")
    daytona.delete(daytona.create(CreateSandboxFromSnapshotParams(name=name)))
    with pytest.raises(DaytonaNotFoundError, match="not found"):
        daytona.get(name)
    again = daytona.create(CreateSandboxFromSnapshotParams(name=name))  # as get-or-create does
    assert (daytona.get(name).id, again.state) == (again.id, SandboxState.STARTED)
    daytona.delete(again)


async def test_a_deleted_sandbox_is_found_by_its_id_only_for_a_moment(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncDaytona(DaytonaConfig(api_url=in_process.url, api_key=in_process.key)) as client:
        box = await client.create()
        await box.delete()
        assert (await client.get(box.id)).state == SandboxState.DESTROYED
        foreign = in_process.headers(in_process.new_key("another"))
        async with in_process.session.get(f"{in_process.url}/sandbox/{box.id}", headers=foreign) as response:
            assert response.status == 404
        later = time.monotonic() + living.READABLE_AFTER_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(DaytonaNotFoundError):  # by the clock, not when the next one is deleted
            await client.get(box.id)


def test_nothing_is_found_where_nothing_is(daytona: Daytona) -> None:
    for wanted in ("nothing", str(uuid.uuid4()), "..", "a/b", "%2e%2e"):
        with pytest.raises(DaytonaError):
            daytona.get(wanted)


def test_an_image_that_is_no_snapshot_says_what_to_do(daytona: Daytona) -> None:
    with pytest.raises(DaytonaUnprocessableEntityError, match=r"debian:12.*such as 'default'; `corral serve --package"):
        daytona.create(CreateSandboxFromImageParams(image="debian:12"))


def test_a_lone_from_line_finds_a_snapshot(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromImageParams(image="daytonaio/sandbox:0.5.0"))
    assert box.state == SandboxState.STARTED
    daytona.delete(box)


def test_labels_and_intervals_are_kept(daytona: Daytona, sandbox: Sandbox) -> None:
    assert sandbox.set_labels({"team": "a"}) == {"team": "a"}
    sandbox.set_autostop_interval(7)
    sandbox.set_auto_archive_interval(8)
    sandbox.set_auto_delete_interval(9)
    sandbox.refresh_activity()
    seen = daytona.get(sandbox.id)
    assert seen.labels == {"team": "a"}
    assert (seen.auto_stop_interval, seen.auto_archive_interval, seen.auto_delete_interval) == (7, 8, 9)
    sandbox.set_auto_delete_interval(-1)
    assert daytona.get(sandbox.id).auto_delete_interval == -1


def test_intervals_have_their_ways_of_saying_never(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.set_autostop_interval(0)
    sandbox.set_auto_pause_interval(0)
    sandbox.set_auto_delete_interval(-7)  # anything below 0
    sandbox.set_auto_archive_interval(0)  # the longest that there is
    sandbox.set_ttl(5)
    sandbox.set_ttl(0)
    longest = daytona._config_api.config_controller_get_config().max_auto_archive_interval
    seen = daytona.get(sandbox.id)
    assert (seen.auto_stop_interval, seen.auto_pause_interval, seen.auto_delete_interval) == (0, 0, -1)
    assert (seen.auto_archive_interval, seen.auto_destroy_at) == (longest, None)
    sandbox.set_auto_archive_interval(10_000_000)
    assert daytona.get(sandbox.id).auto_archive_interval == longest


def test_one_that_pauses_by_itself_does_not_stop_by_itself(daytona: Daytona) -> None:
    wanted = CreateSandboxFromSnapshotParams(auto_pause_interval=5, auto_delete_interval=-5)
    box = daytona.create(wanted)
    try:
        assert (box.auto_pause_interval, box.auto_stop_interval, box.auto_delete_interval) == (5, 0, -1)
        fork = box.fork()
        daytona.delete(fork)
        assert (fork.auto_pause_interval, fork.auto_stop_interval, fork.auto_delete_interval) == (5, 0, -1)
    finally:
        daytona.delete(box)


@pytest.mark.parametrize(
    ("wanted", "status", "says"),
    [
        ({"autoStopInterval": 1, "autoPauseInterval": 1}, 400, "at most one"),
        ({"autoStopInterval": -1}, 400, "autoStopInterval"),
        ({"ttlMinutes": -1}, 400, "ttlMinutes"),
        ({"env": {"A": 1}}, 400, "env"),
        ({"env": {"A=B": "1"}}, 400, "A=B"),
        ({"labels": {"a": "x" * 70_000}}, 400, "labels"),
        ({"name": ""}, 400, "name"),
        ({"name": "a/b"}, 400, "slash"),
        ({"cpu": 0}, 400, "cpu"),
        ({"cpu": 1.5}, 400, "cpu"),
        ({"labels": {"code-toolbox-language": "cobol"}}, 400, "code-toolbox-language"),
        ({"snapshot": "nothing"}, 404, "nothing"),
        ({"gpu": 1}, 501, "GPU"),
        ({"kvm": True}, 501, "KVM"),
        ({"volumes": [{"volumeId": "v", "mountPath": "/v"}]}, 501, "volumes"),
        ({"secrets": [{"A": "b"}]}, 400, "secrets"),
        ({"networkAllowList": "10.0.0.0/8"}, 403, "network"),
        ({"buildInfo": {"dockerfileContent": "FROM a\nRUN b\n"}}, 501, "building"),
        ({"buildInfo": {"dockerfileContent": "FROM a"}}, 422, "no snapshot"),
    ],
)
async def test_requests_that_are_refused(in_process: InProcess, wanted: dict[str, Any], status: int, says: str) -> None:
    url = in_process.url + "/sandbox"
    async with in_process.session.post(url, json=wanted, headers=in_process.headers()) as response:
        assert response.status == status
        refusal = await response.json()
    assert says in refusal["message"]
    assert refusal["statusCode"] == status
    assert list(in_process.server.sandboxes) == []


async def test_words_of_paths_are_no_names(in_process: InProcess) -> None:
    """Else a sandbox could not be found by its name."""
    begin = "/api/sandbox/"
    words = {path.removeprefix(begin).partition("/")[0] for path, _ in all_routes() if path.startswith(begin)}
    fixed = sorted(word for word in words if not word.startswith("{"))
    assert "paginated" in fixed
    for name in fixed:
        url = in_process.url + "/sandbox"
        async with in_process.session.post(url, json={"name": name}, headers=in_process.headers()) as response:
            assert response.status == 400, name


async def test_a_wish_of_nothing_needs_no_body(in_process: InProcess) -> None:
    async with in_process.session.post(in_process.url + "/sandbox", headers=in_process.headers()) as response:
        assert (response.status, (await response.json())["state"]) == (200, "started")


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    assert box.state == SandboxState.STARTED
    assert (await async_daytona.get(box.id)).id == box.id
    assert box.id in [each.id async for each in async_daytona.list()]
    await box.delete()
    with pytest.raises(DaytonaNotFoundError):
        await async_daytona.delete(box)
