"""The end of a run can't be forged: the host asks the driver, and the timeout starts when the run is sent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.spec import Spec

HANG_GUARD_SECONDS = 100
TIME_TO_BEGIN = 3.0  # a program that is to run into its timeout must have begun before, on a busy machine too


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AsyncSandbox]:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        yield box
    await backend.aclose()


FORGE = """
import gc, time
driver = next(each for each in gc.get_objects() if type(each).__name__ == "Interpreter")
frame = __import__("sys")._getframe()
while "name" not in frame.f_locals or "request" not in frame.f_locals:
    frame = frame.f_back
def forge():
    driver.send({"event": "end", "run": frame.f_locals["name"], "state": "completed"}, (1, 2))
"""
GO_ON = """
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        forge()
"""
ANSWER = """
forge()
driver.send({"event": "pong", "ping": driver.channel.read()["ping"]})
"""


async def test_run_that_says_it_has_ended_and_goes_on_has_not(box: AsyncSandbox) -> None:
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        ended = await box.interpreter.execute(f"{FORGE}forge()\n{GO_ON}", timeout=TIME_TO_BEGIN)
        assert (ended.status, ended.fresh) == ("timeout", True)
        assert (await box.interpreter.execute("'driver' in globals()")).text == "False"
        # It did end, whatever it had said before.
        assert (await box.interpreter.execute(f"{FORGE}forge()\nx = 1", timeout=HANG_GUARD_SECONDS)).ok
        assert (await box.interpreter.execute("x")).text == "1"


async def test_question_that_a_thread_of_the_run_takes_keeps_nobody_waiting(box: AsyncSandbox) -> None:
    # The run ends once the thread has read the question: between runs, the driver might be faster.
    take_one = (
        "import threading\nthief = threading.Thread(target=driver.channel.read)\nthief.start()\nforge()\nthief.join()"
    )
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        ended = await box.interpreter.execute(f"{FORGE}{take_one}", timeout=TIME_TO_BEGIN)
        assert ended.status == "timeout"
        assert (await box.interpreter.execute("6 * 7")).text == "42"


async def test_clock_of_a_run_starts_when_it_is_sent(box: AsyncSandbox) -> None:
    """Also if its reader is busy with the forged end, and the code has answered for the driver."""
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        await box.interpreter.execute(f"{FORGE}{ANSWER}{GO_ON}", timeout=HANG_GUARD_SECONDS)
        ended = await box.interpreter.execute("1", timeout=0.5)
        assert (ended.status, ended.fresh) == ("timeout", True)
        assert (await box.interpreter.execute("2")).text == "2"
