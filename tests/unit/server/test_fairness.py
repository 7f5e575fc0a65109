"""What a key may hold, and whose turn it is."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable

import pytest

from corral.server.fairness import OUTPUT_FACTOR, Budget, Meter, Turns
from corral.server.faults import Fault


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


async def test_a_call_that_waits_for_too_long_is_told_to_come_again() -> None:
    budget = Budget(100, patience=0.01)
    with budget.account("a") as holder:
        await holder.reserve(1000)  # more than there is means all of it
        with budget.account("a") as account, pytest.raises(Fault) as refused:
            await account.reserve(1)
        assert refused.value.status == 429
        assert budget.held("a") == 100
    assert budget.held("a") == 0


async def test_programs_wait_for_room_and_one_of_them_may_always_go_on() -> None:
    budget = Budget(100 * OUTPUT_FACTOR, patience=60)
    with contextlib.ExitStack() as opened:
        accounts = [opened.enter_context(budget.account("a")) for _ in range(3)]
        told: list[list[bool]] = [[], [], []]
        assert all(account.take_output(20) for account in accounts)
        for account, answers in zip(accounts, told, strict=True):
            assert not account.take_output(17), "the last quarter is for one of them"
            account.ask_for_output(17, answers.append)
        assert told == [[True], [], []], "the first goes on, the others wait"
        assert accounts[0].take_output(125 - 77)
        assert not accounts[0].take_output(1), "a quarter more than the limit, and no further"
        accounts[0].ask_for_output(20, told[0].append)
        assert told == [[True, False], [], []], "all the others wait for it, so that it need not wait for them"
        accounts[0].close()
        assert told == [[True, False], [True], [True]]
    assert budget.held("a") == 0


async def test_programs_that_wait_in_vain_are_told_so() -> None:
    budget, told = Budget(100 * OUTPUT_FACTOR, patience=0.01), asyncio.Queue[bool]()
    with budget.account("a") as sleeper, budget.account("a") as account, budget.account("a") as last:
        assert sleeper.take_output(75)
        sleeper.ask_for_output(50, told.put_nowait)
        account.ask_for_output(10, told.put_nowait)
        assert await told.get() is True
        assert await told.get() is False
        last.ask_for_output(10, told.put_nowait)
        last.close()
        assert await told.get() is False, "a call that is over does not wait"
        last.ask_for_output(10, told.put_nowait)
        assert await told.get() is False


async def test_cheap_calls_of_a_key_do_not_let_its_programs_wait_for_ever() -> None:
    budget, told = Budget(100 * OUTPUT_FACTOR, patience=0.01), asyncio.Queue[bool]()
    with budget.account("a") as sleeper, budget.account("a") as account:
        assert sleeper.take_output(75)
        sleeper.ask_for_output(50, told.put_nowait)
        assert await told.get() is True
        account.ask_for_output(10, told.put_nowait)
        async with asyncio.timeout(60):
            while told.empty():  # as a client that asks again and again how things are
                with budget.account("a"):
                    await asyncio.sleep(0)
        assert await told.get() is False


async def test_programs_wait_as_long_as_another_one_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, told, now = Budget(100 * OUTPUT_FACTOR, patience=10), list[str](), [0.0]
    looks: list[Callable[[], object]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr(loop, "call_later", lambda _, look, *given: looks.append(functools.partial(look, *given)))

    def pass_seconds(seconds: float) -> None:
        now[0] += seconds
        due, looks[:] = list(looks), []
        for look in due:
            look()

    with budget.account("a") as slow, budget.account("a") as one, budget.account("a") as two:
        assert slow.take_output(75)
        slow.ask_for_output(1, lambda _: None)
        one.ask_for_output(10, lambda granted: told.append(f"one {granted}"))
        await asyncio.sleep(0)
        for _ in range(3):
            pass_seconds(9)
            assert slow.take_output(1)
        two.ask_for_output(10, lambda granted: told.append(f"two {granted}"))
        pass_seconds(9)
        one.close()
        assert told == ["one False"]
        with budget.account("a") as three:
            three.ask_for_output(10, lambda granted: told.append(f"three {granted}"))
            pass_seconds(1)
            assert told == ["one False", "two False"], "the last one has not waited as long"
            assert len(looks) == 1
            pass_seconds(9)
            assert told == ["one False", "two False", "three False"]


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


async def test_what_takes_long_leaves_room_for_others_after_each_piece() -> None:
    turns, order, rounds = Turns(at_once=1000, seconds=0.001), list[str](), list[int]()

    def work(key: str, left: int) -> None:
        order.append(key)
        time.sleep(0.001)
        if left:
            turns.call(key, lambda: work(key, left - 1))

    turns.call("many", lambda: work("many", 10), at_once=True)
    assert order == ["many"], "at once, as long as no call waits"
    turns.call("one", lambda: work("one", 0), at_once=True)
    assert order == ["many"], "the time of this round is over"
    while len(order) < 12:
        rounds.append(len(order))
        await asyncio.sleep(0)
    assert order.index("one") <= 2
    assert len(rounds) >= 10, "the event loop had its turn after each piece"


async def test_a_meter_counts_what_is_beyond_the_free_part_and_gives_it_back() -> None:
    budget = Budget(100)
    with budget.account("a") as account:
        meter = Meter(account, free_bytes=10)
        assert meter.set(10)
        assert budget.held("a") == 0
        assert meter.set(60)
        assert budget.held("a") == 50
        assert not meter.set(200)
        assert budget.held("a") == 50, "what was refused is not counted"
        assert meter.set(0)
        assert budget.held("a") == 0
