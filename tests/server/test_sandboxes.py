"""Sandboxes through the official SDK: made, found, changed and ended."""

import uuid

import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaUnprocessableEntityError,
    Sandbox,
)
from daytona_api_client import SandboxState


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


def test_nothing_is_found_where_nothing_is(daytona: Daytona) -> None:
    for wanted in ("nothing", str(uuid.uuid4()), "..", "a/b", "%2e%2e"):
        with pytest.raises(DaytonaError):
            daytona.get(wanted)


def test_an_image_that_is_no_snapshot_says_what_to_do(daytona: Daytona) -> None:
    with pytest.raises(DaytonaUnprocessableEntityError, match=r"debian:12.*create a snapshot of that name"):
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


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    assert box.state == SandboxState.STARTED
    assert (await async_daytona.get(box.id)).id == box.id
    assert box.id in [each.id async for each in async_daytona.list()]
    await box.delete()
    with pytest.raises(DaytonaNotFoundError):
        await async_daytona.delete(box)
