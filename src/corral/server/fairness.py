"""Fairness between keys: a rate, turns in the event loop, and a budget of memory for each.

A call reserves the memory that it is going to need: for a body before it is read, for a stream's buffers before it
starts. It waits a while for other calls of the same key, and then it is answered with 429. It reserves once, at its
start, so that it never waits while it holds memory that another call waits for.

The output of a program is counted as it is printed. When three quarters of the limit are used, the program is held back
until other calls of the key have ended. All of them could wait for each other, so the first in the queue gets the last
quarter and as much again beyond the limit: with the defaults that is enough for 10 MB, however much the others hold.
When no program has got memory for a while, they run on, and their output is cut in the middle.
Other things that grow (a frame that comes in pieces) never wait: their socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from corral.server.faults import too_many

_AT_ONCE = 8
"""How many calls begin before the event loop handles other events."""
_REMEMBERED = 4096
SLICE_BYTES, SLICE_ITEMS = 64 * 1024, 200
"""A larger answer is encoded in slices, with other work in between (see `answers`)."""
PATIENCE_SECONDS = 10.0
OUTPUT_FACTOR = 2
"""Output is held as it came, and then once more in the answer."""


class Rates:
    """A token bucket for each name. Only the names used last are remembered: a forgotten one has a full bucket."""

    def __init__(self, *, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token; returns 0, or, if the bucket was empty, the seconds until there is one."""
        now = self._clock()
        tokens, then = self._buckets.get(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._per_second)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_second
        self._buckets[name] = (tokens - 1 if tokens >= 1 else tokens, now)
        self._buckets.move_to_end(name)
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return wait


class Turns:
    """Work that waits to begin, by key; the keys take turns. Some of it begins at once, then the event loop goes on."""

    def __init__(self, *, at_once: int = _AT_ONCE, seconds: float = float("inf")) -> None:
        """At most `at_once` begin in a round of the event loop; fewer, if together they take longer than `seconds`."""
        self._at_once = at_once
        self._seconds = seconds
        self._begun = 0
        self._spent = 0.0
        self._round: asyncio.Handle | None = None
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()

    async def take(self, key_id: str) -> None:
        """Wait for a turn. Returns at once, unless many have just begun."""
        if not self._waiting and self._has_room:
            self._begun += 1
            self._begin_round()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(key_id, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def call(self, key_id: str, callback: Callable[[], None], *, at_once: bool = False) -> None:
        """Call back in turn; with `at_once` right now if there is room, for callers that may be called back now."""
        self._begin_round()
        if at_once and not self._waiting and self._has_room:
            self._do(callback)
        else:
            self._waiting.setdefault(key_id, deque()).append(callback)

    def _do(self, callback: Callable[[], None]) -> None:
        begin = time.perf_counter()
        self._begun += 1
        callback()
        self._spent += time.perf_counter() - begin

    def _begin_round(self) -> None:
        if self._round is None:
            self._round = asyncio.get_running_loop().call_soon(self._next)

    @property
    def _has_room(self) -> bool:
        return self._begun < self._at_once and self._spent < self._seconds

    def _next(self) -> None:
        self._begun, self._spent, self._round = 0, 0.0, None
        while self._waiting and self._has_room:
            key_id, queue = self._waiting.popitem(last=False)
            callback = queue.popleft()
            if queue:
                self._waiting[key_id] = queue  # behind the others
            self._do(callback)
        if self._waiting or self._begun:
            self._begin_round()


@dataclass(slots=True)
class _Question:
    """A program that waits for memory to keep what it has printed."""

    account: Account
    count: int
    answer: Callable[[bool], None]
    asked_at: float


@dataclass(slots=True)
class _Key:
    """What all calls of a key hold, and which of them wait. All but the lock itself is used under the lock."""

    limit_bytes: int
    taken: int = 0
    accounts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[tuple[Account, int, asyncio.Future[None]]] = field(default_factory=deque)
    questions: deque[_Question] = field(default_factory=deque)
    first: Account | None = None
    """The call that may go beyond the limit."""
    moved_at: float = 0.0
    """When a program last got memory for what it prints. What other calls give back does not count: a client that
    polls would keep its programs waiting for ever."""
    is_watched: bool = False
    """Whether a check for questions that have waited too long is scheduled."""

    def has_room(self, count: int, *, printed_by: Account | None = None) -> bool:
        limit, quarter = self.limit_bytes, self.limit_bytes // 4
        if printed_by is not None:
            limit += quarter if printed_by is self.first else -quarter
        return self.taken + count <= limit

    def add(self, account: Account, count: int) -> None:
        account.taken += count
        self.taken += count

    def answer_questions(self, now: float) -> list[tuple[_Question, bool]]:
        """Those that can be answered now, in their order."""
        if self.questions and self.first is None:
            self.first = self.questions[0].account
        granted = []
        for question in list(self.questions):
            if self.has_room(question.count, printed_by=question.account):
                self.add(question.account, question.count)
                self.questions.remove(question)
                granted.append(question)
        if granted:
            self.moved_at = now
        return [*((question, True) for question in granted), *((question, False) for question in self._refuse_first())]

    def _refuse_first(self) -> list[_Question]:
        """If all memory is held by calls that wait, the first stops waiting: it would wait for those behind it."""
        asking = {id(question.account): question.account.taken for question in self.questions}
        if self.first is None or id(self.first) not in asking or self.taken > sum(asking.values()):
            return []
        return self.drop_questions(self.first)

    def drop_questions(self, account: Account | None = None) -> list[_Question]:
        """Remove all questions, or those of one call; the caller answers them with no."""
        dropped = [question for question in self.questions if account is None or question.account is account]
        for question in dropped:
            self.questions.remove(question)
        return dropped


class Budget:
    """What all calls of each key hold.

    An account is opened and closed in the event loop; `take` and what an `Allowance` has are called from any thread.
    """

    def __init__(self, limit_bytes: int, *, patience: float = PATIENCE_SECONDS) -> None:
        self.limit_bytes = limit_bytes
        self._patience = patience
        self._keys: dict[str, _Key] = {}

    @contextlib.contextmanager
    def account(self, key_id: str) -> Iterator[Account]:
        """For one call; at its end all that it took is given back."""
        key = self._keys.setdefault(key_id, _Key(self.limit_bytes))
        key.accounts += 1
        account = Account(key, patience=self._patience)
        try:
            yield account
        finally:
            account.close()
            key.accounts -= 1
            if not key.accounts:
                del self._keys[key_id]

    def held(self, key_id: str) -> int:
        """What a key holds now."""
        key = self._keys.get(key_id)
        return key.taken if key is not None else 0


class Account:
    """What one call holds."""

    def __init__(self, key: _Key, *, patience: float) -> None:
        self._key = key
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.taken = 0
        """In bytes."""

    def take(self, count: int) -> bool:
        """Take `count` bytes; False if the key has no more. May be called from any thread; never waits."""
        return self._take(count, output=False)

    def _take(self, count: int, *, output: bool) -> bool:
        with self._key.lock:
            if self._closed or not self._key.has_room(count, printed_by=self if output else None):
                return False
            self._key.add(self, count)
            if output:
                self._key.moved_at = self._loop.time()
            return True

    def give_back(self, count: int) -> None:
        """Give back `count` bytes. Called in the event loop."""
        with self._key.lock:
            if not self._closed:
                self._key.add(self, -count)
        self._wake()

    async def reserve(self, count: int) -> None:
        """Take `count` bytes, and wait for them if necessary: first come, first served, among the calls of a key.

        Raises:
            Fault: 429, the key's calls hold too much, and have not given any back for a while.
        """
        if count == 0:
            return
        count = min(count, self._key.limit_bytes)
        if not self._key.waiting and self.take(count):
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        entry = (self, count, turn)
        self._key.waiting.append(entry)
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except TimeoutError:
            raise too_many("the concurrent requests of this API key use too much memory", 1.0) from None
        finally:
            if not turn.done() or turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._key.waiting.remove(entry)
                self._wake()

    def close(self) -> None:
        """Give all back. Called in the event loop."""
        with self._key.lock:
            if self._closed:
                return
            self._key.add(self, -self.taken)
            self._closed = True
            dropped = self._key.drop_questions(self)
            if self._key.first is self:
                self._key.first = None
        for question in dropped:
            question.answer(False)
        self._wake()

    def _wake(self) -> None:
        """Wake calls that wait and now have room, in order; programs first, since they hold memory already."""
        key = self._key
        self._answer()
        with key.lock:
            while key.waiting:
                account, count, turn = key.waiting[0]
                if not turn.done():
                    if not key.has_room(count):
                        return
                    key.add(account, count)
                    turn.set_result(None)
                key.waiting.popleft()

    # The account as an `Allowance`: what a program prints.

    def take_output(self, count: int) -> bool:
        """Take memory for output; part of `Allowance`."""
        return self._take(count * OUTPUT_FACTOR, output=True)

    def ask_for_output(self, count: int, answer: Callable[[bool], None]) -> None:
        """Call back when there is memory for output, or with False; part of `Allowance`."""
        with self._key.lock:
            closed, is_watched = self._closed, self._key.is_watched
            if not closed:
                question = _Question(self, count * OUTPUT_FACTOR, answer, asked_at=self._loop.time())
                self._key.questions.append(question)
                self._key.is_watched = True
        if closed:
            answer(False)
            return
        self._answer()
        if not is_watched:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the server with it
                self._loop.call_soon_threadsafe(self._look)

    def _answer(self) -> None:
        """Answer the questions that can be answered: without the lock, since an answer may lead to a question."""
        with self._key.lock:
            answers = self._key.answer_questions(self._loop.time())
        for question, granted in answers:
            question.answer(granted)

    def _look(self) -> None:
        """If no program got memory for a while, they wait for one that sleeps: answer them with no."""
        key, now = self._key, self._loop.time()
        with key.lock:
            ends = [max(question.asked_at, key.moved_at) + self._patience for question in key.questions]
            stuck = [question for question, end in zip(key.questions, ends, strict=True) if end <= now]
            for question in stuck:
                key.questions.remove(question)
            later = [end for end in ends if end > now]
            key.is_watched = bool(later)
        for question in stuck:
            question.answer(False)
        if later:
            self._loop.call_later(min(later) - now, self._look)


class OutputAllowance:
    """An account as an `Allowance` for what programs print."""

    def __init__(self, account: Account) -> None:
        self.take = account.take_output
        self.ask = account.ask_for_output


class Meter:
    """Counts for a key what one thing holds, as it grows and shrinks; the first `free_bytes` are not counted."""

    def __init__(self, account: Account, *, free_bytes: int = 0) -> None:
        self._account = account
        self._free_bytes = free_bytes
        self._charged = 0

    def set(self, held: int) -> bool:
        """How many bytes it holds now; False if the key has no more memory."""
        more = max(0, held - self._free_bytes) - self._charged
        if more > 0 and not self._account.take(more):
            return False
        if more < 0:
            self._account.give_back(-more)
        self._charged += more
        return True


def is_large(value: object) -> bool:
    """Whether encoding a value as a whole would make others wait. Looks at a few hundred of its parts at most."""
    stack, left, looked = [value], SLICE_BYTES, 0
    while stack:
        item = stack.pop()
        looked += 1
        if isinstance(item, str | bytes):
            left -= len(item)
        elif isinstance(item, msgspec.Struct):
            stack.extend(getattr(item, name) for name in item.__struct_fields__)
        elif isinstance(item, dict | list | tuple):
            if len(item) > SLICE_ITEMS:
                return True
            stack.extend(item.values() if isinstance(item, dict) else item)
        if left < 0 or looked > SLICE_ITEMS:
            return True
    return False
