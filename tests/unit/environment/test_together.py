"""However opens, cancellations, failures, losses and closes fall together: each sandbox is ended, and none is shared by
two keys."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

import pytest

from corral import CorralError, Environment, LeftBehindError, SandboxError, Spec
from corral.backends.memory import MemoryBackend
from corral.client.sandbox import AsyncSandbox
from corral.results import Event

THREADS = 3
USERS = 60
KEYS = 6


class Moody(MemoryBackend):
    """Takes its time, and fails now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)

    async def create(self, spec: Spec, *, on_event: Callable[[Event], None] | None = None) -> AsyncSandbox:
        await asyncio.sleep(self.chance.uniform(0, 0.005))
        if self.chance.random() < 0.1:
            raise SandboxError("not in the mood")
        return await super().create(spec, on_event=on_event)


async def use(env: Environment, backend: Moody, chance: random.Random, owners: dict[str, str]) -> None:
    await asyncio.sleep(chance.uniform(0, 0.05))
    key = str(chance.randrange(KEYS))
    with contextlib.suppress(CorralError):
        async with env.open(key=key) as box:
            assert owners.setdefault(box.id, key) == key, "a sandbox has two keys"
            await box.exec("echo hi")
            mood = chance.random()
            if mood < 0.1:
                if (found := backend._boxes.get(box.id)) is not None:
                    found.end()
                await box.exec("echo hi")
            elif mood < 0.15:
                await box.aclose()
            elif mood < 0.2:
                await env.discard(key=key)
            elif mood < 0.23:
                await env.aclose()
            await asyncio.sleep(chance.uniform(0, 0.005))


async def crowd(env: Environment, backend: Moody, chance: random.Random, owners: dict[str, str]) -> None:
    tasks = [asyncio.ensure_future(use(env, backend, chance, owners)) for _ in range(USERS)]
    for task in chance.sample(tasks, USERS // 4):
        await asyncio.sleep(chance.uniform(0, 0.004))
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_whatever_happens_at_once(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    backend, owners, faults = Moody(seed), {}, []  # type: ignore[var-annotated]  # what they hold is seen below
    env = Environment(backend=backend, max_sandboxes=4, idle_seconds=0.02)

    def run(number: int) -> None:
        try:
            asyncio.run(crowd(env, backend, random.Random(seed * 100 + number), owners))
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with contextlib.suppress(LeftBehindError):
        env.close()
    env.close()
    assert env.sandbox_ids == ()
    assert backend.count_living() == 0
    assert "Future exception was never retrieved" not in caplog.text
