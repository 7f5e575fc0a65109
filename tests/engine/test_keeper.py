"""Detached sandboxes outlive the process that created them, are found by other processes, and end when they should."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend, keepers, seam
from corral.backends.embedded import detached as detached_programs
from corral.backends.embedded.sandbox import Grip
from corral.client.sandbox import AsyncSandbox
from corral.engine.client import check
from corral.engine.errors import EngineError
from corral.engine.state import read_state
from corral.engine.sweep import delete
from corral.errors import SandboxGoneError, SpecError, WorkdirError
from corral.spec import Lifetime, Spec
from support.leftovers import instance_mark, list_files, list_groups, list_loops, wait_until

HANG_GUARD_SECONDS = 60


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    """One whose detached sandboxes are ended after the test."""
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    for info in await backend.list():
        await backend.delete(info.sandbox_id)
    await backend.aclose()


def keeper_of(backend: EmbeddedBackend, sandbox_id: str) -> int:
    state = read_state(backend.data_folder / "sandboxes" / sandbox_id)
    assert state is not None
    return int(state["keeper"])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def nothing_is_left(backend: EmbeddedBackend) -> bool:
    folder = backend.data_folder
    return not (list_files(folder) or list_loops(folder) or list_groups(instance_mark(folder)))


async def detached(backend: EmbeddedBackend, **options: object) -> AsyncSandbox:
    box = await backend.create(Spec())
    await box.detach(**options)  # type: ignore[arg-type]  # name= and lifetime_seconds=
    return box


async def test_detached_sandbox_is_there_for_another_process(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="shared")
    await box.files.write("f", b"from the first")
    script = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend
async def main():
    box = await EmbeddedBackend(sys.argv[1]).connect("shared")
    print((await box.exec("cat f")).stdout)
    await box.files.write("g", b"from the second")
    await box.aclose()
asyncio.run(main())
"""
    argv = [sys.executable, "-c", script, str(backend.data_folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert done.stdout == "from the first\n", done.stderr
    assert await box.files.read("g") == b"from the second"
    await box.aclose()


async def test_detached_sandbox_outlives_the_process_that_made_it(backend: EmbeddedBackend) -> None:
    script = """
import asyncio, os, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec
async def main():
    box = await EmbeddedBackend(sys.argv[1]).create(Spec(env={"WHO": "me"}, workdir="/workspace"))
    await box.start("sleep 1000")
    print(await box.detach(), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    argv = [sys.executable, "-c", script, str(backend.data_folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert done.returncode == -signal.SIGKILL, done.stderr
    box = await backend.connect(done.stdout.strip())
    assert (await box.exec("echo $WHO; pwd")).stdout == "me\n/workspace\n"
    assert [info.sandbox_id for info in await backend.list()] == [box.id]
    await box.kill()
    assert wait_until(lambda: nothing_is_left(backend))


async def test_background_program_of_a_detached_sandbox_lives_on(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    process = await box.start("while :; do date +%s.%N > alive; sleep 0.05; done")
    await box.detach()
    while not await box.files.exists("alive"):
        await asyncio.sleep(0.02)
    first = await box.files.read("alive")
    while await box.files.read("alive") == first:
        await asyncio.sleep(0.02)
    await process.kill()
    await box.aclose()


async def test_closing_a_handle_leaves_the_sandbox(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    await box.aclose()
    other = await backend.connect(box.id)
    assert (await other.exec("echo on")).stdout == "on\n"
    await other.aclose()


async def test_detaching_twice_is_the_same(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    assert await box.detach() == box.id
    await box.aclose()


async def test_deadline_ends_it_and_nothing_is_left(backend: EmbeddedBackend) -> None:
    box = await detached(backend, lifetime_seconds=3)  # time to begin something, on a busy machine too
    assert (await box.info()).deadline is not None
    await box.start("sleep 1000")
    assert wait_until(lambda: nothing_is_left(backend))
    with pytest.raises(SandboxGoneError):
        await box.exec("true")
    with pytest.raises(SandboxGoneError):
        await backend.connect(box.id)
    assert await backend.list() == []
    await box.aclose()


async def test_idle_sandbox_ends(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(lifetime=Lifetime(idle_seconds=0.7)))
    await box.detach()
    await box.aclose()
    assert wait_until(lambda: nothing_is_left(backend))


async def test_sandbox_that_is_used_is_not_idle(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(lifetime=Lifetime(idle_seconds=3)))
    await box.detach()
    other = await backend.connect(box.id)
    assert (await other.exec("sleep 4; echo on")).stdout == "on\n"
    end = time.monotonic() + 4
    while time.monotonic() < end:
        await asyncio.sleep(0.1)
        assert (await other.exec("echo on")).stdout == "on\n"
    await other.kill()
    await box.aclose()


async def test_folder_that_vanishes_ends_it(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    keeper = keeper_of(backend, box.id)
    delete(str(backend.data_folder / "sandboxes" / box.id))
    assert wait_until(lambda: not is_alive(keeper))
    assert wait_until(lambda: nothing_is_left(backend))
    with pytest.raises(SandboxGoneError):
        await box.exec("true")
    await box.aclose()


async def test_folder_of_which_only_something_is_left_ends_it(backend: EmbeddedBackend) -> None:
    """As after `rm -rf` by an ordinary user, whom the kernel's own folder in an overlay keeps out."""
    box = await detached(backend)
    keeper, folder = keeper_of(backend, box.id), backend.data_folder / "sandboxes" / box.id
    for name in ("lock", "state.json", "keeper.sock"):
        (folder / name).unlink()
    assert wait_until(lambda: not is_alive(keeper))
    await box.aclose()


async def test_data_folder_that_vanishes_ends_it(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    box = await backend.create(Spec())
    await box.detach()
    mark, keeper = instance_mark(backend.data_folder), keeper_of(backend, box.id)
    await box.aclose()
    await backend.aclose()
    delete(str(tmp_path / "data"))
    assert wait_until(lambda: not is_alive(keeper))
    assert wait_until(lambda: not list_groups(mark))
    assert not list_loops(tmp_path / "data")


async def test_keeper_that_is_killed_takes_its_sandbox_along_and_is_swept(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="doomed")
    process = await box.start("setsid sleep 1000 & sleep 1000")
    os.kill(keeper_of(backend, box.id), signal.SIGKILL)
    with pytest.raises(SandboxGoneError):
        await process.wait()
    with pytest.raises(SandboxGoneError):
        await backend.connect("doomed")
    assert await backend.list() == []
    # A dead sandbox holds no name.
    other = await detached(backend, name="doomed")
    async with await backend.connect("doomed") as found:
        assert (await found.exec("echo on")).stdout == "on\n"
    await other.kill()
    assert wait_until(lambda: bool(keepers.sweep_now(backend.data_folder)) or nothing_is_left(backend))
    assert wait_until(lambda: nothing_is_left(backend))
    await box.aclose()


async def test_keeper_that_is_asked_to_end_clears_up(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    os.kill(keeper_of(backend, box.id), signal.SIGTERM)
    assert wait_until(lambda: nothing_is_left(backend))
    await box.aclose()


async def test_sweep_spares_a_sandbox_whose_keeper_lives(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    assert keepers.sweep_now(backend.data_folder) == []
    assert (await box.exec("echo on")).stdout == "on\n"
    await box.aclose()


async def test_name_is_given_once(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="mine")
    async with await backend.create(Spec()) as other:
        with pytest.raises(SpecError, match="mine"):
            await other.detach(name="mine")
        assert (await other.exec("echo on")).stdout == "on\n"
    async with await backend.connect("mine") as found:
        assert found.id == box.id
    await box.kill()
    again = await detached(backend, name="mine")
    await again.aclose()


async def test_name_is_given_once_to_those_who_ask_at_the_same_time(backend: EmbeddedBackend) -> None:
    boxes = [await backend.create(Spec()) for _ in range(3)]
    outcomes = await asyncio.gather(*(box.detach(name="mine") for box in boxes), return_exceptions=True)
    assert sorted(isinstance(outcome, str) for outcome in outcomes) == [False, False, True]
    for box in boxes:
        await box.aclose()
    assert [info.name for info in await backend.list()] == ["mine"]


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "x" * 64, "a\n"])
async def test_odd_name_is_refused_and_the_sandbox_unharmed(backend: EmbeddedBackend, name: str) -> None:
    async with await backend.create(Spec()) as box:
        with pytest.raises(SpecError):
            await box.detach(name=name)
        assert (await box.exec("echo on")).stdout == "on\n"


async def test_found_by_id_by_name_and_by_the_beginning_of_an_id(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="known")
    for wanted in (box.id, "known", box.id[:8]):
        found = await backend.connect(wanted)
        assert found.id == box.id
        await found.aclose()
    for wanted in ("unknown", box.id[:3], "", "/", "..", f"../sandboxes/{box.id}"):
        with pytest.raises(SandboxGoneError):
            await backend.connect(wanted)
    await box.aclose()


async def test_owned_sandbox_is_not_to_be_found(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        assert await backend.list() == []
        with pytest.raises(SandboxGoneError):
            await backend.connect(box.id)


async def test_detached_program_runs_on_and_is_recorded(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="worker")
    await box.aclose()
    assert await backend.start_detached("worker", "cat; echo out; sleep 0.5; echo err >&2; exit 3") == 1
    assert await backend.start_detached("worker", ["sleep", "1000"]) == 2
    assert await printed(backend, 1, follow=True) == b"out\nerr\n"
    first, second = await backend.list_detached("worker")
    assert (first.running, first.exit_code, first.text) == (False, 3, "cat; echo out; sleep 0.5; echo err >&2; exit 3")
    assert (second.running, second.exit_code, second.argv) == (True, None, ("sleep", "1000"))
    with pytest.raises(SandboxGoneError, match="program 3 not found"):
        await printed(backend, 3)


async def test_detached_program_that_can_not_start_says_so(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="worker")
    with pytest.raises(WorkdirError):
        await backend.start_detached("worker", ["true"], cwd="/not/there")
    assert await backend.list_detached("worker") == []
    await box.aclose()


async def test_records_outlive_a_stop_but_not_the_next_start(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="worker")
    await backend.start_detached("worker", "echo before; sleep 1000")
    while await printed(backend) != b"before\n":
        await asyncio.sleep(0.01)
    await box.stop()
    await box.aclose()
    assert [(each.running, each.exit_code) for each in await backend.list_detached("worker")] == [(False, None)]
    assert await printed(backend, follow=True) == b"before\n"
    async with await backend.start(box.id) as again:
        assert await backend.list_detached("worker") == []
        assert await backend.start_detached("worker", "echo after") == 1
        assert await printed(backend, follow=True) == b"after\n"
        await again.kill()


async def test_of_many_detached_programs_the_oldest_that_ended_is_forgotten(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detached_programs, "MAX_PROGRAMS", 2)
    box = await detached(backend, name="worker")
    await backend.start_detached("worker", "sleep 1000")
    for number in (2, 3, 4):
        assert await backend.start_detached("worker", f"echo {number}") == number
        assert await printed(backend, number, follow=True) == b"%d\n" % number
    assert [each.number for each in await backend.list_detached("worker")] == [1, 4]
    await box.aclose()


async def test_detached_program_keeps_a_sandbox_from_being_idle(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(lifetime=Lifetime(idle_seconds=2), name="worker"))
    await box.detach()
    await box.aclose()
    await backend.start_detached("worker", "sleep 4; echo done")
    # Its end counts as use: there is time to read how it went.
    assert await printed(backend, follow=True) == b"done\n"
    assert await printed(backend) == b"done\n"
    assert wait_until(lambda: nothing_is_left(backend))


async def test_logs_that_release_0_1_wrote_are_read(backend: EmbeddedBackend) -> None:
    box = await detached(backend, name="worker")
    logs = backend.data_folder / "sandboxes" / box.id / "logs"
    logs.mkdir()
    about = {"argv": ["sh", "-c", "x"], "started": 1.5, "state": "running", "pid": 7}
    (logs / "1.json").write_text(json.dumps(about))
    (logs / "1.log.1").write_bytes(b"older\n")
    (logs / "1.log").write_bytes(b"newer\n")
    (program,) = await backend.list_detached("worker")
    assert (program.number, program.running, program.argv) == (1, True, ("sh", "-c", "x"))
    assert await printed(backend) == b"older\nnewer\n"
    following = asyncio.ensure_future(printed(backend, follow=True))
    await asyncio.sleep(0.3)
    with (logs / "1.log").open("ab") as file:
        file.write(b"last\n")
    (logs / "1.json").write_text(json.dumps({**about, "state": "ended", "exit_code": 3}))
    assert await following == b"older\nnewer\nlast\n"
    assert await backend.start_detached("worker", "echo new") == 2
    assert [(each.number, each.exit_code) for each in await backend.list_detached("worker")][:1] == [(1, 3)]
    await box.aclose()


async def printed(backend: EmbeddedBackend, number: int | None = None, *, follow: bool = False) -> bytes:
    return b"".join([data async for data in backend.follow_detached("worker", number, follow=follow)])


async def test_garbage_at_the_keepers_door_is_survived(backend: EmbeddedBackend) -> None:
    box = await detached(backend)
    for packet in (b"", b"garbage", b"I[]", b"I{}", b"M", b"I" + b" " * 100_000):
        connection = keepers.dial(backend.data_folder, box.id)
        connection.send(packet)
        connection.close()
    grip = Grip(box.id, keepers.dial(backend.data_folder, box.id))
    for message, refusal in (({"op": "nonsense"}, "unknown"), ({"op": "record"}, "KeyError")):
        with pytest.raises(EngineError, match=refusal):
            check(await seam.answer(await grip.ask(message)))
    grip.close()
    assert (await box.exec("echo on")).stdout == "on\n"
    await box.aclose()


async def test_ephemeral_sandbox_can_be_detached(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec(ephemeral=True))
    await box.files.write("f", b"1")
    await box.detach()
    other = await backend.connect(box.id)
    assert await other.files.read("f") == b"1"
    await other.kill()
    await box.aclose()


@pytest.mark.parametrize("how", ["deleted", "stopped", "keeper killed", "owned, killed"])
async def test_whoever_waits_for_the_end_of_a_sandbox_is_told(backend: EmbeddedBackend, how: str) -> None:
    box = await (backend.create(Spec()) if how == "owned, killed" else detached(backend))
    waiting = asyncio.create_task(box.wait_until_gone())
    await box.exec("true")
    assert not waiting.done()
    if how == "deleted":
        await EmbeddedBackend(backend.data_folder).delete(box.id)
    elif how == "stopped":
        await EmbeddedBackend(backend.data_folder).stop(box.id)
    elif how == "keeper killed":
        os.kill(keeper_of(backend, box.id), signal.SIGKILL)
    else:
        box.primitives._give_up()
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        await waiting
    await box.aclose()
