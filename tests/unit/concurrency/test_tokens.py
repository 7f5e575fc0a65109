"""One object for each token, also when callers are cancelled or fail."""

import asyncio
import threading
import weakref

import pytest

from corral.concurrency.tokens import TokenBook


class Box:
    """Lives until it is said not to."""

    def __init__(self) -> None:
        self.closed = False
        self.alive = True

    async def is_alive(self) -> bool:
        return self.alive


class Maker:
    """Makes boxes, when it is let."""

    def __init__(self) -> None:
        self.made: list[Box] = []
        self.begun = 0
        self.go_on = threading.Event()
        self.error: Exception | None = None

    async def __call__(self) -> Box:
        self.begun += 1
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        self.made.append(Box())
        return self.made[-1]


async def begun(maker: Maker, number: int) -> None:
    async with asyncio.timeout(60):
        while maker.begun < number:
            await asyncio.sleep(0)


async def test_all_who_ask_at_once_get_the_same() -> None:
    book, maker = TokenBook[Box](), Maker()
    waiting = [asyncio.ensure_future(book.make_once("t", maker)) for _ in range(5)]
    from_elsewhere = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(book.make_once("t", maker))))
    await begun(maker, 1)
    maker.go_on.set()
    found = await asyncio.gather(*waiting, from_elsewhere)
    assert set(found) == set(maker.made)
    assert len(maker.made) == 1
    assert await book.make_once("other", maker) is not found[0]
    assert await book.make_once(None, maker) is not await book.make_once(None, maker)


async def test_whoever_waits_for_a_cancelled_one_makes_it() -> None:
    book, maker = TokenBook[Box](), Maker()
    first = asyncio.ensure_future(book.make_once("t", maker))
    await begun(maker, 1)
    second = asyncio.ensure_future(book.make_once("t", maker))
    await asyncio.sleep(0)
    first.cancel()
    await begun(maker, 2)
    maker.go_on.set()
    assert await second is maker.made[0]
    assert first.cancelled()


async def test_cancelling_who_waits_disturbs_nobody() -> None:
    book, maker = TokenBook[Box](), Maker()
    first = asyncio.ensure_future(book.make_once("t", maker))
    await begun(maker, 1)
    second = asyncio.ensure_future(book.make_once("t", maker))
    third = asyncio.ensure_future(book.make_once("t", maker))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    maker.go_on.set()
    assert await first is await third


async def test_failure_is_told_to_all_and_tried_again_by_the_next() -> None:
    book, maker = TokenBook[Box](), Maker()
    waiting = [asyncio.ensure_future(book.make_once("t", maker)) for _ in range(3)]
    await begun(maker, 1)
    maker.error = ValueError("full")
    maker.go_on.set()
    assert await asyncio.gather(*waiting, return_exceptions=True) == [maker.error] * 3
    maker.error = None
    assert await book.make_once("t", maker) is maker.made[0]


@pytest.mark.parametrize("how", ["closed", "gone"])
async def test_one_that_has_ended_is_not_given_out(how: str) -> None:
    book, maker = TokenBook[Box](), Maker()
    maker.go_on.set()
    first = await book.make_once("t", maker)
    assert await book.make_once("t", maker) is first
    first.closed, first.alive = how == "closed", how == "closed"
    assert await book.make_once("t", maker) is not first


async def test_a_closed_one_is_not_held_by_its_token() -> None:
    book = TokenBook[Box]()

    async def make() -> Box:
        return Box()

    first, second = await book.make_once("first", make), await book.make_once("second", make)
    first.closed = True
    gone = weakref.ref(first)
    del first
    third = await book.make_once("third", make)
    assert gone() is None
    assert await book.make_once("second", make) is second
    assert await book.make_once("third", make) is third
