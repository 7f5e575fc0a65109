"""Refusals of the control plane as the official SDK raises them: the class by which callers tell them apart."""

import uuid

import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaAuthenticationError,
    DaytonaBadRequestError,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaNotFoundError,
    DaytonaRateLimitError,
    DaytonaUnprocessableEntityError,
    DaytonaValidationError,
    Resources,
)

from corral.server.settings import ServerLimits
from server.conftest import InProcess, OpenInProcess


def client(running: InProcess, key: str | None = None) -> AsyncDaytona:
    return AsyncDaytona(DaytonaConfig(api_url=running.url, api_key=key or running.key))


async def test_each_refusal_is_the_class_that_it_should_be(in_process: InProcess) -> None:
    async with client(in_process) as daytona:
        box = await daytona.create(CreateSandboxFromSnapshotParams(name="taken"))
        with pytest.raises(DaytonaNotFoundError, match="sandbox 'nothing' not found"):
            await daytona.get("nothing")
        with pytest.raises(DaytonaConflictError, match="'taken' already exists"):
            await daytona.create(CreateSandboxFromSnapshotParams(name="taken"))
        with pytest.raises(DaytonaBadRequestError, match="must be stopped") as caught:
            await box.archive()
        assert isinstance(caught.value, DaytonaValidationError)
        with pytest.raises(DaytonaBadRequestError, match="smaller"):
            await box.resize(Resources(disk=1))
        with pytest.raises(DaytonaUnprocessableEntityError, match="there is no snapshot 'alpine:3'"):
            await daytona.create(CreateSandboxFromImageParams(image="alpine:3"))
        with pytest.raises(DaytonaError, match="not supported by this server: GPUs") as said:
            await daytona.create(CreateSandboxFromImageParams(image="default", resources=Resources(gpu=1)))
        assert said.value.status_code == 501
        await box.delete()
        for call in (box.delete, box.start, box.stop, box.fork, box.refresh_activity):
            with pytest.raises(DaytonaNotFoundError):
                await call()


async def test_what_a_key_may_not(in_process: InProcess) -> None:
    async with client(in_process) as daytona:
        box = await daytona.create()
    async with client(in_process, "no key of ours, and long enough") as stranger:
        with pytest.raises(DaytonaAuthenticationError):
            await stranger.get(box.id)
    async with client(in_process, in_process.new_key("default", scopes=["read"])) as reader:
        mine = await reader.get(box.id)
        for call in (mine.stop, mine.delete, mine.refresh_activity, reader.create):
            with pytest.raises(DaytonaForbiddenError, match="the API key lacks the scope"):
                await call()
    async with client(in_process, in_process.new_key("others")) as other:
        with pytest.raises(DaytonaNotFoundError):
            await other.get(box.id)
        assert [each async for each in other.list()] == []


async def test_quota_is_a_refusal_of_its_own(in_process: InProcess) -> None:
    organisation = in_process.server.keyring.organisation_named("default")
    in_process.server.keyring.set_quota(organisation, sandboxes=1, cpu=None, memory_gib=None, disk_gib=None)
    async with client(in_process) as daytona:
        box = await daytona.create()
        with pytest.raises(DaytonaForbiddenError, match="limit is 1 sandboxes"):
            await daytona.create()
        await box.delete()
        await (await daytona.create()).delete()


async def test_too_many_requests_say_when_to_come_again(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(rate_per_key=0.01)) as running, client(running) as daytona:
        refusals = []
        for _ in range(10):
            with pytest.raises((DaytonaNotFoundError, DaytonaRateLimitError)) as caught:
                await daytona.get(str(uuid.uuid4()))
            refusals.append(caught.value)
        assert isinstance(refusals[-1], DaytonaRateLimitError)
        assert int(refusals[-1].headers["Retry-After"]) >= 1
