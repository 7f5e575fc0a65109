"""Output in memory: what is held of a program that has ended, and one that waits for memory."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.process import EmbeddedProcess
from corral.base.process import ALLOWANCE
from corral.client.sandbox import AsyncSandbox
from corral.spec import Spec


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AsyncSandbox]:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        yield box
    await backend.aclose()


def count_programs() -> int:
    gc.collect()
    return sum(isinstance(each, EmbeddedProcess) for each in gc.get_objects())


async def test_nothing_is_held_of_a_program_whose_child_in_the_background_lives_on(box: AsyncSandbox) -> None:
    before = count_programs()
    printed = await box.exec("head -c 300000 /dev/zero | tr '\\0' x; (sleep 1000; echo) & echo $!")
    child = printed.stdout[300000:].strip()
    async with asyncio.timeout(60):
        while count_programs() > before:  # the thread that reads may still have it in its hands
            await asyncio.sleep(0.01)
    assert (await box.exec(f"kill -0 {child}")).ok


async def test_a_child_in_the_background_can_go_on_printing(box: AsyncSandbox) -> None:
    await box.exec("(sleep 0.1; head -c 5000000 /dev/zero; touch /tmp/printed) & echo begun")
    async with asyncio.timeout(60):
        while not await box.files.exists("/tmp/printed"):
            await asyncio.sleep(0.05)


class NoMemory:
    """An allowance that is spent, and never answers."""

    def take(self, count: int) -> bool:
        return False

    def ask(self, count: int, answer: Callable[[bool], None]) -> None:
        """Later, perhaps."""


async def test_a_program_that_is_out_of_time_does_not_wait_for_memory(box: AsyncSandbox) -> None:
    ALLOWANCE.set(NoMemory())
    async with asyncio.timeout(60):
        ended = await box.exec("echo begun; head -c 5000000 /dev/zero | tr '\\0' x", timeout=1)
    assert ended.timed_out
    assert ended.stdout.startswith("begun")
