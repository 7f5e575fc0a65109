"""The contest: every contestant does every task in turn, many times, and the median counts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral_bench.measuring import Tell, Work, in_thread, take_turns, time_work
from corral_bench.peer import BLOB_BYTES, JS_SNIPPET, SMALL_WRITES, SMALL_WRITES_BYTES, SNIPPET, Peer, closing


@dataclass(frozen=True, slots=True)
class Row:
    """One task: contestant → median seconds."""

    task: str
    medians: dict[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        """Contestant → how many times the plain subprocess."""
        plain = self.medians.get("plain")
        return {name: median / plain for name, median in self.medians.items()} if plain else {}


async def hold_contest(peers: list[Peer], *, runs: int, tell: Tell) -> list[Row]:
    """A row for each task. Raises: as opening a sandbox does."""
    async with AsyncSandbox() as box:
        tasks = {task: {"corral": work} for task, work in (await _our_tasks(box)).items()}
        for peer in peers:
            for task in tasks.keys() & peer.tasks.keys():
                tasks[task][peer.name] = in_thread(peer.tasks[task])
        timed = {task: {name: partial(time_work, works[name]) for name in works} for task, works in tasks.items()}
        with closing(peers):
            medians = await take_turns(timed, runs=runs, tell=tell)
    return [Row(task, found) for task, found in medians.items()]


async def _our_tasks(box: AsyncSandbox) -> dict[str, Work]:
    async def open_and_close() -> None:
        async with AsyncSandbox():
            pass

    async def open_true_close() -> None:
        async with AsyncSandbox() as fresh:
            await fresh.exec(["true"], check=True)

    blob = os.urandom(BLOB_BYTES)

    async def there_and_back() -> None:
        await box.files.write("blob", blob)
        if await box.files.read("blob") != blob:
            raise CorralError("8 MB were not read back as written", op="bench")

    async def print_small_pieces() -> None:
        result = await box.exec(["python3", "-c", SMALL_WRITES], check=True)
        _expect(result.stdout_total_bytes, SMALL_WRITES_BYTES)

    async def hear_small_pieces() -> None:
        process = await box.start(["python3", "-c", SMALL_WRITES])
        _expect(sum([len(chunk.data) async for chunk in process.output()]), SMALL_WRITES_BYTES)

    tasks: dict[str, Work] = {
        "open, close": open_and_close,
        "open, true, close": open_true_close,
        "exec true": lambda: box.exec(["true"], check=True),
        "Python snippet": lambda: box.run_code(SNIPPET, check=True),
    }
    try:
        await box.run_code(JS_SNIPPET, "javascript", check=True)
        tasks["JavaScript snippet"] = lambda: box.run_code(JS_SNIPPET, "javascript", check=True)
    except CorralError:
        pass  # nothing runs JavaScript here
    tasks["8 MB there and back"] = there_and_back
    tasks["4 MB in small writes"] = print_small_pieces
    tasks["4 MB in small writes, heard"] = hear_small_pieces
    return tasks


def _expect(heard: int, printed: int) -> None:
    if heard != printed:
        raise CorralError(f"of {printed} bytes of output {heard} were read", op="bench")
