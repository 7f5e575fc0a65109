"""Stop, start, pause, archive, resize, fork and snapshots, through the official SDK; and deadlines."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from daytona import (
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    Resources,
    Sandbox,
)
from daytona_api_client import SandboxState

from corral.server.deadlines import what_is_due
from corral.server.store.rows import Sandbox as Row
from server.conftest import InProcess
from support.serving import ServedProcess, make_client, stored_state


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def test_stop_keeps_the_files_and_start_brings_them_back(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.process.exec("echo kept > file; nohup sleep 999 >/dev/null 2>&1 &")
    sandbox.stop()
    assert sandbox.state == SandboxState.STOPPED
    assert stored_state(daytona, sandbox) == SandboxState.STOPPED
    with pytest.raises(DaytonaBadRequestError, match="not started"):
        sandbox.process.exec("true")
    sandbox.stop()  # a second time is no mistake
    sandbox.start()
    assert sandbox.state == SandboxState.STARTED
    answer = sandbox.process.exec("cat file; pgrep -f 'sleep 99[9]' || echo none; echo $DAYTONA_SANDBOX_ID").result
    assert answer == f"kept\nnone\n{sandbox.id}\n"
    sandbox.start()


def test_archive_wants_a_stopped_one(daytona: Daytona, sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.archive()
    sandbox.stop()
    sandbox.archive()
    assert stored_state(daytona, sandbox) == SandboxState.ARCHIVED
    sandbox.start()
    assert sandbox.process.exec("echo back").result == "back\n"


def test_an_ephemeral_one_is_deleted_by_its_stop(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromSnapshotParams(ephemeral=True))
    box.stop()
    assert box.id not in [each.id for each in daytona.list()]


def test_pause_freezes_and_start_thaws(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.process.exec("nohup sh -c 'while :; do echo x >> ticks; sleep 0.05; done' >/dev/null 2>&1 &")
    sandbox.pause()
    assert stored_state(daytona, sandbox) == SandboxState.PAUSED
    with pytest.raises(DaytonaBadRequestError, match="paused"):
        sandbox.process.exec("true")
    sandbox.start()
    assert stored_state(daytona, sandbox) == SandboxState.STARTED
    assert int(sandbox.process.exec("wc -l < ticks").result) > 0


def test_resize_while_it_runs(daytona: Daytona, sandbox: Sandbox) -> None:
    refusal = ""
    try:
        sandbox.resize(Resources(cpu=2, memory=2))
    except DaytonaError as error:
        refusal = str(error)
    seen = daytona.get(sandbox.id)
    # Where there is no cgroup, processors are not bounded, and it says so instead of pretending.
    assert (seen.cpu, seen.memory) == ((1, 1) if "no cgroup" in refusal else (2, 2)), refusal
    assert (seen.disk, seen.state) == (3, SandboxState.STARTED)
    with pytest.raises(DaytonaBadRequestError, match="smaller"):
        sandbox.resize(Resources(disk=1))


def test_calls_go_on_while_it_is_resized(daytona: Daytona, sandbox: Sandbox) -> None:
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(lambda: [sandbox.process.exec(f"echo {number}").result for number in range(20)])
        for memory in (2, 1) * 5:
            daytona.get(sandbox.id).resize(Resources(memory=memory))
        assert answers.result(60) == [f"{number}\n" for number in range(20)]


async def test_one_that_is_resized_is_used_if_it_runs(in_process: InProcess) -> None:
    async with in_process.session.post(in_process.url + "/sandbox", headers=in_process.headers()) as response:
        made = await response.json()
    row = in_process.server.sandboxes.find(made["id"], organisation_id=None).row
    url = in_process.url.removesuffix("/api") + f"/toolbox/{row.id}/work-dir"
    row.state = "resizing"
    for desired, status in (("started", 200), ("stopped", 400)):
        row.desired_state = desired
        async with in_process.session.get(url, headers=in_process.headers()) as response:
            assert response.status == status


def test_a_fork_and_a_snapshot_wait_for_a_change_that_is_under_way(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.process.exec("echo kept > file")
    name = unique("waited")
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(sandbox.stop)
        forking, keeping = pool.submit(sandbox.fork), pool.submit(daytona.get(sandbox.id).create_snapshot, name)
        stopping.result(60)
        fork = forking.result(60)
        keeping.result(60)
    try:
        assert fork.process.exec("cat file").result == "kept\n"
    finally:
        daytona.delete(fork)
        daytona.snapshot.delete(name)


def test_a_fork_has_the_files_and_goes_its_own_way(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.process.exec("echo common > file")
    fork = sandbox.fork(name=unique("fork"))
    try:
        assert fork.id != sandbox.id
        fork.process.exec("echo fork >> file")
        assert fork.process.exec("cat file").result == "common\nfork\n"
        assert sandbox.process.exec("cat file").result == "common\n"
        assert fork.process.exec("echo $DAYTONA_SANDBOX_ID").result == f"{fork.id}\n"
    finally:
        daytona.delete(fork)


def test_a_snapshot_is_what_others_start_from(daytona: Daytona, sandbox: Sandbox) -> None:
    name = unique("snapshot")
    sandbox.process.exec("echo frozen > file")
    take = sandbox.create_snapshot
    take(name)
    assert stored_state(daytona, sandbox) == SandboxState.STARTED
    sandbox.process.exec("echo later > file")
    with pytest.raises(DaytonaConflictError):
        take(name)
    made = daytona.snapshot.get(name)
    assert (made.state, made.name) == ("active", name)
    assert name in [each.name for each in daytona.snapshot.list().items]
    box = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    try:
        assert box.process.exec("cat file").result == "frozen\n"
        daytona.snapshot.delete(made)
        assert box.process.exec("cat file").result == "frozen\n"
        with pytest.raises(DaytonaNotFoundError):
            daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    finally:
        daytona.delete(box)


def test_a_snapshot_of_a_known_image(daytona: Daytona) -> None:
    name = unique("python:3")
    made = daytona.snapshot.create(
        CreateSnapshotParams(name=name, image="default", resources=Resources(cpu=2, memory=1))
    )
    assert (made.state, made.cpu) == ("active", 2)
    box = daytona.create(CreateSandboxFromSnapshotParams(snapshot=name))
    assert box.cpu == 2
    daytona.delete(box)
    daytona.snapshot.delete(made)
    with pytest.raises(DaytonaNotFoundError):
        daytona.snapshot.get(name)


def test_stopped_and_paused_ones_outlive_the_server(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    stopped, paused = daytona.create(), daytona.create()
    stopped.process.exec("echo kept > file")
    stopped.stop()
    paused.pause()
    own_server.kill()
    own_server.start()
    assert stored_state(daytona, stopped) == SandboxState.STOPPED
    assert stored_state(daytona, paused) == SandboxState.PAUSED
    stopped.start()
    paused.start()
    assert stopped.process.exec("cat file").result == "kept\n"
    assert paused.process.exec("echo awake").result == "awake\n"


def test_signing_keys_are_rotated(daytona: Daytona, sandbox: Sandbox) -> None:
    before = sandbox._sandbox_api.get_sandbox_signing_key(sandbox.id)
    assert before == daytona.get(sandbox.id)._sandbox_api.get_sandbox_signing_key(sandbox.id)
    sandbox.rotate_signing_key()
    assert sandbox._sandbox_api.get_sandbox_signing_key(sandbox.id) not in ("", before)


def test_metrics(sandbox: Sandbox) -> None:
    (sample,) = sandbox.get_metrics()
    assert (sample.cpu_count, sample.mem_total, sample.disk_total) == (1, 2**30, 3 * 2**30)
    now = datetime.now(UTC)
    assert sandbox.get_metrics(now - timedelta(days=2), now - timedelta(days=1)) == []  # nothing is kept
    sandbox.stop()
    assert sandbox.get_metrics() == []


def test_recover_does_not_let_one_wait_for_what_will_not_come(daytona: Daytona, sandbox: Sandbox) -> None:
    sandbox.recover()
    sandbox.pause()
    with pytest.raises(DaytonaBadRequestError, match="paused"):
        sandbox.recover()
    sandbox.start()
    sandbox.stop()
    sandbox.archive()
    with pytest.raises(DaytonaBadRequestError, match="archived"):
        sandbox.recover()
    assert stored_state(daytona, sandbox) == SandboxState.ARCHIVED


# Deadlines.


def row(**fields: object) -> Row:
    now = time.time()
    given = {
        "id": "x", "organisation_id": "o", "name": "x", "user": "daytona", "env": {}, "labels": {}, "target": "local",
        "cpu": 1, "memory": 1, "disk": 1, "state": "started", "desired_state": "started", "auto_stop": 0,
        "auto_archive": 0, "auto_delete": -1, "created_at": now, "active_at": now, "state_at": now, **fields,
    }  # fmt: skip
    return Row(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "minutes", "busy", "due"),
    [
        ({}, 10_000, False, None),
        ({"auto_stop": 15}, 14, False, None),
        ({"auto_stop": 15}, 15.1, False, "stop"),
        ({"auto_stop": 15}, 15.1, True, None),
        ({"auto_pause": 5, "auto_stop": 15}, 6, False, "pause"),
        ({"auto_pause": 5, "auto_stop": 15}, 16, False, "stop"),
        ({"state": "stopped", "auto_stop": 1}, 60, False, None),
        ({"state": "stopped", "auto_archive": 10}, 11, False, "archive"),
        ({"state": "stopped", "auto_delete": 10, "auto_archive": 5}, 11, False, "delete"),
        ({"state": "stopped", "auto_delete": 0}, 0.1, False, "delete"),
        ({"state": "archived", "auto_delete": 10}, 11, False, "delete"),
        ({"state": "error", "auto_stop": 1, "auto_delete": 1}, 100, False, None),
    ],
)
def test_what_is_due(fields: dict[str, object], minutes: float, busy: bool, due: str | None) -> None:
    made = row(**fields)
    assert what_is_due(made, made.state_at + 60 * minutes, busy=busy) == due


def test_a_time_to_live_goes_before_everything() -> None:
    made = row(destroy_at=time.time() + 60)
    assert what_is_due(made, time.time() + 59, busy=True) is None
    assert what_is_due(made, time.time() + 61, busy=True) == "delete"
