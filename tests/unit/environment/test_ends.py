"""How environments end on the fake: all side by side, again, cancelled, forgotten, and at the exit."""

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from corral import (
    Environment,
    LeftBehindError,
    SandboxGoneError,
)
from corral.backends.memory import MemoryBackend
from corral.backends.memory.sandbox import MemorySandbox
from corral.environment.cache import Cache, end_all_now
from support.slow import Slow, open_id, wait_until


async def test_close_is_idempotent_and_may_be_followed_by_an_open(backend: Slow) -> None:
    env = Environment(backend=backend)
    first = await open_id(env)
    await asyncio.gather(env.aclose(), env.aclose())
    await env.aclose()
    assert backend.count_living() == 0
    assert await open_id(env) != first
    await env.aclose()


async def test_close_ends_all_side_by_side(backend: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = 0, 0

    async def release(self: MemorySandbox) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await wait_until(lambda: most == 5)
        at_once -= 1
        await original(self)

    original = MemorySandbox.release
    monkeypatch.setattr(MemorySandbox, "release", release)
    env = Environment(backend=backend)
    for number in range(5):
        await open_id(env, key=str(number))
    await env.aclose()
    assert most == 5


async def test_what_could_not_be_deleted_is_reported_and_tried_again(
    backend: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("the service is down")

    env = Environment(backend=backend)
    ids = {await open_id(env, key="1"), await open_id(env, key="2")}
    with monkeypatch.context() as patch:
        patch.setattr(MemorySandbox, "release", refuse)
        patch.setattr(Slow, "delete", refuse)
        for _ in range(2):
            with pytest.raises(LeftBehindError) as caught:
                await env.aclose()
            assert set(caught.value.failures) == ids
            assert all(sandbox_id in str(caught.value) for sandbox_id in ids)
            assert isinstance(caught.value.__cause__, OSError)
    await env.aclose()
    assert backend.count_living() == 0


async def test_cancelled_close_goes_on(backend: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    async def release(self: MemorySandbox) -> None:
        begun.set()
        await wait_until(go.is_set)
        await original(self)

    original = MemorySandbox.release
    monkeypatch.setattr(MemorySandbox, "release", release)
    env = Environment(backend=backend)
    await open_id(env)
    closing = asyncio.ensure_future(env.aclose())
    await wait_until(begun.is_set)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go.set()
    await wait_until(lambda: backend.count_living() == 0)


async def test_forgotten_environment_ends_what_it_made(backend: Slow) -> None:
    env = Environment(backend=backend)
    await open_id(env)
    assert backend.count_living() == 1
    del env
    gc.collect()
    await wait_until(lambda: backend.count_living() == 0)


async def test_detached_sandbox_is_let_go(backend: Slow) -> None:
    async with Environment(backend=backend) as env, env.open() as box:
        await box.detach(name="kept")
    assert [info.name for info in await backend.list()] == ["kept"]
    await backend.delete(box.id)


@pytest.mark.parametrize("how", ["aclose", "discard", "make room", "be gone", "be idle"])
async def test_exit_finds_every_sandbox_at_any_moment_of_its_end(
    backend: Slow, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the cache to its deletion there is no moment at which it is in neither list."""
    seen: list[bool] = []
    carry_out = Cache._carry_out

    def look_before(self: Cache) -> None:
        seen.append(len(self.list_living()) >= backend.count_living())
        carry_out(self)

    monkeypatch.setattr(Cache, "_carry_out", look_before)
    env = Environment(backend=backend, max_sandboxes=1, idle_seconds=0.01 if how == "be idle" else None)
    async with env.open() as box:
        pass
    if how == "make room":
        await open_id(env, key="other")
    elif how == "discard":
        assert await env.discard()
    elif how == "be gone":
        with pytest.raises(SandboxGoneError):
            async with env.open():
                raise SandboxGoneError("or so it seems", sandbox_id=box.id)
    elif how == "be idle":
        await wait_until(lambda: not env.sandbox_ids)
    await env.aclose()
    assert len(seen) > 1
    assert all(seen)


async def test_a_backend_with_end_now_is_called_for_each_sandbox_at_exit() -> None:
    ended: list[str] = []

    class Ends(MemoryBackend):
        def end_now(self, sandbox_id: str) -> None:
            ended.append(sandbox_id)
            if len(ended) == 1:
                raise OSError("the first one fails, and the others are ended nevertheless")

    async with Environment(backend=Ends()) as env:
        ids = {await open_id(env, key="1"), await open_id(env, key="2")}
        end_all_now()
        assert set(ended) == ids


async def test_a_backend_of_others_needs_no_end_now_and_no_class_of_ours() -> None:
    class Theirs:
        """Every method of the contract but `end_now`, and no base class."""

        name = "theirs"

        def __init__(self) -> None:
            self._ours = MemoryBackend()

        def __getattr__(self, name: str) -> object:
            if name == "end_now":
                raise AttributeError(name)
            return getattr(self._ours, name)

    async with Environment(backend=Theirs()) as env:  # type: ignore[arg-type] # that is the point
        await open_id(env)
        end_all_now()


def test_the_end_of_a_program_ends_what_its_environments_hold() -> None:
    program = """
from corral import Environment
from corral.backends.memory import MemoryBackend

class Ends(MemoryBackend):
    def end_now(self, sandbox_id):
        print("ended", sandbox_id)

env = Environment(backend=Ends())
with env.open_sync() as box:
    print("opened", box.id)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    opened, ended = ran.stdout.split("\n")[:2]
    assert ended == opened.replace("opened", "ended"), ran
