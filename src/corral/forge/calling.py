"""Calling many functions, a limited number at once; and calling users' functions, async or not, with a timeout."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from corral.concurrency.waiting import in_time
from corral.errors import JudgeError, SpecError

T = TypeVar("T")
R = TypeVar("R")


async def do_all(items: Sequence[T], work: Callable[[T], Awaitable[R]], *, jobs: int) -> list[R]:
    """Results in the order of the items. The first error ends the others and is raised; so does a cancellation."""
    waiting = iter(enumerate(items))
    results: dict[int, R] = {}

    async def take_turns() -> None:
        # One iterator for all: a free task takes the next item, so no more tasks exist than run.
        for index, item in waiting:
            results[index] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(jobs, len(items))):
                group.create_task(take_turns())
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__  # the group says nothing more, and the cause must not be lost
    return [results[index] for index in range(len(items))]


async def call(function: Callable[..., Any], *values: object, timeout: float, who: str) -> Any:
    """Call a user's function: an async one here, any other in a thread, so that it does not block the event loop.

    Raises:
        JudgeError: timed out. A thread can't be stopped: it runs on, and its result is ignored.
        Exception: what it raises.
    """
    async with in_time(
        timeout, lambda seconds: JudgeError(f"{who} took more than {seconds:g} s", judge=who, hint="give it more time")
    ):
        if is_async(function):
            return await function(*values)
        found = await call_in_thread(function, *values, name="corral-judge")
        return await found if inspect.isawaitable(found) else found


async def ask_judge(
    function: Callable[..., Any], *values: object, timeout: float, who: str, candidate: str, about: str = ""
) -> Any:
    """As `call`, for a function that judges a candidate. Raises: JudgeError for anything that it raises."""
    try:
        return await call(function, *values, timeout=timeout, who=who)
    except JudgeError as error:
        error.candidate = error.candidate or candidate
        raise
    except Exception as error:
        why = f"{about}{type(error).__name__}: {str(error)[:500]}"
        raise JudgeError(why, candidate=candidate, hint="correct the function and resume the run") from error


async def call_in_thread(function: Callable[..., Any], *values: object, name: str) -> Any:
    """Call a function in a daemon thread: if it hangs, it does not keep the program from ending.

    Raises:
        Exception: what it raises. SystemExit and the like, which no future takes, become RuntimeError.
    """
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # a caller that is cancelled stops waiting, but can't cancel the thread
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function, *values))
        except BaseException as error:  # noqa: BLE001 - handed over
            fits = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if fits else RuntimeError(f"{type(error).__name__}: {error}"))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__


def describe_function(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's name and the hash of its source, if that is available. Values in its closure are not included."""
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{getattr(named, '__module__', '?')}.{named.__qualname__}"
    try:
        digest: str | None = hash_text(inspect.getsource(named))
    except (OSError, TypeError):
        digest = None
    return {"function": name, "sha256": digest}


def hash_text(text: str | bytes) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).hexdigest()


def check_callable(function: object, *, what: str) -> None:
    """Raises: SpecError if it can't be called."""
    if not callable(function):
        raise SpecError(f"{what}: {function!r} is not callable", hint="give a function")
