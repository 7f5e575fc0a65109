"""SessionManager: its recorded behaviour, and what was weak in it."""

import asyncio
import concurrent.futures
import gc
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from corral import BackendError, EnvironmentFullError, ExitError, Sandbox, SpecError
from corral.adapters.pydantic_ai import (
    BUILTIN_RUNTIMES,
    AsyncCorralSandbox,
    CorralSandbox,
    RuntimeConfig,
    SessionManager,
    get_runtime,
)
from corral.spec import Spec

pytestmark = pytest.mark.needs_userns


class Fake:
    """A user's own sandbox class: only the methods that a manager calls, all of them blocking."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.alive = True
        self.last_activity = 0.0
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.stop_fails = 0

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    def start(self) -> None:
        self._note("start")

    def is_alive(self) -> bool:
        self._note("is_alive")
        return self.alive

    def stop(self) -> None:
        self._note("stop")
        if self.stop_fails:
            self.stop_fails -= 1
            raise BackendError("out of order")


async def test_a_session_has_one_sandbox_until_it_is_released() -> None:
    async with SessionManager() as manager:
        first = await manager.get_or_create("alice")
        assert isinstance(first, CorralSandbox)
        assert first.execute("echo hi > a.txt").exit_code == 0
        assert await manager.get_or_create("alice") is first
        other = await manager.get_or_create("bob")
        assert not other.exists("a.txt")
        assert (len(manager), manager.session_count, "alice" in manager, "carol" in manager) == (2, 2, True, False)
        assert manager.sessions == {"alice": first, "bob": other}
        assert await manager.release("alice") is True
        assert await manager.release("alice") is False
        assert not first.is_alive()
        assert manager.sessions == {"bob": other}
    assert len(manager) == 0
    assert not other.is_alive()


async def test_the_known_factory_gets_the_id_and_is_started() -> None:
    manager = SessionManager(Fake)
    sandbox = await manager.get_or_create("alice", runtime="python-minimal")
    assert (sandbox.session_id, sandbox.calls) == ("alice", ["start"])
    assert await manager.get_or_create("alice") is sandbox
    assert sandbox.calls == ["start", "is_alive"]
    assert await manager.shutdown() == 1
    assert sandbox.calls[-1] == "stop"


async def test_a_sandbox_that_died_is_replaced_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    manager = SessionManager(Fake)
    first = await manager.get_or_create("alice")
    first.alive = False
    with caplog.at_level(logging.WARNING):
        second = await manager.get_or_create("alice")
    assert second is not first
    assert "'alice'" in caplog.text
    assert manager.sessions == {"alice": second}


async def test_weak_point_13_nothing_blocks_the_event_loop() -> None:
    manager = SessionManager(Fake)
    sandbox = await manager.get_or_create("alice")
    await manager.get_or_create("alice")
    await manager.shutdown()
    assert threading.get_ident() not in sandbox.threads


async def test_weak_point_13_whoever_waits_waits_for_the_same_sandbox() -> None:
    made: list[str] = []

    async def make(session_id: str) -> Fake:
        made.append(session_id)
        await asyncio.sleep(0)
        return Fake(session_id)

    manager = SessionManager(make)
    found = await asyncio.gather(*(manager.get_or_create("alice") for _ in range(20)))
    assert made == ["alice"]
    assert len({id(sandbox) for sandbox in found}) == 1
    mixed = await asyncio.gather(
        *(manager.release("alice") if number % 3 else manager.get_or_create("alice") for number in range(30))
    )
    stopped = [sandbox for sandbox in mixed if isinstance(sandbox, Fake)]
    await manager.shutdown()
    assert all(sandbox.calls.count("stop") == 1 for sandbox in [*found, *stopped])
    assert len(manager) == 0


def test_it_is_used_from_several_event_loops() -> None:
    manager = SessionManager(Fake)

    async def ask(name: str) -> Any:
        return await manager.get_or_create(name)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asyncio.run(ask("alice")), range(8)))
    assert len({id(sandbox) for sandbox in found}) == 1
    assert asyncio.run(manager.shutdown()) == 1


async def test_whoever_is_cancelled_while_waiting_leaves_no_sandbox_that_nobody_knows() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make(session_id: str) -> Fake:
        begun.set()
        assert go_on.wait(60)
        return Fake(session_id)

    manager = SessionManager(make)
    task = asyncio.create_task(manager.get_or_create("alice"))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    sandbox = await manager.get_or_create("alice")
    assert sandbox.calls.count("start") == 1
    assert await manager.shutdown() == 1


async def test_idle_ones_are_ended_and_used_ones_are_not() -> None:
    manager = SessionManager(Fake, default_idle_timeout=1000, in_use=lambda session_id: session_id == "busy")
    for name in ("idle", "busy", "fresh"):
        await manager.get_or_create(name)
    assert await manager.cleanup_idle() == 0
    fresh = manager.sessions["fresh"]
    fresh.last_activity = 1e18  # far in the future
    assert await manager.cleanup_idle(max_idle=-1) == 1
    assert set(manager.sessions) == {"busy", "fresh"}
    assert await manager.shutdown() == 2


async def test_the_cleanup_loop_ends_idle_ones_until_it_is_stopped() -> None:
    manager = SessionManager(Fake, default_idle_timeout=-1)
    await manager.get_or_create("alice")
    manager.start_cleanup_loop(interval=0.01)
    manager.start_cleanup_loop(interval=0.01)  # there is one already
    while len(manager):
        await asyncio.sleep(0.01)
    manager.stop_cleanup_loop()
    manager.stop_cleanup_loop()
    await manager.shutdown()


async def test_a_forgotten_manager_is_not_kept_by_its_cleanup_loop() -> None:
    manager = SessionManager(Fake)
    manager.start_cleanup_loop(interval=0.01)
    cleaning = manager._cleaning
    gone = weakref.ref(manager)
    del manager
    assert cleaning is not None
    while gone() is not None:
        gc.collect()
        await asyncio.sleep(0.01)
    while not cleaning.done():
        await asyncio.sleep(0.01)


async def test_an_agents_work_counts_as_use() -> None:
    async with SessionManager() as manager:
        sandbox = await manager.get_or_create("alice")
        manager._given_out["alice"] = 0.0
        sandbox.async_sandbox._used[0] = 0.0
        await sandbox.async_sandbox.raising().execute("true")
        assert await manager.cleanup_idle(3600) == 0


async def test_no_more_than_allowed_the_least_recently_used_goes() -> None:
    manager = SessionManager(Fake, max_sessions=2)
    await manager.get_or_create("a")
    await manager.get_or_create("b")
    await manager.get_or_create("a")
    await manager.get_or_create("c")
    assert set(manager.sessions) == {"a", "c"}
    at_once = await asyncio.gather(
        *(manager.get_or_create(str(number)) for number in range(10)), return_exceptions=True
    )
    # One that is being made is in use.
    assert all(isinstance(found, Fake | EnvironmentFullError) for found in at_once)
    assert len(manager) == 2
    await manager.shutdown()
    full = SessionManager(Fake, max_sessions=1, in_use=lambda _: True)
    await full.get_or_create("a")
    with pytest.raises(EnvironmentFullError, match="all 1 sessions are in use"):
        await full.get_or_create("b")
    await full.shutdown()
    with pytest.raises(ValueError, match="must be at least 1"):
        SessionManager(max_sessions=0)


async def test_what_can_not_be_ended_is_told_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    manager = SessionManager(Fake)
    sandbox = await manager.get_or_create("alice")
    await manager.get_or_create("bob")
    sandbox.stop_fails = 2
    with pytest.raises(BackendError, match="out of order"):
        await manager.release("alice")
    with caplog.at_level(logging.WARNING):
        assert await manager.shutdown() == 1
    assert "'alice' could not be stopped: out of order" in caplog.text
    assert "alice" in manager
    assert await manager.shutdown() == 1


async def test_a_factory_that_fails_leaves_nothing_and_is_asked_again() -> None:
    attempts: list[str] = []

    def make(session_id: str) -> Fake:
        attempts.append(session_id)
        if len(attempts) == 1:
            raise BackendError("not now")
        return Fake(session_id)

    manager = SessionManager(make, max_sessions=1)
    with pytest.raises(BackendError, match="not now"):
        await manager.get_or_create("alice")
    assert len(manager) == 0
    assert (await manager.get_or_create("alice")).session_id == "alice"
    await manager.shutdown()


async def test_on_release_sees_the_living_sandbox(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, bool]] = []

    async def look(session_id: str, sandbox: Fake) -> None:
        seen.append((session_id, "stop" not in sandbox.calls))
        raise ValueError("of no use")

    manager = SessionManager(Fake, on_release=look)
    sandbox = await manager.get_or_create("alice")
    assert await manager.release("alice")
    assert seen == [("alice", True)]
    assert sandbox.calls[-1] == "stop"
    assert "of no use" in caplog.text


async def test_async_sandboxes_and_the_known_factory_by_id() -> None:
    name = f"user {threading.get_ident()}"
    async with SessionManager(lambda session_id: AsyncCorralSandbox(sandbox_id=session_id)) as manager:
        sandbox = await manager.get_or_create(name)
        await sandbox.write("a.txt", "kept")
        # Another process that is asked for the same session finds the same sandbox.
        other = SessionManager(lambda session_id: CorralSandbox(sandbox_id=session_id))
        again = await other.get_or_create(name)
        assert await again.async_sandbox.read_bytes("a.txt") == b"kept"
        again.close()
    assert not await sandbox.is_alive()


@pytest.mark.parametrize("session_id", ["alice", "../../escape", "/etc", "with space", "..", "a\nb"])
async def test_files_of_a_session_are_kept_on_the_host(tmp_path: Path, session_id: str) -> None:
    root = tmp_path / "root"
    async with SessionManager(workspace_root=root) as manager:
        first = await manager.get_or_create(session_id)
        first.write("a.txt", "one")
        first.write("b.txt", "two")
        await manager.release(session_id)
        second = await manager.get_or_create(session_id)
        assert second.read_bytes("a.txt") == b"one"
        second.execute("rm b.txt; ln -s /etc/passwd out")
    async with SessionManager(workspace_root=root) as manager:
        third = await manager.get_or_create(session_id)
        assert third.exists("a.txt")
        assert not third.exists("b.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    (folder,) = root.iterdir()
    assert [path.name for path in folder.iterdir()] == ["workspace"]


async def test_one_session_can_not_name_anothers_files() -> None:
    from corral.adapters.pydantic_ai.opening import make_name

    victim = make_name("conversation 7")
    assert victim.startswith("s-")
    assert make_name(victim) != victim
    assert make_name("plain-name") == "plain-name"


async def test_a_sandbox_that_is_gone_is_released_all_the_same(tmp_path: Path) -> None:
    async with SessionManager(workspace_root=tmp_path) as manager:
        sandbox = await manager.get_or_create("alice")
        Sandbox.connect(await sandbox.async_sandbox.box.detach()).kill()
        assert await manager.release("alice")


async def test_runtimes() -> None:
    assert list(BUILTIN_RUNTIMES) == [
        "python-minimal",
        "python-datascience",
        "python-web",
        "node-minimal",
        "node-react",
    ]
    with pytest.raises(KeyError, match=r"Unknown runtime 'ruby'\. Available: python-minimal, "):
        get_runtime("ruby")
    assert get_runtime("python-datascience").make_spec().packages[:2] == ("numpy", "pandas")
    built = get_runtime("node-react").make_spec().image
    assert "npm install -g typescript" in built.dockerfile  # type: ignore[union-attr]
    evil = RuntimeConfig(name="x", base_image="debian:12", packages=["a; rm -rf /"], package_manager="npm")
    assert "'a; rm -rf /'" in evil.make_spec().image.dockerfile  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="no base image to install them on"):
        RuntimeConfig(name="x", packages=["jq"], package_manager="apt").make_spec()
    with pytest.raises(KeyError, match="Unknown runtime"):
        await SessionManager().get_or_create("alice", "ruby")


async def test_a_runtime_shapes_the_sandbox() -> None:
    runtime = RuntimeConfig(name="mine", env_vars={"MODE": "test"}, setup_commands=["echo ready > state"])
    async with SessionManager(default_runtime=runtime) as manager:
        sandbox = await manager.get_or_create("alice")
        assert sandbox.execute("pwd; echo $MODE; cat state").output == "/workspace\ntest\nready\n"
        spec = await manager.get_or_create("bob", runtime=Spec(env={"MODE": "other"}))
        assert spec.execute("echo $MODE").output == "other\n"
        broken = RuntimeConfig(name="broken", setup_commands=["exit 3"])
        with pytest.raises(ExitError):
            await manager.get_or_create("carol", runtime=broken)
        assert "carol" not in manager


async def test_an_id_must_be_one() -> None:
    for wrong in ("", None, 7):
        with pytest.raises(ValueError, match="not a non-empty string"):
            await SessionManager(Fake).get_or_create(wrong)  # type: ignore[arg-type]
