"""The launcher: cancelled, orphaned and refused creates leave nothing, and a sandbox's failure stays its own."""

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.engine import wire
from corral.engine.client import LauncherClient, ask, receive_within
from corral.engine.errors import EngineError, RefusedError, SetupError
from corral.engine.recipe import Overlaid, Recipe
from corral.errors import BackendUnavailableError, CorralError, SandboxGoneError
from corral.spec import Resources, Spec
from support.leftovers import (
    count_descriptors,
    list_children,
    list_descendants,
    take_stock,
    wait_until,
    watch_differences,
)

HANG_GUARD_SECONDS = 30


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path / "data")
    yield backend
    await backend.aclose()


def launcher_of(backend: EmbeddedBackend) -> int:
    return int(backend._launcher.ask({"op": "hello"})["pid"])


def inits_of(backend: EmbeddedBackend) -> set[int]:
    return {pid for pid, name in list_children(launcher_of(backend)).items() if name == "corral-init"}


def sleepers_of(backend: EmbeddedBackend) -> list[int]:
    return [pid for pid, name in list_descendants(launcher_of(backend)).items() if name == "sleep"]


def stock_of(backend: EmbeddedBackend) -> dict[str, list[str]]:
    return take_stock(backend.data_folder, ancestor=launcher_of(backend))


async def recipe_of(backend: EmbeddedBackend, sandbox_id: str) -> Recipe:
    spec = Spec()
    return backend.make_recipe(spec, sandbox_id, await backend.grounds.prepare(spec))


def create(launcher: LauncherClient, recipe: Recipe) -> socket.socket:
    """Ask for a sandbox without the backend's help; the socket is its owner's."""
    ours, theirs = wire.make_pair()
    try:
        launcher.ask({"op": "create", "recipe": recipe.to_json()}, (theirs.fileno(),))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


# Who goes away.


async def test_cancelled_call_ends_with_everything_it_started(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        script = "setsid sleep 1000 & (sleep 1000 &) ; trap '' TERM; sleep 1000; true"
        task = asyncio.ensure_future(box.exec(script))
        while len(sleepers_of(backend)) < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert wait_until(lambda: not sleepers_of(backend))
        assert (await box.exec("echo on")).stdout == "on\n"


async def test_channel_that_is_closed_ends_its_call_only(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        other = await box.start(["sleep", "1000"])
        process = await box.start("sleep 1000 & sleep 1000")
        assert wait_until(lambda: len(sleepers_of(backend)) == 3)
        process._channel.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # as if its client had been killed
        assert wait_until(lambda: len(sleepers_of(backend)) == 1)
        assert not other.ended
        await other.kill()


async def test_owner_that_is_gone_takes_its_sandbox_along(backend: EmbeddedBackend) -> None:
    await (await backend.create(Spec())).aclose()
    before = stock_of(backend)
    box = await backend.create(Spec())
    await box.start("sleep 1000")
    assert len(inits_of(backend)) == 1
    box.primitives._control.shutdown(socket.SHUT_RDWR)
    assert watch_differences(before, lambda: stock_of(backend)) == {}
    with pytest.raises(SandboxGoneError):
        await box.exec("true")
    await box.aclose()


async def test_launcher_that_is_killed_takes_its_sandboxes_along(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    process = await box.start("setsid sleep 1000 & sleep 1000")
    assert wait_until(lambda: len(sleepers_of(backend)) == 2)
    doomed = list_descendants(launcher_of(backend)).keys()
    os.kill(launcher_of(backend), signal.SIGKILL)
    assert wait_until(lambda: not any(is_alive(pid) for pid in doomed))
    with pytest.raises(SandboxGoneError):
        await process.wait()
    with pytest.raises(SandboxGoneError):
        await box.exec("true")
    await box.aclose()


async def test_after_a_killed_launcher_the_next_sandbox_works_and_the_old_one_is_swept(
    backend: EmbeddedBackend,
) -> None:
    old = await backend.create(Spec())
    before = launcher_of(backend)
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(before))
    async with await backend.create(Spec()) as box:
        assert (await box.exec("echo new")).stdout == "new\n"
        assert [path.name for path in (backend.data_folder / "sandboxes").iterdir()] == [box.id]
    await old.aclose()


async def test_init_that_is_killed_is_a_gone_sandbox_and_no_more(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as other:
        await other.exec("true")
        before, spared = stock_of(backend), inits_of(backend)
        box = await backend.create(Spec())
        (init,) = inits_of(backend) - spared
        os.kill(init, signal.SIGKILL)
        with pytest.raises(SandboxGoneError):
            await box.exec("true")
        assert watch_differences(before, lambda: stock_of(backend)) == {}
        assert (await other.exec("echo on")).stdout == "on\n"
        await box.aclose()


async def test_init_that_dies_while_it_is_handed_to_a_keeper_is_nobody_elses_trouble(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as other:
        spared = inits_of(backend)
        box = await backend.create(Spec())
        (init,) = inits_of(backend) - spared
        launcher = launcher_of(backend)
        os.kill(launcher, signal.SIGSTOP)  # so that it finds the request and the dead init at the same time
        task = asyncio.ensure_future(box.detach())
        await asyncio.sleep(0.1)
        os.kill(init, signal.SIGKILL)
        os.kill(launcher, signal.SIGCONT)
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            with pytest.raises(SandboxGoneError):
                await task
        assert (await other.exec("echo on")).stdout == "on\n"
        assert launcher_of(backend) == launcher
        await box.aclose()


@pytest.mark.timeout(60)
async def test_init_that_does_not_answer_does_not_hang_the_launcher(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as other:
        spared = inits_of(backend)
        box = await backend.create(Spec())
        (init,) = inits_of(backend) - spared
        os.kill(init, signal.SIGSTOP)  # from outside: stands for an init that was taken over
        try:
            task = asyncio.ensure_future(box.detach())
            async with asyncio.timeout(HANG_GUARD_SECONDS):
                await (await backend.create(Spec())).aclose()
                assert (await other.usage()).disk_bytes is not None
        finally:
            with contextlib.suppress(ProcessLookupError):  # the launcher has given it up by itself
                os.kill(init, signal.SIGKILL)
        await asyncio.gather(task, return_exceptions=True)
        await box.aclose()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# What is refused.


async def test_missing_layer_is_a_typed_error_and_leaves_nothing(backend: EmbeddedBackend) -> None:
    await (await backend.create(Spec())).aclose()
    recipe = await recipe_of(backend, "feed")
    missing = replace(recipe, trees=(*recipe.trees, Overlaid("/opt/corral", ("/nowhere/at/all",))))
    before, descriptors = stock_of(backend), count_descriptors(launcher_of(backend))
    for _ in range(3):
        with pytest.raises(SetupError) as caught:
            create(backend._launcher, missing)
        assert "No such file" in str(caught.value)
    assert watch_differences(before, lambda: stock_of(backend)) == {}
    # A deletion may be under way, before or now.
    assert wait_until(lambda: count_descriptors(launcher_of(backend)) <= descriptors)
    create(backend._launcher, recipe).close()


async def test_target_that_is_no_folder_is_a_typed_error_and_leaves_nothing(backend: EmbeddedBackend) -> None:
    await (await backend.create(Spec())).aclose()
    recipe = await recipe_of(backend, "feed")
    before, descriptors = stock_of(backend), count_descriptors(launcher_of(backend))
    with pytest.raises(SetupError):
        create(backend._launcher, replace(recipe, trees=(*recipe.trees, Overlaid("/etc/passwd/x", ("/usr",)))))
    assert watch_differences(before, lambda: stock_of(backend)) == {}
    # A deletion may be under way, before or now.
    assert wait_until(lambda: count_descriptors(launcher_of(backend)) <= descriptors)


async def test_id_that_is_taken_is_refused_and_its_holder_unharmed(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        with pytest.raises(RefusedError):
            create(backend._launcher, await recipe_of(backend, box.id))
        assert (await box.exec("echo on")).stdout == "on\n"


async def test_create_without_descriptors_to_spare_leaves_nothing_at_whichever_step_it_fails(
    backend: EmbeddedBackend,
) -> None:
    async with await backend.create(Spec()) as other:
        await other.exec("true")
        launcher = launcher_of(backend)
        before, descriptors = stock_of(backend), count_descriptors(launcher)
        soft, hard = resource.prlimit(launcher, resource.RLIMIT_NOFILE)
        refused = 0
        for spare in range(1, 40):
            resource.prlimit(launcher, resource.RLIMIT_NOFILE, (descriptors + spare, hard))
            try:
                await (await backend.create(Spec())).aclose()
            except CorralError:
                refused += 1
            finally:
                resource.prlimit(launcher, resource.RLIMIT_NOFILE, (soft, hard))
            assert launcher_of(backend) == launcher, f"the launcher died with {spare} descriptors to spare"
            assert watch_differences(before, lambda: stock_of(backend)) == {}, f"with {spare} descriptors to spare"
            assert wait_until(lambda: count_descriptors(launcher) <= descriptors), f"with {spare} descriptors to spare"
        assert 2 < refused < 39
        assert (await other.exec("echo on")).stdout == "on\n"


FULL_DISK = """
import asyncio, os, sys
from corral.backends.embedded import EmbeddedBackend
from corral.errors import BackendUnavailableError, CorralError
from corral.spec import Resources, Spec

async def main():
    backend = EmbeddedBackend(sys.argv[1] + "/data")
    spec = Spec(resources=Resources(disk_bytes=16 * 2**20, inodes=1000))
    await (await backend.create(spec)).aclose()
    errors = set()
    for free in (0, 4096, 8192, 65536, 500_000):
        with open(sys.argv[1] + "/ballast", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - free))
        try:
            box = await backend.create(spec)
        except CorralError as error:
            errors.add(type(error).__name__)
        else:
            await box.aclose()
        os.unlink(sys.argv[1] + "/ballast")
        for _ in range(50):
            if left := os.listdir(sys.argv[1] + "/data/sandboxes"):
                await asyncio.sleep(0.1)
        if left:
            print(f"left with {free} bytes free: {left}")
            break
    box = await backend.create(spec)
    print((await box.exec("echo on")).stdout.strip(), *errors)
    await box.aclose()
    await backend.aclose()

asyncio.run(main())
"""


@pytest.mark.needs_root
def test_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    # In a separate mount namespace: only this test sees the small disk.
    script = 'mount -t tmpfs -o size=24m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL_DISK]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert done.stdout == "on BackendUnavailableError\n", done.stderr


async def test_limit_on_processes_ends_no_sandbox(backend: EmbeddedBackend) -> None:
    """As an ordinary user: the launcher can't fork a helper, and has to do without."""
    async with await backend.create(Spec()) as other:
        launcher = launcher_of(backend)
        box = await backend.create(Spec())
        _, hard = resource.prlimit(launcher, resource.RLIMIT_NPROC)
        resource.prlimit(launcher, resource.RLIMIT_NPROC, (1, hard))
        await box.aclose()
        with pytest.raises(BackendUnavailableError) if os.geteuid() else contextlib.nullcontext():
            await (await backend.create(Spec())).aclose()
        resource.prlimit(launcher, resource.RLIMIT_NPROC, (hard, hard))
        assert launcher_of(backend) == launcher
        assert (await other.exec("echo on")).stdout == "on\n"


async def test_create_that_is_cancelled_at_any_moment_leaves_nothing(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as other:
        await other.exec("true")
        launcher = launcher_of(backend)
        before, descriptors = stock_of(backend), count_descriptors()
        chance = random.Random(7)
        for _ in range(25):
            task = asyncio.ensure_future(backend.create(Spec()))
            await asyncio.sleep(chance.uniform(0, 0.06))
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, AsyncSandbox):
                await outcome.aclose()
        assert watch_differences(before, lambda: stock_of(backend)) == {}
        assert launcher_of(backend) == launcher
        assert wait_until(lambda: count_descriptors() <= descriptors)
        assert (await other.exec("echo on")).stdout == "on\n"


async def test_first_create_that_is_cancelled_while_the_launcher_starts_leaves_nothing(tmp_path: Path) -> None:
    for delay in (0.0, 0.01, 0.05, 0.1, 0.15):
        backend = EmbeddedBackend(tmp_path / "data")
        task = asyncio.ensure_future(backend.create(Spec()))
        await asyncio.sleep(delay)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, AsyncSandbox):
            await outcome.aclose()
        # A descriptor that is opened now may get the number of one that was just closed.
        with (tmp_path / "innocent").open("w"):
            await asyncio.sleep(0.2)
        async with await backend.create(Spec()) as box:
            assert (await box.exec("echo on")).stdout == "on\n"
        await backend.aclose()
    assert list((tmp_path / "data/sandboxes").iterdir()) == []


# What is asked wrongly.


async def test_nonsense_is_answered_and_survived(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        launcher = launcher_of(backend)
        with pytest.raises(RefusedError):
            backend._launcher.ask({"op": "nonsense"})
        for operation in ("destroy", "usage", "detach"):
            with pytest.raises(EngineError):
                backend._launcher.ask({"op": operation, "id": "never-made", "info": {}})
        assert launcher_of(backend) == launcher
        assert (await box.exec("echo on")).stdout == "on\n"


@pytest.mark.parametrize("owner", ["none", "pipe"])
async def test_create_with_a_wrong_owner_is_answered_and_survived(backend: EmbeddedBackend, owner: str) -> None:
    async with await backend.create(Spec()) as box:
        launcher = launcher_of(backend)
        recipe = await recipe_of(backend, "feed")
        reader, writer = os.pipe()
        try:
            descriptors = (reader,) if owner == "pipe" else ()
            with ask(backend._launcher.peer, {"op": "create", "recipe": recipe.to_json()}, descriptors) as answer:
                assert "error" in receive_within(answer, HANG_GUARD_SECONDS)
        finally:
            os.close(reader)
            os.close(writer)
        assert (await box.exec("echo on")).stdout == "on\n"
        assert launcher_of(backend) == launcher


async def test_many_sandboxes_at_once_are_made_and_ended(backend: EmbeddedBackend) -> None:
    await (await backend.create(Spec())).aclose()
    before = stock_of(backend)
    boxes = await asyncio.gather(*(backend.create(Spec(resources=Resources(memory_bytes="64MiB"))) for _ in range(12)))
    results = await asyncio.gather(*(box.exec(f"echo {box.id}") for box in boxes))
    assert [result.stdout.strip() for result in results] == [box.id for box in boxes]
    await asyncio.gather(*(box.aclose() for box in boxes))
    assert watch_differences(before, lambda: stock_of(backend)) == {}


async def test_helpers_of_the_launcher_do_not_stay_as_zombies(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()):
        for _ in range(5):
            await (await backend.create(Spec())).aclose()
        launcher = launcher_of(backend)

        def zombies() -> list[str]:
            time.sleep(0.05)
            stats = [
                Path(f"/proc/{pid}/stat")
                for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
            ]
            return [
                text
                for stat in stats
                if stat.exists() and (text := stat.read_text()).rpartition(")")[2].split()[0] == "Z"
            ]

        assert wait_until(lambda: not zombies())


async def test_data_folder_may_be_given_relative_to_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"corral-{os.getpid()}"
    backend = EmbeddedBackend(name)
    try:
        async with await backend.create(Spec()) as box:
            assert (tmp_path / name / "sandboxes" / box.id).is_dir()
    finally:
        await backend.aclose()
        astray = Path("/", name).exists()  # where the launcher, which lives in /, would put it
        shutil.rmtree(Path("/", name), ignore_errors=True)
    assert not astray
