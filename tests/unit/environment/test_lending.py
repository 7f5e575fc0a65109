"""Backends that an environment makes for itself: few are kept, and each is closed after its last sandbox."""

import asyncio
import contextlib

import pytest

from corral import Environment, SandboxClosedError, Variable
from corral.backends.memory import MemoryBackend
from corral.environment.lending import MOST_IDLE
from support.slow import open_id, wait_until


async def test_backends_made_from_options_do_not_heap_up() -> None:
    """As many tenants as come by: their sandboxes make room for each other, and so do their clients."""
    made: list[str] = []
    closed: list[str] = []

    class Client(MemoryBackend):
        def __init__(self, *, api_key: str) -> None:
            super().__init__()
            self.api_key = api_key
            made.append(api_key)

        async def aclose(self) -> None:
            assert self.count_living() == 0, "a client was closed before its sandbox"
            closed.append(self.api_key)
            await super().aclose()

    async with Environment(backend=Client, options={"api_key": Variable("key")}, max_sandboxes=2) as env:
        for number in range(40):
            await open_id(env, {"key": str(number)})
        await wait_until(lambda: len(closed) == 40 - 2 - MOST_IDLE)
        assert closed == [str(number) for number in range(40 - 2 - MOST_IDLE)]
        for number in range(100, 140):
            env.resolve({"key": str(number)})  # nothing is made, so nothing is kept for it
        await open_id(env, {"key": "39"})
        assert "39" not in closed
    assert len(closed) == len(made)


async def test_environment_that_is_closed_while_others_open_it_ends_their_backends_too() -> None:
    closed: list[MemoryBackend] = []

    class Client(MemoryBackend):
        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    made: list[Client] = []

    def connect(key: str) -> Client:
        made.append(Client())
        return made[-1]

    env = Environment(backend=connect, options={"key": Variable("key")})

    async def use_and_close(number: int) -> None:
        with contextlib.suppress(SandboxClosedError):
            async with env.open({"key": str(number % 3)}) as box:
                await env.aclose()
                await box.exec("true")

    await asyncio.gather(*(use_and_close(number) for number in range(30)))
    await env.aclose()
    assert all(client.count_living() == 0 for client in made)
    await wait_until(lambda: {id(client) for client in closed} >= {id(client) for client in made})


async def test_backend_that_can_not_be_closed_keeps_no_other_from_it() -> None:
    closed: list[str] = []

    class Client(MemoryBackend):
        def __init__(self, *, api_key: str) -> None:
            super().__init__()
            self.api_key = api_key

        async def aclose(self) -> None:
            closed.append(self.api_key)
            await super().aclose()
            if self.api_key == "1":
                raise OSError("no answer")

    env = Environment(backend=Client, options={"api_key": Variable("key")})
    for number in range(3):
        await open_id(env, {"key": str(number)})
    with pytest.raises(OSError, match="no answer"):
        await env.aclose()
    assert sorted(closed) == ["0", "1", "2"]
    await env.aclose()
