"""The long ones: hundreds of rounds, then a count of what is left. Run by `make soak`."""

import asyncio
import gc
import importlib.util
import random
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.spec import Resources, Spec
from support.leftovers import (
    adopt_orphans,
    count_descriptors,
    list_children,
    list_descendants,
    resident_bytes,
    take_stock,
    wait_until,
    watch_differences,
)
from support.user import OrdinaryUser

pytestmark = pytest.mark.soak

MIB = 2**20


def load_short_tests() -> ModuleType:
    """The same scenarios, which the default run has with fewer rounds."""
    path = Path(__file__).parents[1] / "engine" / "test_leftovers.py"
    spec = importlib.util.spec_from_file_location("short_leftovers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HANG_GUARD_SECONDS = 1800
    return module


short = load_short_tests()


def test_200_times_open_and_close_leaves_nothing(tmp_path: Path) -> None:
    assert short.run_here(short.COUNTERS + short.OPEN_AND_CLOSE, str(tmp_path / "data"), "200") == short.NOTHING


@pytest.mark.needs_root
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_200_times_open_and_close_leaves_nothing_of_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    args = [str(ordinary_user.home / "data"), "200"]
    done = ordinary_user.run(short.COUNTERS + short.OPEN_AND_CLOSE, args=args, timeout=1800)
    assert done.stdout == short.NOTHING, done.stderr


@pytest.mark.parametrize("seed", range(50))
def test_parent_killed_at_a_random_moment_leaves_nothing_after_the_next_start(tmp_path: Path, seed: int) -> None:
    adopt_orphans()
    try:
        folder = tmp_path / "data"
        if seed % 2:
            short.run_here(short.NEXT_START, str(folder))  # half of them in a folder that is furnished already
        argv = [sys.executable, "-c", short.BUSY, str(folder)]
        short.kill_at_random(argv, chance=random.Random(seed), longest_seconds=1.5)
        assert wait_until(lambda: not list_descendants(short.os.getpid()))
        short.run_here(short.NEXT_START, str(folder))
        assert short.what_is_left(folder) == {}
    finally:
        adopt_orphans(on=False)


async def test_1000_programs_leave_memory_flat_in_our_process_and_in_init(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        launcher = int(backend._launcher.ask({"op": "hello"})["pid"])
        (init,) = (pid for pid, name in list_children(launcher).items() if name == "corral-init")

        async def run(rounds: int) -> None:
            for number in range(rounds):
                result = await box.exec(["sh", "-c", "echo $0; cat >/dev/null", str(number)], stdin=b"x" * 1000)
                assert result.stdout == f"{number}\n"

        await run(200)
        gc.collect()
        before = [resident_bytes(), resident_bytes(init), resident_bytes(launcher)]
        descriptors = [count_descriptors(), count_descriptors(init), count_descriptors(launcher)]
        await run(1000)
        gc.collect()
        after = [resident_bytes(), resident_bytes(init), resident_bytes(launcher)]
        assert max(now - then for now, then in zip(after, before, strict=True)) < 5 * MIB
        assert [count_descriptors(), count_descriptors(init), count_descriptors(launcher)] == descriptors
    await backend.aclose()


@pytest.mark.parametrize(
    "script",
    ["head -c 300M /dev/zero", "head -c 300M /dev/zero >&2", "head -c 150M /dev/zero; head -c 150M /dev/zero >&2"],
)
async def test_300_megabytes_of_output_stay_outside_our_memory(tmp_path: Path, script: str) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        await box.exec("head -c 1M /dev/zero")
        before, most = resident_bytes(), 0

        def watch(_: object) -> None:
            nonlocal most
            most = max(most, resident_bytes())

        for on_output in (None, watch):
            result = await box.exec(script, on_output=on_output)
            most = max(most, resident_bytes())
            assert result.truncated
            assert result.stdout_total_bytes + result.stderr_total_bytes == 300 * MIB
        assert most - before < 50 * MIB
    await backend.aclose()


async def test_100_sandboxes_at_once_work_and_leave_nothing(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    await (await backend.create(Spec())).aclose()
    before = take_stock(tmp_path / "data")
    spec = Spec(resources=Resources(memory_bytes="64MiB", disk_bytes="256MiB", inodes=10_000))
    boxes = await asyncio.gather(*(backend.create(spec) for _ in range(100)))
    for _ in range(3):
        results = await asyncio.gather(*(box.exec(f"echo {box.id} > f; cat f") for box in boxes))
        assert [result.stdout.strip() for result in results] == [box.id for box in boxes]
    await asyncio.gather(*(box.aclose() for box in boxes))
    assert watch_differences(before, lambda: take_stock(tmp_path / "data")) == {}
    await backend.aclose()


async def test_two_data_folders_side_by_side_do_not_touch_each_other(tmp_path: Path) -> None:
    backends = [EmbeddedBackend(tmp_path / name) for name in ("one", "two")]

    async def use(backend: EmbeddedBackend, rounds: int) -> None:
        for number in range(rounds):
            async with await backend.create(Spec()) as box:
                await box.files.write("f", str(number).encode())
                assert (await box.exec("cat f")).stdout == str(number)
                if number % 5 == 0:
                    await box.detach(lifetime_seconds=1)

    await asyncio.gather(*(use(backend, 50) for backend in backends for _ in range(3)))
    await backends[0].aclose()
    async with await backends[1].create(Spec()) as box:
        assert (await box.exec("echo on")).stdout == "on\n"
    await backends[1].aclose()
    for backend in backends:
        empty: dict[str, list[str]] = {"groups": [], "loops": [], "files": []}
        assert watch_differences(empty, lambda folder=backend.data_folder: take_stock(folder)) == {}


async def test_cancelling_500_times_leaves_nothing(tmp_path: Path) -> None:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        await box.exec("true")
        await box.files.write("f", b"x")
        before, descriptors = take_stock(tmp_path / "data"), count_descriptors()
        chance = random.Random(1)
        kinds: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: box.exec("sleep 1000 & sleep 1000"),
            lambda: box.files.read("f"),
            lambda: box.run_code("print(1)"),
        )
        for number in range(500):
            task = asyncio.ensure_future(kinds[number % 3]())
            await asyncio.sleep(chance.uniform(0, 0.02))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await box.exec("echo on", check=True)
        assert watch_differences(before, lambda: take_stock(tmp_path / "data")) == {}
        assert wait_until(lambda: count_descriptors() <= descriptors + 1)
    await backend.aclose()
