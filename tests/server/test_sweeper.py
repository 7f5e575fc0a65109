"""The one task that looks: what is due is done, what was left half done is taken up, and it never ends by itself."""

import asyncio
import time
from pathlib import Path

import pytest

from corral.errors import BackendError, CapabilityError
from corral.server.deadlines import Sweeper
from corral.server.living import LivingSandbox
from server.conftest import InProcess


async def make(running: InProcess) -> LivingSandbox:
    async with running.session.post(running.url + "/sandbox", json={}, headers=running.headers()) as response:
        assert response.status == 200
        sandbox_id = (await response.json())["id"]
    return running.server.sandboxes.find(sandbox_id, organisation_id=None)


def make_sweeper(running: InProcess) -> Sweeper:
    return Sweeper(running.server.lifecycle, seconds=0.01)


async def until_quiet(running: InProcess) -> None:
    while running.server.lifecycle._tasks:
        await asyncio.sleep(0.01)


async def test_what_was_begun_and_not_finished_is_taken_up(in_process: InProcess) -> None:
    deleting, creating, kept = [await make(in_process) for _ in range(3)]
    deleting.turn("destroying", desired="destroyed", intent="delete")
    creating.turn("creating", intent="create")
    async with deleting.locked():
        await make_sweeper(in_process).look()
        assert not deleting.is_deleted, "it is being changed"
    await make_sweeper(in_process).look()
    assert list(in_process.server.sandboxes) == [kept]
    assert [info.sandbox_id for info in await in_process.server.backend.list()] == [kept.row.engine_id]


async def test_one_that_answers_again_is_no_longer_in_error(in_process: InProcess) -> None:
    back, gone = await make(in_process), await make(in_process)
    assert gone.row.engine_id is not None
    await in_process.server.backend.delete(gone.row.engine_id)
    back.turn("error", reason="it did not answer")
    await make_sweeper(in_process).look()
    assert (back.row.state, back.row.error_reason) == ("started", None)
    assert gone.row.state == "error"
    assert "ended outside the server" in str(gone.row.error_reason)
    before = gone.row.updated_at
    await make_sweeper(in_process).look()
    assert (gone.row.state, gone.row.updated_at) == ("error", before), "nothing new is no change"


async def test_a_deadline_that_could_not_be_kept_is_tried_again(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await make(in_process)
    sandbox.row.destroy_at = time.time() - 1
    sweeper, tries = make_sweeper(in_process), 0
    delete = in_process.server.lifecycle.delete

    async def fail_once(wanted: LivingSandbox) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BackendError("not now")
        await delete(wanted)

    monkeypatch.setattr(in_process.server.lifecycle, "delete", fail_once)
    sweeper.sweep(time.time())
    await until_quiet(in_process)
    sweeper.sweep(time.time())
    await until_quiet(in_process)
    assert tries == 1, "not at once"
    sweeper.sweep(time.time() + 60)
    await until_quiet(in_process)
    assert sandbox.is_deleted


async def test_what_a_backend_can_not_do_is_not_tried_again(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await make(in_process)
    sandbox.row.auto_stop = 1
    tried: list[str] = []

    async def refuse(wanted: LivingSandbox) -> None:
        tried.append(wanted.id)
        raise CapabilityError("never")

    monkeypatch.setattr(in_process.server.lifecycle, "stop", refuse)
    sweeper = make_sweeper(in_process)
    for seconds in (3600, 7200):
        sweeper.sweep(time.time() + seconds)
        await until_quiet(in_process)
    assert tried == [sandbox.id]


async def test_whatever_goes_wrong_it_goes_on(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, swept = make_sweeper(in_process), asyncio.Event()

    def sweep(now: float) -> None:
        if not failed:
            failed.append(now)
            raise KeyError("a bug")
        swept.set()

    failed: list[float] = []
    monkeypatch.setattr(sweeper, "sweep", sweep)
    task = asyncio.create_task(sweeper.run())
    await asyncio.wait_for(swept.wait(), 60)
    task.cancel()


async def test_a_server_without_its_folder_says_so(in_process: InProcess, tmp_path: Path) -> None:
    lost: list[bool] = []
    sweeper = Sweeper(in_process.server.lifecycle, seconds=1, on_loss=lambda: lost.append(True))
    await sweeper.look()
    assert not lost
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    await sweeper.look()
    assert lost
    (tmp_path / "elsewhere").rename(tmp_path / "data")


async def test_a_database_that_can_not_be_written_is_not_ready(in_process: InProcess) -> None:
    ready = in_process.url.removesuffix("/api") + "/ready"
    in_process.server.database.failing = True
    async with in_process.session.get(ready) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    in_process.server.sandboxes.flush()
    async with in_process.session.get(ready) as response:
        assert response.status == 200
