"""What a key may hold, and whose turn it is."""

import asyncio

import pytest

from corral.server import budget as module
from corral.server.budget import Budget
from corral.server.faults import Fault
from corral.server.turns import Turns


async def test_a_key_has_so_much_and_gets_it_back() -> None:
    budget = Budget(100)
    with budget.account("a") as first, budget.account("a") as second, budget.account("b") as other:
        await first.reserve(60)
        assert not second.take(50)
        assert second.take(40)
        assert other.take(100)
        second.give_back(40)
        assert budget.held("a") == 60
    assert budget.held("a") == budget.held("b") == 0
    assert not first.take(1), "a call that is over holds nothing more"


async def test_calls_of_a_key_wait_for_each_other_in_their_order() -> None:
    budget, order = Budget(100), []

    async def call(name: str, count: int) -> None:
        with budget.account("a") as account:
            await account.reserve(count)
            order.append(name)

    with budget.account("a") as account:
        await account.reserve(100)
        waiting = [asyncio.ensure_future(call(name, count)) for name, count in (("large", 80), ("small", 10))]
        given_up = asyncio.ensure_future(call("given up", 90))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*waiting)
    assert order == ["large", "small"]
    assert budget.held("a") == 0


async def test_a_call_that_waits_for_too_long_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    budget = Budget(100)
    with budget.account("a") as holder:
        await holder.reserve(1000)  # more than there is means all of it
        with budget.account("a") as account, pytest.raises(Fault) as refused:
            await account.reserve(1)
        assert refused.value.status == 429
        assert budget.held("a") == 100
    assert budget.held("a") == 0


async def test_keys_take_turns() -> None:
    turns, order = Turns(at_once=2), []

    async def begin(key: str) -> None:
        await turns.take(key)
        order.append(key)

    calls = [asyncio.ensure_future(begin("many")) for _ in range(50)]
    await asyncio.sleep(0)
    calls.append(asyncio.ensure_future(begin("one")))
    await asyncio.gather(*calls)
    assert order.index("one") <= 6
    assert len(order) == 51
