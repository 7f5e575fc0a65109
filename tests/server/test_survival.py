"""What goes on without the server, what must not, and that in the end its list agrees with the backend."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from daytona import CreateSandboxFromSnapshotParams, Sandbox, SessionExecuteRequest
from daytona_api_client import SandboxState

from corral.backends.embedded.backend import EmbeddedBackend
from support.leftovers import adopt_orphans, list_descendants, reap_orphans, take_stock, watch_differences
from support.serving import ServedProcess, make_client, served, stored_state
from support.tiers import further

_PATIENCE_SECONDS = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def read(box: Sandbox, path: str) -> str:
    return box.process.exec(f"cat {path} 2>/dev/null || true").result.strip()


def test_sessions_terminals_contexts_and_logs_outlive_a_killed_server(own_server: ServedProcess) -> None:
    box = make_client(own_server).create()
    process = box.process
    process.create_session("s")
    process.execute_session_command("s", SessionExecuteRequest(command="cd /tmp; export WORD=kept"))
    done = process.execute_session_command("s", SessionExecuteRequest(command="echo out; echo err >&2")).cmd_id
    waiting = "echo before; until [ -e /tmp/go ]; do sleep 0.1; done; echo after"
    running = process.execute_session_command("s", SessionExecuteRequest(command=waiting, run_async=True)).cmd_id
    box.code_interpreter.run_code("word = 'kept'")
    process.create_pty_session("t").disconnect()
    wait_until(lambda: "before" in str(process.get_session_command_logs("s", running).stdout))
    own_server.kill()
    own_server.start()
    box = make_client(own_server).get(box.id)
    process = box.process
    logs = process.get_session_command_logs("s", done)
    assert (logs.stdout, logs.stderr) == ("out\n", "err\n")
    assert process.get_session_command("s", running).exit_code is None, "it runs on"
    process.exec("touch /tmp/go")
    wait_until(lambda: process.get_session_command("s", running).exit_code == 0)
    assert process.get_session_command_logs("s", running).stdout == "before\nafter\n"
    assert process.execute_session_command("s", SessionExecuteRequest(command="echo $WORD")).stdout == "kept\n"
    assert box.code_interpreter.run_code("print(word)").stdout == "kept\n"
    assert process.get_pty_session_info("t").active
    process.connect_pty_session("t").disconnect()


@pytest.mark.parametrize(
    "printed",
    [pytest.param("", id="quiet"), pytest.param("print('y' * 60000)", id="flooding", marks=pytest.mark.check)],
)
def test_a_run_that_nobody_listens_to_ends_with_the_next_server(own_server: ServedProcess, printed: str) -> None:
    """Its time limit went with the server that kept it; and nothing else could run in its context."""
    box = make_client(own_server).create()
    box.code_interpreter.run_code("word, n = 'kept', 0")
    code = f"while True:\n    n += 1\n    open('/tmp/n', 'w').write(str(n))\n    {printed or 'pass'}"

    def run() -> None:
        with contextlib.suppress(Exception):  # the server goes away under it
            box.code_interpreter.run_code(code, timeout=0)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    wait_until(lambda: int(read(box, "/tmp/n") or 0) > (1000 if printed else 0))  # past what a record keeps
    own_server.kill()
    runner.join(_PATIENCE_SECONDS)
    own_server.start()
    box = make_client(own_server).get(box.id)
    counted = read(box, "/tmp/n")
    result = box.code_interpreter.run_code("print(word, n > 0)")
    assert (result.stdout, result.error) == ("kept True\n", None)
    assert read(box, "/tmp/n") == counted, "the run had ended before the first call"


def test_a_program_whose_caller_waits_ends_with_the_server(own_server: ServedProcess) -> None:
    box = make_client(own_server).create()

    def run() -> None:
        with contextlib.suppress(Exception):
            box.process.exec("echo $$ > /tmp/pid; sleep 1000")

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    wait_until(lambda: read(box, "/tmp/pid"))
    own_server.kill()
    own_server.start()
    box = make_client(own_server).get(box.id)
    wait_until(lambda: box.process.exec("kill -0 $(cat /tmp/pid) 2>/dev/null && echo lives || true").result == "")


def test_sigterm_lets_requests_finish(own_server: ServedProcess) -> None:
    box = make_client(own_server).create()
    answers: list[str] = []

    def run() -> None:
        answers.append(box.process.exec("touch /tmp/begun; sleep 2; echo finished").result)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    wait_until(lambda: box.process.exec("ls /tmp/begun 2>/dev/null || true").result)
    assert own_server.stop(signal.SIGTERM) == 0
    runner.join(_PATIENCE_SECONDS)
    assert answers == ["finished\n"]
    own_server.start()
    assert stored_state(make_client(own_server), box) == SandboxState.STARTED


async def test_a_create_that_is_sent_again_after_a_restart_gives_the_same(own_server: ServedProcess) -> None:
    async def create(token: str) -> str:
        headers = {"Authorization": f"Bearer {own_server.key}", "Idempotency-Key": token}
        url = own_server.url + "/sandbox"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json={}) as response:
            assert response.status == 200
            return str((await response.json())["id"])

    first = await create("once")
    own_server.kill()
    own_server.start()
    assert await create("once") == first
    assert await create("another") != first
    make_client(own_server).get(first).delete()
    assert await create("once") != first, "the one that it made is no more"


def test_a_restart_alone_changes_nothing(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    box = daytona.create(CreateSandboxFromSnapshotParams(auto_stop_interval=5))
    before = daytona.get(box.id)
    own_server.kill()
    own_server.start()
    after = make_client(own_server).get(box.id)
    assert (after.updated_at, after.last_activity_at) == (before.updated_at, before.last_activity_at)


def test_deadlines_that_passed_meanwhile_are_kept(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    idle = daytona.create(CreateSandboxFromSnapshotParams(auto_stop_interval=1))
    resting = daytona.create(CreateSandboxFromSnapshotParams(auto_delete_interval=1))
    resting.stop()
    mortal, kept = daytona.create(), daytona.create()
    mortal.set_ttl(1)
    database = sqlite3.connect(own_server.data_folder / "server" / "corral.db")
    question = "SELECT destroy_at FROM sandboxes WHERE id = ?"
    before = database.execute(question, (mortal.id,)).fetchone()
    mortal.process.exec("true")
    assert database.execute(question, (mortal.id,)).fetchone() == before, "what is done inside moves nothing"
    own_server.kill()
    with database:  # as if it had been away for a minute
        moved = "active_at = active_at - 61, state_at = state_at - 61, destroy_at = destroy_at - 61"
        database.execute(f"UPDATE sandboxes SET {moved}")
    database.close()
    own_server.start()
    daytona = make_client(own_server)
    wait_until(lambda: len(list(daytona.list())) == 2)
    wait_until(lambda: daytona.get(idle.id).state == SandboxState.STOPPED)
    assert stored_state(daytona, kept) == SandboxState.STARTED


def test_a_server_whose_folder_is_moved_ends_and_says_why(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        make_client(server).create()
        (tmp_path / "data").rename(tmp_path / "moved")
        assert server.wait() == 1
        assert "the data folder was moved or deleted" in (tmp_path / "moved" / "stderr.log").read_text()
        (tmp_path / "moved").rename(tmp_path / "data")


FORK_AND_DIE = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from corral.backends.embedded.backend import EmbeddedBackend

    async def die(self, spec, **options):
        print("reached", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    EmbeddedBackend.make = die
    asyncio.run(EmbeddedBackend(sys.argv[1]).fork(sys.argv[2]))
    """
)


@pytest.mark.parametrize("state", ["started", further("stopped")])
def test_a_fork_that_is_killed_half_way_leaves_no_snapshot(own_server: ServedProcess, state: str) -> None:
    box = make_client(own_server).create()
    box.process.exec("echo kept > file")
    if state == "stopped":
        box.stop()
    database = sqlite3.connect(own_server.data_folder / "server" / "corral.db")
    ((engine_id,),) = database.execute("SELECT engine_id FROM sandboxes").fetchall()
    database.close()
    command = [sys.executable, "-c", FORK_AND_DIE, str(own_server.data_folder), engine_id]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    assert (killed.stdout, killed.returncode) == ("reached\n", -signal.SIGKILL)
    snapshots = own_server.data_folder / "snapshots"
    assert len(list(snapshots.iterdir())) == 1
    own_server.kill()
    own_server.start()
    assert not list(snapshots.iterdir())
    assert len(list((own_server.data_folder / "layers").iterdir())) == (state == "stopped"), "it stands on that itself"
    box = make_client(own_server).get(box.id)
    if state == "stopped":
        box.start()
    assert box.process.exec("cat file").result == "kept\n"


WORKS = ("create", "create", "delete", "stop", "start", "fork", "snapshot", "pause", "run")


class Mischief:
    """Clients that do whatever comes to their mind, and note what they were told."""

    def __init__(self, server: ServedProcess, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self.made: set[str] = set()
        self.deleted: set[str] = set()

    async def work(self, session: aiohttp.ClientSession) -> None:
        """Until the server goes away."""
        while True:
            living = sorted(self.made - self.deleted)
            what = self._chance.choice(
                ["create", "create", "delete", "stop", "start", "fork", "snapshot", "pause", "run"]
            )
            if what == "create" or not living:
                await self._make(session, "/sandbox", {})
                continue
            wanted = self._chance.choice(living)
            if what == "fork":
                await self._make(session, f"/sandbox/{wanted}/fork", {})
            elif what == "delete":
                self.made.discard(wanted)  # in doubt until it is said
                status, _ = await self._ask(session, "DELETE", f"/sandbox/{wanted}")
                if status in (200, 404):
                    self.deleted.add(wanted)
                else:
                    self.made.add(wanted)
            elif what == "run":
                await self._ask(
                    session, "POST", f"/toolbox/{wanted}/toolbox/process/execute", {"command": "echo x > f"}
                )
            elif what == "snapshot":
                body = {"name": f"snapshot-{self._chance.random()}"}
                await self._ask(session, "POST", f"/sandbox/{wanted}/snapshot", body)
            else:
                await self._ask(session, "POST", f"/sandbox/{wanted}/{what}")

    async def _make(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
        status, answer = await self._ask(session, "POST", path, body)
        if status == 200:
            self.made.add(answer["id"])

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        async with session.request(method, self._server.url + path, json=body) as response:
            text = await response.text()
            assert response.status < 500, f"{method} {path}: {text}"
            return response.status, json.loads(text) if text else None


@pytest.fixture
def others() -> Iterator[frozenset[int]]:
    """Processes of this test run that are not the test's own. Orphans of it become children of the test run."""
    adopt_orphans()
    try:
        yield frozenset(list_descendants(os.getpid()))
    finally:
        adopt_orphans(on=False)


def stock(server: ServedProcess, others: frozenset[int]) -> dict[str, list[str]]:
    reap_orphans(spare={server.pid})
    found = take_stock(server.data_folder, without=others)
    found["files"] = [path for path in found["files"] if not path.startswith("server/")]
    return found


# aiohttp forgets a socket now and then whose other side goes while it is being connected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(1, marks=pytest.mark.check), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))],
)
async def test_after_any_kill_what_is_said_is_what_there_is(
    others: frozenset[int], own_server: ServedProcess, seed: int
) -> None:
    chance, server = random.Random(seed), own_server
    make_client(server).create().delete()
    server.stop(signal.SIGTERM)
    server.start()  # what a restart brings with it is no leftover
    before = stock(server, others)
    mischief = Mischief(server, seed)
    for _ in range(3):
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as session:
            workers = [asyncio.create_task(mischief.work(session)) for _ in range(3)]
            await asyncio.sleep(chance.uniform(0.3, 3))
            server.kill()
            ends = await asyncio.gather(*workers, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, AssertionError)]
        server.start()
        await compare(server, mischief)
    daytona = make_client(server)
    for box in daytona.list():
        daytona.delete(box)
    for snapshot in daytona.snapshot.list().items:
        if snapshot.name != "default":
            daytona.snapshot.delete(snapshot)
    assert not watch_differences(before, lambda: stock(server, others))


async def compare(server: ServedProcess, mischief: Mischief) -> None:
    """The server's word, its database, and the backend's."""
    shown = {box.id: str(box.state.value) for box in make_client(server).list()}
    assert set(shown.values()) <= {"started", "stopped", "paused"}
    assert mischief.made <= set(shown)
    assert not mischief.deleted & set(shown)
    mischief.made |= set(shown)
    backend = EmbeddedBackend(server.data_folder)
    words = {"running": "started", "paused": "paused", "stopped": "stopped"}
    there = {info.sandbox_id: words[info.state] for info in await backend.list()}
    database = sqlite3.connect(server.data_folder / "server" / "corral.db")
    known = {engine: shown[sandbox] for sandbox, engine in database.execute("SELECT id, engine_id FROM sandboxes")}
    named = {engine for (engine,) in database.execute("SELECT engine_id FROM snapshots") if engine is not None}
    intents = database.execute("SELECT intent FROM sandboxes WHERE intent IS NOT NULL").fetchall()
    database.close()
    assert known == there
    assert not intents
    assert {info.snapshot_id for info in await backend.list_snapshots()} == named
