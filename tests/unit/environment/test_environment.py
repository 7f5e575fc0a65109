"""Environments on the fake: what is shared, what is apart, and that each sandbox is made once and ended once."""

import asyncio
import contextlib
import copy
import gc
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from corral import (
    Environment,
    EnvironmentFullError,
    Resources,
    SandboxClosedError,
    SandboxGoneError,
    Secret,
    Spec,
    SpecError,
    UnknownBackendError,
    Variable,
    VariableError,
)
from corral.backends.memory import MemoryBackend
from corral.client.sandbox import AsyncSandbox
from corral.environment.key import make_key
from corral.spec import make_spec
from support.slow import Slow, open_id, wait_until


async def use(env: Environment, *, closing: bool = False) -> None:
    async with env.open() as box:
        if closing:
            await box.aclose()
        await box.exec("true")


async def test_same_spec_has_the_same_sandbox_and_leaving_does_not_end_it(backend: Slow) -> None:
    async with Environment(backend=backend) as env:
        async with env.open() as box:
            await box.files.write("kept", b"1")
        async with env.open() as again:
            assert again is box
            assert await again.files.read("kept") == b"1"
        assert env.sandbox_ids == (box.id,)
    assert box.closed


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [
        ("resources", Resources(cpus=1), Resources(cpus=2)),
        ("env", {"A": "1"}, {"A": "2"}),
        ("workdir", "/a", "/b"),
        ("exec_timeout", 1, 2),
        ("labels", {"x": "1"}, {"y": "1"}),
        ("output_limit_bytes", 1000, 2000),
    ],
)
async def test_different_specs_have_different_sandboxes(backend: Slow, option: str, first: Any, second: Any) -> None:
    async with Environment(backend=backend, **{option: Variable()}) as env:
        one, other = await open_id(env, {option: first}), await open_id(env, {option: second})
        assert one != other
        assert await open_id(env, {option: first}) == one


async def test_a_variable_is_the_value_of_a_secret_of_each_user(backend: Slow) -> None:
    """Two users never share a sandbox that has the key of one of them."""
    key = Secret("KEY", Variable("token"), ["api.example.org"])
    async with Environment(backend=backend, network="api.example.org", secrets=[key]) as env:
        async with env.open({"token": "first-value"}) as first, env.open({"token": "second-value"}) as second:
            assert first is not second
            assert [box.spec.secrets[0].value for box in (first, second)] == ["first-value", "second-value"]
            assert "first-value" not in repr(first.spec)
        with pytest.raises(VariableError) as missing:
            env.resolve({})
        assert missing.value.names == ("token",)
        with pytest.raises(SpecError) as refused:
            env.resolve({"token": "canary\nX-Evil: 1"})
        assert "canary" not in str(refused.value)
    with pytest.raises(SpecError, match="has no value"):
        make_spec(network="api.example.org", secrets=[key])


async def test_order_of_a_mapping_does_not_matter(backend: Slow) -> None:
    async with Environment(backend=backend, env=Variable()) as env:
        assert await open_id(env, {"env": {"A": "1", "B": "2"}}) == await open_id(env, {"env": {"B": "2", "A": "1"}})


async def test_many_at_once_get_one_sandbox(backend: Slow) -> None:
    backend.go.clear()
    async with Environment(backend=backend) as env:
        opening = asyncio.gather(*(open_id(env) for _ in range(50)))
        await wait_until(lambda: backend.made)
        backend.go.set()
        assert len(set(await opening)) == 1
    assert backend.made == 1


async def test_cancelled_opener_disturbs_nobody(backend: Slow) -> None:
    backend.go.clear()
    async with Environment(backend=backend) as env:
        first = asyncio.ensure_future(open_id(env))
        second = asyncio.ensure_future(open_id(env))
        await wait_until(lambda: backend.made)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        backend.go.set()
        assert await second in env.sandbox_ids
    assert backend.made == 1


async def test_closing_waits_for_what_is_being_made_and_ends_it(backend: Slow) -> None:
    backend.go.clear()
    env = Environment(backend=backend)
    opening = asyncio.ensure_future(open_id(env))
    await wait_until(lambda: backend.made)
    opening.cancel()
    closing = asyncio.ensure_future(env.aclose())
    await asyncio.gather(opening, return_exceptions=True)
    assert not closing.done()
    backend.go.set()
    await closing
    assert backend.count_living() == 0


async def test_failed_create_is_told_to_all_and_tried_again(backend: Slow) -> None:
    backend.go.clear()
    backend.failures = [SpecError("no")]
    async with Environment(backend=backend) as env:
        opening = asyncio.gather(*(open_id(env) for _ in range(3)), return_exceptions=True)
        await wait_until(lambda: backend.made)
        backend.go.set()
        assert [type(error) for error in await opening] == [SpecError] * 3
        assert env.sandbox_ids == ()
        assert await open_id(env) in env.sandbox_ids
    assert backend.made == 2


async def test_prepare_runs_once_and_its_failure_ends_the_sandbox(backend: Slow) -> None:
    attempts = 0

    async def prepare(box: AsyncSandbox) -> None:
        nonlocal attempts
        attempts += 1
        await box.files.write("given", b"x")
        if attempts == 1:
            raise OSError("not this time")

    async with Environment(backend=backend, prepare=prepare) as env:
        with pytest.raises(OSError, match="not this time"):
            await open_id(env)
        assert backend.count_living() == 0
        async with env.open() as box:
            assert await box.files.read("given") == b"x"
        await open_id(env)
    assert attempts == 2


def test_two_event_loops_and_plain_code_share_a_sandbox(backend: Slow) -> None:
    async def use(env: Environment) -> str:
        async with env.open() as box:
            await box.exec("echo x >> log")
            return box.id

    with Environment(backend=backend) as env:
        ids = {asyncio.run(use(env)), asyncio.run(use(env))}
        with env.open_sync() as box:
            ids.add(box.id)
            assert box.files.read("log") == b"x\nx\n"
        del box
        gc.collect()
        assert ids == set(env.sandbox_ids), "letting go of the sync handle ended it"


def test_threads_share_a_sandbox(backend: Slow) -> None:
    found: list[str] = []
    with Environment(backend=backend) as env:
        threads = [threading.Thread(target=lambda: found.append(asyncio.run(open_id(env)))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert backend.made == 1


async def test_gone_sandbox_is_told_and_then_a_new_one_is_made(backend: Slow, caplog: pytest.LogCaptureFixture) -> None:
    async with Environment(backend=backend) as env:
        lost = await open_id(env)
        backend._boxes[lost].end()  # as a deadline or a crash would
        with pytest.raises(SandboxGoneError):
            await use(env)
        assert await open_id(env) != lost
    assert f"is gone ({lost})" in caplog.text


async def find_gone_in_a_group(box: AsyncSandbox) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(box.exec("true"))


async def find_gone_and_say_it_otherwise(box: AsyncSandbox) -> None:
    try:
        await box.exec("true")
    except SandboxGoneError as error:
        raise ValueError("of my own") from error


async def find_gone_and_go_on(box: AsyncSandbox) -> None:
    with contextlib.suppress(SandboxGoneError):
        await box.exec("true")


@pytest.mark.parametrize("find", [find_gone_in_a_group, find_gone_and_say_it_otherwise, find_gone_and_go_on])
async def test_gone_sandbox_is_noticed_however_its_user_takes_it(
    backend: Slow, find: Callable[[AsyncSandbox], Coroutine[Any, Any, None]]
) -> None:
    async with Environment(backend=backend) as env:
        with contextlib.suppress(ExceptionGroup, ValueError):
            async with env.open() as box:
                backend._boxes[box.id].end()
                await find(box)
        assert await open_id(env) != box.id


async def test_error_of_another_sandbox_leaves_this_one(backend: Slow) -> None:
    async with Environment(backend=backend) as env:
        kept = await open_id(env)
        with pytest.raises(SandboxGoneError):
            async with env.open():
                raise SandboxGoneError("another", sandbox_id="another")
        assert await open_id(env) == kept


async def test_sandbox_that_a_user_closed_is_replaced(backend: Slow) -> None:
    async with Environment(backend=backend) as env:
        async with env.open() as box:
            await box.aclose()
        assert await open_id(env) != box.id
        with pytest.raises(SandboxClosedError):
            await use(env, closing=True)


async def test_least_recently_used_makes_room(backend: Slow) -> None:
    async with Environment(backend=backend, max_sandboxes=2) as env:
        one = await open_id(env, key="1")
        two = await open_id(env, key="2")
        assert await open_id(env, key="1") == one
        three = await open_id(env, key="3")
        assert set(env.sandbox_ids) == {one, three}
        assert await open_id(env, key="2") != two


async def test_full_of_open_ones_is_an_error(backend: Slow) -> None:
    async with Environment(backend=backend, max_sandboxes=1) as env:
        async with env.open(key="1"):
            with pytest.raises(EnvironmentFullError) as caught:
                await open_id(env, key="2")
            assert caught.value.retryable
        await open_id(env, key="2")


async def test_idle_ones_are_ended_without_anybody_asking(backend: Slow, caplog: pytest.LogCaptureFixture) -> None:
    async with Environment(backend=backend, idle_seconds=0.05) as env:
        async with env.open(key="busy"):
            idle = await open_id(env, key="idle")
            await wait_until(lambda: idle not in env.sandbox_ids)
            await wait_until(lambda: backend.count_living() == 1)
            assert len(env.sandbox_ids) == 1, "one that is open is not idle"
        assert await open_id(env, key="idle") != idle
    assert "was idle for too long" in caplog.text


async def test_conversations_are_apart(backend: Slow) -> None:
    async with Environment(backend=backend, per_conversation=True) as env:
        one = await open_id(env, {"conversation_id": "1"})
        assert await open_id(env, {"conversation_id": "2"}) != one
        assert await open_id(env, {"conversation_id": "1"}) == one
        assert await open_id(env, key="mine") != one
        for nobody in ({}, {"conversation_id": ""}, {"conversation_id": None}):
            with pytest.raises(SpecError, match="per conversation"):
                await open_id(env, nobody)
            with pytest.raises(SpecError, match="per conversation"):
                await open_id(env, nobody, key="")


async def test_own_function_names_the_conversation(backend: Slow) -> None:
    async with Environment(backend=backend, per_conversation=lambda context: context["chat"]) as env:
        assert await open_id(env, {"chat": 1}) != await open_id(env, {"chat": 2})


async def test_discard_ends_one_conversation(backend: Slow) -> None:
    async with Environment(backend=backend) as env:
        kept, gone = await open_id(env, key="kept"), await open_id(env, key="gone")
        assert await env.discard(key="gone")
        assert not await env.discard(key="gone")
        assert env.sandbox_ids == (kept,)
        assert await open_id(env, key="gone") != gone


def test_copies_are_the_environment_itself(backend: Slow) -> None:
    with Environment(backend=backend) as env:
        assert copy.copy(env) is env
        assert copy.deepcopy({"tool": [env]})["tool"][0] is env


async def test_no_secret_in_key_repr_or_log(backend: Slow, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Environment(backend=backend, env={"TOKEN": Variable(default="hunter2")}, max_sandboxes=1) as env:
        await open_id(env, key="a")
        await open_id(env, key="b")
        assert "hunter2" not in repr(env)
        assert "hunter2" not in repr(env._cache._entries)
        assert "hunter2" not in "".join(env._cache._entries)
    assert "hunter2" not in caplog.text


def test_key_tells_kinds_and_places_apart() -> None:
    values: list[Any] = [
        1,
        "1",
        True,
        1.0,
        None,
        b"1",
        ["1"],
        {"1": 1},
        ("a", "bc"),
        ("ab", "c"),
        [["a"], []],
        [["a", []]],
    ]
    assert len({make_key(value)[0] for value in values}) == len(values)
    assert make_key(Spec(env={"A": "1"}))[0] == make_key(Spec(env={"A": "1"}))[0]
    thing = object()
    assert make_key(thing)[0] == make_key(thing)[0]
    assert make_key(thing)[1] == (thing,)
    assert make_key(thing)[0] != make_key(object())[0]


async def test_backend_is_made_from_options_once_for_each_set_of_them_and_closed() -> None:
    made: list[Any] = []

    class Own(MemoryBackend):
        def __init__(self, *, api_key: str) -> None:
            super().__init__()
            self.api_key, self.closed = api_key, False
            made.append(self)

        async def aclose(self) -> None:
            self.closed = True
            await super().aclose()

    async with Environment(backend=Own, options={"api_key": Variable("key")}) as env:
        one = await open_id(env, {"key": "1"})
        assert await open_id(env, {"key": "2"}) != one
        assert await open_id(env, {"key": "1"}) == one
        assert [own.api_key for own in made] == ["1", "2"]
        assert "memory" in (await env.capabilities({"key": "1"})).notes[0]
    assert all(own.closed and own.count_living() == 0 for own in made)


async def test_equal_backends_are_not_the_same() -> None:
    @dataclass
    class Named(Slow):
        service: str

        def __post_init__(self) -> None:
            super().__init__()

    one, other = Named("here"), Named("here")
    async with Environment(backend=Variable()) as env:
        assert await open_id(env, {"backend": one}) != await open_id(env, {"backend": other})
        assert await open_id(env, {"backend": one}) == await open_id(env, {"backend": one})
    assert one.count_living() == other.count_living() == 0


@pytest.mark.parametrize(
    "values", [{"backend": ["hunter2"]}, {"env": "hunter2"}, {"labels": {"a": ["hunter2"]}}, {"options": ["hunter2"]}]
)
def test_value_that_can_not_be_is_told_without_showing_it(values: dict[str, Any]) -> None:
    env = Environment(backend=Variable(default="memory"), **{name: Variable() for name in values if name != "backend"})
    with pytest.raises(SpecError) as caught:
        env.resolve(values)
    assert "hunter2" not in str(caught.value)


def test_spec_shows_no_environment() -> None:
    assert "hunter2" not in repr(Environment(env={"TOKEN": Variable()}).resolve({"TOKEN": "hunter2"}))


def test_backend_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(UnknownBackendError):
        Environment(backend="no-such")
    with pytest.raises(SpecError, match="options"):
        Environment(backend=MemoryBackend(), options={"a": 1})
    with pytest.raises(SpecError, match="memory"):
        Environment(backend="memory", options={"secret_option": "hunter2"}).resolve()


@pytest.mark.parametrize(
    "options",
    [
        {"max_sandboxes": 0},
        {"max_sandboxes": "5"},
        {"max_sandboxes": 1.5},
        {"idle_seconds": 0},
        {"idle_seconds": float("nan")},
    ],
)
def test_bounds_that_can_not_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Environment(backend=MemoryBackend(), **options)
