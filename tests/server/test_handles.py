"""Handles that the server no longer uses are closed, also after a race: each holds a connection and descriptors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from corral.backends.memory.backend import MemoryBackend
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError
from corral.server.deadlines import Sweeper
from corral.server.living import Handle, LivingSandbox
from corral.server.resting import rested
from server.conftest import InProcess


@pytest.fixture
async def sandbox(in_process: InProcess) -> AsyncIterator[LivingSandbox]:
    """One that was created over HTTP, and that the server has an open handle of."""
    async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=in_process.headers()) as answer:
        sandbox_id = (await answer.json())["id"]
    async with asyncio.timeout(20):
        yield in_process.server.sandboxes.find(sandbox_id, organisation_id=None)


def handle_of(sandbox: LivingSandbox) -> Handle:
    assert sandbox.handle is not None
    return sandbox.handle


async def test_two_that_connect_at_once_share_a_handle_and_the_second_one_is_closed(
    in_process: InProcess, sandbox: LivingSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.close()
    opened: list[AsyncSandbox] = []
    connect = in_process.server.backend.connect

    async def connect_and_note(sandbox_id: str) -> AsyncSandbox:
        box = await connect(sandbox_id)
        opened.append(box)
        await asyncio.sleep(0.05)  # the other one connects meanwhile
        return box

    monkeypatch.setattr(in_process.server.backend, "connect", connect_and_note)
    first, second = await asyncio.gather(*(in_process.server.sandboxes.connect_now(sandbox) for _ in range(2)))
    assert len(opened) == 2
    assert first is second is sandbox.handle
    assert [box for box in opened if not box.closed] == [first.box]


async def test_deleting_closes_the_handle_that_was_replaced_while_it_waited(
    in_process: InProcess, sandbox: LivingSandbox
) -> None:
    before = handle_of(sandbox).box
    async with sandbox.locked():
        deleting = asyncio.create_task(in_process.server.lifecycle.delete(sandbox))
        while sandbox.handle is not None:
            await asyncio.sleep(0)
        after = (await in_process.server.sandboxes.connect_now(sandbox)).box
    await deleting
    assert before is not after
    assert (before.closed, after.closed) == (True, True)


async def test_a_rest_of_a_sandbox_that_is_gone_does_not_wait_for_the_lock_that_its_caller_holds(
    in_process: InProcess, sandbox: LivingSandbox
) -> None:
    await sandbox.close()
    assert sandbox.row.engine_id is not None
    await in_process.server.backend.delete(sandbox.row.engine_id)
    async with sandbox.locked(), rested(in_process.server.lifecycle, sandbox):
        pass


async def test_a_deletion_that_can_not_be_written_down_closes_the_handle(
    in_process: InProcess, sandbox: LivingSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = handle_of(sandbox).box

    def fail(*_: object) -> int:
        raise BackendUnavailableError("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(sandbox._sandboxes.database, "run", fail)
        with pytest.raises(BackendUnavailableError):
            await in_process.server.lifecycle.delete(sandbox)
    assert box.closed
    await in_process.server.lifecycle.delete(sandbox)
    assert sandbox.is_deleted


async def test_a_stop_that_fails_closes_the_handle(
    in_process: InProcess, sandbox: LivingSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = handle_of(sandbox).box
    backend = in_process.server.backend

    async def need(power: str) -> None:
        """The fake has no stop."""

    async def stop(sandbox_id: str) -> None:
        raise BackendUnavailableError("the backend does not answer")

    monkeypatch.setattr(backend, "need", need)
    monkeypatch.setattr(backend, "stop", stop)
    with pytest.raises(BackendUnavailableError):
        await in_process.server.lifecycle.stop(sandbox)
    assert box.closed
    assert sandbox.row.state == "started"
    async with in_process.server.sandboxes.use(sandbox.id, organisation_id=None) as handle:
        assert await handle.box.is_alive()


async def test_a_sandbox_whose_creation_fails_and_can_not_be_undone_is_deleted_later(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, sandboxes = in_process.server.backend, in_process.server.sandboxes
    assert isinstance(backend, MemoryBackend)
    detach = AsyncSandbox.detach

    async def fail_after_detaching(box: AsyncSandbox) -> str:
        await detach(box)
        raise BackendUnavailableError("the backend does not answer")

    async def fail(box: AsyncSandbox) -> None:
        raise BackendUnavailableError("the backend does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(AsyncSandbox, "detach", fail_after_detaching)
        broken.setattr(AsyncSandbox, "kill", fail)
        headers = in_process.headers()
        async with in_process.session.post(in_process.url + "/sandbox", json={}, headers=headers) as answer:
            assert answer.status == 503
    assert (backend.count_living(), [each.row.intent for each in sandboxes]) == (1, ["create"])
    await Sweeper(in_process.server.lifecycle, seconds=3600).look()
    assert (backend.count_living(), len(sandboxes)) == (0, 0)
