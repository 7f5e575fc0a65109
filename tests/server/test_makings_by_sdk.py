"""A sandbox that was asked for is never lost: whenever its caller is cancelled, or its program ends, or its answer."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daytona import Daytona

from corral.backends.daytona import DaytonaBackend
from corral.errors import BackendUnavailableError
from corral.spec import Spec
from support.leftovers import wait_until
from support.serving import ServedProcess

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]

HANG_GUARD_SECONDS = 100

BEGIN = """
import asyncio
from corral.backends.daytona import DaytonaBackend
from corral.environment import Environment
from corral.spec import Spec

backend = DaytonaBackend()
"""

# The first waits for the SDK to be loaded; the others are on their way when they are cancelled, at one moment or other.
CANCELS = """
async def main():
    async def cancelled(delay):
        making = asyncio.ensure_future(backend.create(Spec()))
        await asyncio.sleep(delay)
        making.cancel()
        await asyncio.wait([making])
    await asyncio.gather(*(cancelled(delay) for delay in (0.0, 0.001, 0.05, 0.3, 0.6, 1.0, 1.3)))
asyncio.run(main())
print("done")
"""
# Their callers get no answer: the loop in which they wait does not run any more, and is not closed.
STOPS = """
loop = asyncio.new_event_loop()
makings = [loop.create_task(backend.create(Spec())) for _ in range(3)]
loop.run_until_complete(asyncio.wait(makings, return_when="FIRST_COMPLETED"))
print("done")
"""
# The environment is forgotten while one is made, and then the program ends.
FORGETS = """
async def main():
    async def use():
        async with Environment(backend="daytona").open():
            pass
    for delay in (0.0, 0.1, 0.5):
        task = asyncio.ensure_future(use())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
asyncio.run(main())
print("done")
"""
WAITS_FOR_AN_ANSWER = """
async def main():
    making = asyncio.ensure_future(backend.create(Spec()))
    await asyncio.to_thread(input)
    making.cancel()
    await asyncio.wait([making])
asyncio.run(main())
print("done")
"""


class Gate:
    """Stands between a client and the service; may keep the answers to makings to itself, or cut them off."""

    def __init__(self, server: ServedProcess) -> None:
        self._upstream = int(server.url.rpartition(":")[2].partition("/")[0])
        self._path = server.url.partition("://")[2].partition("/")[2]
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = False
        self.answered = threading.Event()
        self.url = ""

    @contextlib.contextmanager
    def open(self) -> Iterator["Gate"]:
        listening = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = listening.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/{self._path}"
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(listening), self._loop).result(60)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _end(self, listening: asyncio.Server) -> None:
        listening.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        kept = False

        async def up() -> None:
            nonlocal kept
            while data := await reader.read(65536):
                line = data.partition(b"\r\n")[0].split()
                if line[:1] == [b"POST"] and line[1].endswith((b"/sandbox", b"/fork")):
                    kept = True
                to_upstream.write(data)
            to_upstream.close()

        async def down() -> None:
            while data := await upstream.read(65536):
                if not kept:
                    writer.write(data)
                    continue
                self.answered.set()
                if self.cuts:
                    break
            writer.close()

        try:
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(up(), down())
        finally:
            writer.close()
            to_upstream.close()
            self._tasks.discard(task)


@pytest.fixture
def gate(server: ServedProcess) -> Iterator[Gate]:
    """A gate before the server."""
    with Gate(server).open() as opened:
        yield opened


@pytest.fixture
def living(daytona: Daytona) -> Callable[[], set[str]]:
    """The sandboxes that the server has."""
    return lambda: {box.id for box in daytona.list() if box.state not in ("destroyed", "destroying")}


def nothing_is_left(living: Callable[[], set[str]], before: set[str]) -> bool:
    return wait_until(lambda: living() <= before)


def begin(program: str, url: str, key: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + program],
        env={**os.environ, "DAYTONA_API_URL": url, "DAYTONA_API_KEY": key},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CANCELS, id="cancels"),
        pytest.param(STOPS, id="stops", marks=pytest.mark.check),
        pytest.param(FORGETS, id="forgets", marks=pytest.mark.check),
    ],
)
def test_program_that_ends_leaves_none(server: ServedProcess, living: Callable[[], set[str]], program: str) -> None:
    before = living()
    with begin(program, server.url, server.key) as running:
        told, errors = running.communicate(timeout=HANG_GUARD_SECONDS)
    assert told == "done\n", errors
    assert "Traceback" not in errors
    assert living() <= before  # at once: it was deleted before the program ended


def test_answer_that_never_comes_is_not_needed(
    server: ServedProcess, gate: Gate, living: Callable[[], set[str]]
) -> None:
    before = living()
    with begin(WAITS_FOR_AN_ANSWER, gate.url, server.key) as running:
        assert gate.answered.wait(HANG_GUARD_SECONDS)
        assert living() - before  # it is made, and its maker has not heard of it
        told, errors = running.communicate("go on\n", timeout=HANG_GUARD_SECONDS)
    assert told == "done\n", errors
    assert living() <= before


async def test_sandbox_whose_answer_was_lost_is_deleted(
    server: ServedProcess, gate: Gate, living: Callable[[], set[str]]
) -> None:
    before = living()
    gate.cuts = True
    backend = DaytonaBackend(api_key=server.key, api_url=gate.url)
    with pytest.raises(BackendUnavailableError):
        await backend.create(Spec())
    assert gate.answered.is_set()
    await backend.aclose()
    assert living() <= before


@pytest.mark.parametrize("form", ["create", "fork"])
async def test_closing_the_backend_ends_what_is_being_made(
    server: ServedProcess, gate: Gate, living: Callable[[], set[str]], form: str
) -> None:
    before = living()
    first = DaytonaBackend(api_key=server.key, api_url=server.url)
    source = await (await first.create(Spec())).detach()
    backend = DaytonaBackend(api_key=server.key, api_url=gate.url)
    work: Any = backend.create(Spec()) if form == "create" else backend.fork(source)
    making = asyncio.ensure_future(work)
    assert await asyncio.to_thread(gate.answered.wait, HANG_GUARD_SECONDS)
    assert len(living() - before) == 2
    await backend.aclose()
    assert living() - before == {source}
    with pytest.raises(BackendUnavailableError, match="closed"):
        await making
    await first.delete(source)
    await first.aclose()


async def test_cancelled_creation_that_then_fails_logs_no_traceback(
    server: ServedProcess, gate: Gate, living: Callable[[], set[str]]
) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    before = living()
    backend = DaytonaBackend(api_key=server.key, api_url=gate.url)
    making = asyncio.ensure_future(backend.create(Spec()))
    assert await asyncio.to_thread(gate.answered.wait, HANG_GUARD_SECONDS)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await backend.aclose()  # it is deleted, and its request given up
    await asyncio.sleep(0)
    gc.collect()
    assert unseen == []
    assert living() <= before


async def test_cancelled_snapshot_is_forgotten(server: ServedProcess, daytona: Daytona) -> None:
    backend = DaytonaBackend(api_key=server.key, api_url=server.url)
    box = await backend.create(Spec())
    before = {row.id for row in daytona.snapshot.list().items}
    for delay in (0.0, 0.002, 0.02, 0.1):
        taking = asyncio.ensure_future(box.snapshot())
        await asyncio.sleep(delay)
        if taking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await taking
        else:
            await backend.delete_snapshot(await taking)
    await backend.aclose()  # which waits for what is under way
    assert {row.id for row in daytona.snapshot.list().items} == before


async def test_create_with_a_token_that_another_process_has_made_is_not_deleted_when_cancelled(
    server: ServedProcess, gate: Gate, living: Callable[[], set[str]]
) -> None:
    first = DaytonaBackend(api_key=server.key, api_url=server.url)
    second = DaytonaBackend(api_key=server.key, api_url=server.url)
    made = await first.create(Spec(client_token="of two"))
    before = living()
    making = asyncio.ensure_future(second.create(Spec(client_token="of two")))
    for _ in range(3):
        await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await second.aclose()
    assert living() == before
    assert await made.is_alive()
    await first.aclose()
    assert nothing_is_left(living, before - {made.id})
