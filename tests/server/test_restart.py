"""The server ends, in any way; its sandboxes stay, and are listed again after its restart."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from daytona import (
    CreateSandboxFromSnapshotParams,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaNotFoundError,
)
from daytona_api_client import SandboxState

from corral.backends.embedded.backend import EmbeddedBackend
from support.serving import ServedProcess, make_client, served
from support.tiers import further


def test_sandboxes_and_their_programs_outlive_a_killed_server(own_server: ServedProcess) -> None:
    box = make_client(own_server).create(
        CreateSandboxFromSnapshotParams(name="stays", labels={"a": "b"}, env_vars={"V": "1"})
    )
    box.process.exec("nohup sleep 1000 >/dev/null 2>&1 & echo $! > pid; echo kept > file")
    own_server.kill()
    own_server.start()
    daytona = make_client(own_server)
    again = daytona.get("stays")
    assert (again.id, again.state, again.labels["a"]) == (box.id, SandboxState.STARTED, "b")
    assert again.process.exec("cat file; kill -0 $(cat pid) && echo alive; echo $V").result == "kept\nalive\n1\n"
    daytona.delete(again)


def test_sigterm_leaves_sandboxes_and_deletions_stay_deleted(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    kept, gone = daytona.create(), daytona.create()
    daytona.delete(gone)
    assert own_server.stop(signal.SIGTERM) == 0
    own_server.start()
    assert [box.id for box in make_client(own_server).list()] == [kept.id]


def test_ctrl_c_ends_sandboxes_and_keep_does_not(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        make_client(server).create()
        assert server.stop(signal.SIGINT) == 0
        server.start()
        assert list(make_client(server).list()) == []
    with served(tmp_path / "kept", arguments=("--keep",)) as server:
        box = make_client(server).create()
        assert server.stop(signal.SIGINT) == 0
        server.start()
        assert [each.id for each in make_client(server).list()] == [box.id]


async def test_what_was_not_acknowledged_is_undone(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    made, deleted, kept = daytona.create(), daytona.create(), daytona.create()
    own_server.kill()
    database = sqlite3.connect(own_server.data_folder / "server" / "corral.db")
    with database:  # as if it had been killed after making one, before saying so, and in the middle of deleting another
        database.execute("UPDATE sandboxes SET state = 'creating', intent = 'create' WHERE id = ?", (made.id,))
        database.execute("UPDATE sandboxes SET state = 'destroying', intent = 'delete' WHERE id = ?", (deleted.id,))
    (engine_id,) = database.execute("SELECT engine_id FROM sandboxes WHERE id = ?", (kept.id,)).fetchone()
    database.close()
    own_server.start()
    assert [box.id for box in make_client(own_server).list()] == [kept.id]
    living = await EmbeddedBackend(own_server.data_folder).list()
    assert [info.sandbox_id for info in living] == [engine_id]


async def test_what_is_lost_is_in_error(own_server: ServedProcess) -> None:
    box = make_client(own_server).create()
    own_server.stop()
    await own_server.end_sandboxes()
    own_server.start()
    daytona = make_client(own_server)
    seen = daytona.get(box.id)
    assert (seen.state, bool(seen.error_reason)) == (SandboxState.ERROR, True)
    daytona.delete(seen)
    assert list(daytona.list()) == []


def test_a_second_server_on_the_same_folder_refuses(own_server: ServedProcess) -> None:
    command = [sys.executable, "-m", "corral.cli", "serve", "--port", "0", "--data-dir", str(own_server.data_folder)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert "another server is using this data folder" in second.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_tls_or_a_word_is_needed(tmp_path: Path, host: str) -> None:
    command = [sys.executable, "-m", "corral.cli", "serve", "--host", host, "--data-dir", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr


@pytest.mark.parametrize("moment", [further(0.05), 0.2, further(0.45), further(0.8)])
async def test_killed_in_the_middle_of_many_creates_and_deletes(own_server: ServedProcess, moment: float) -> None:
    """Everything that was acknowledged holds, and the server's list agrees with the backend."""
    made: set[str] = set()
    deleted: set[str] = set()
    in_doubt: set[str] = set()
    headers = {"Authorization": f"Bearer {own_server.key}"}

    async def work(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.post(own_server.url + "/sandbox", json={}) as response:
                sandbox_id = (await response.json())["id"]
            made.add(sandbox_id)
            if len(made) % 2:
                in_doubt.add(sandbox_id)
                async with session.delete(f"{own_server.url}/sandbox/{sandbox_id}") as response:
                    await response.read()
                in_doubt.discard(sandbox_id)
                deleted.add(sandbox_id)

    async with aiohttp.ClientSession(headers=headers) as session:
        workers = [asyncio.create_task(work(session)) for _ in range(4)]
        await asyncio.sleep(moment)
        own_server.kill()
        await asyncio.gather(*workers, return_exceptions=True)
    own_server.start()
    seen = {box.id: box.state for box in make_client(own_server).list()}
    assert set(seen.values()) <= {SandboxState.STARTED}
    assert made - deleted - in_doubt <= set(seen)
    assert not deleted & set(seen)
    database = sqlite3.connect(own_server.data_folder / "server" / "corral.db")
    known = {engine_id for (engine_id,) in database.execute("SELECT engine_id FROM sandboxes")}
    database.close()
    assert {info.sandbox_id for info in await EmbeddedBackend(own_server.data_folder).list()} == known


async def test_one_that_ends_by_itself_is_in_error_and_says_so(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    box = daytona.create()
    await own_server.end_sandboxes()  # from outside, behind the server's back
    with pytest.raises((DaytonaNotFoundError, DaytonaBadRequestError)):  # the second if the server has noticed already
        box.process.exec("true")
    for _ in range(600):
        if daytona.get(box.id).state == SandboxState.ERROR:
            break
        await asyncio.sleep(0.05)
    seen = daytona.get(box.id)
    assert "ended outside the server" in str(seen.error_reason)
    with pytest.raises(DaytonaConflictError, match="the backend no longer has it"):
        seen.recover()
    daytona.delete(seen)


async def test_sandbox_that_was_ended_before_a_call_connected_can_be_asked_for_a_snapshot_and_deleted(
    own_server: ServedProcess,
) -> None:
    box = make_client(own_server).create()
    own_server.kill()
    own_server.start()
    await own_server.end_sandboxes()
    async with (
        asyncio.timeout(30),  # a lock that is never released keeps both waiting
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {own_server.key}"}) as session,
    ):
        async with session.post(f"{own_server.url}/sandbox/{box.id}/snapshot", json={"name": "late"}) as answer:
            assert answer.status == 404
        async with session.delete(f"{own_server.url}/sandbox/{box.id}") as answer:
            assert answer.status == 200
