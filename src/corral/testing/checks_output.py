"""Output: both streams, their order, and never more than was allowed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from corral.results import OutputChunk
from corral.testing.check import Context, check, equal, true

MUCH_BYTES = 300_000_000
OWN_LIMIT_BYTES = 50 << 20


@check(promise="exec", title="stdout and stderr are apart, and output has both in the order of writing")
async def streams_are_apart_and_in_order(context: Context) -> None:
    box = await context.open()
    command = "; ".join(f"echo {n}{' >&2' if n % 3 else ''}" for n in range(40))
    for _ in range(3):
        result = await box.exec(command)
        equal(result.stdout, "".join(f"{n}\n" for n in range(40) if n % 3 == 0))
        equal(result.stderr, "".join(f"{n}\n" for n in range(40) if n % 3))
        equal(result.output, "".join(f"{n}\n" for n in range(40)))


@check(promise="2", title="Output beyond the limit is cut in the middle, and said, with byte counts")
async def long_output_is_cut_and_said(context: Context) -> None:
    box = await context.open()
    content = b"".join(b"%09d\n" % number for number in range(10_000))
    await box.files.write("long.txt", content)
    result = await box.exec(["cat", "long.txt"], output_limit_bytes=2000)
    equal((result.truncated, result.exit_code, result.reason), (True, 0, "exited"))
    equal((result.stdout_total_bytes, result.stderr_total_bytes), (len(content), 0))
    true(len(result.stdout_bytes) < 2300, f"{len(result.stdout_bytes)} bytes were kept of a limit of 2000")
    true(result.stdout.startswith("000000000\n"), "the beginning is kept")
    true(result.stdout.endswith("000009999\n"), "the end is kept")
    marker = next((line for line in result.stdout.splitlines() if "bytes" in line), "")
    words = [word for word in marker.split() if word.isdigit()]
    left = len(content) - (len(result.stdout_bytes) - len(f"\n{marker}\n"))
    equal(words, [str(left)], f"the line {marker!r} says how much is missing")


@check(promise="2", title="Output up to the limit is whole; the spec's limit holds where a call names none")
async def output_at_the_limit_is_whole(context: Context) -> None:
    box = await context.open(output_limit_bytes=1000)
    await box.files.write("exact.txt", b"x" * 1000)
    result = await box.exec(["cat", "exact.txt"])
    equal((result.truncated, len(result.stdout_bytes)), (False, 1000), "1000 bytes at a limit of 1000")
    await box.files.write("more.txt", b"x" * 1001)
    equal((await box.exec(["cat", "more.txt"])).truncated, True, "1001 bytes at a limit of 1000")
    equal((await box.exec(["cat", "more.txt"], output_limit_bytes=5000)).truncated, False)


@check(promise="exec", title="Output that is not UTF-8 is there as bytes, shown with U+FFFD, and counted")
async def bytes_that_are_not_text_are_kept(context: Context) -> None:
    box = await context.open()
    await box.files.write("bytes.bin", bytes(range(256)))
    result = await box.exec(["cat", "bytes.bin"])
    equal(result.stdout_bytes, bytes(range(256)))
    equal(result.output_bytes, bytes(range(256)))
    true("\ufffd" in result.stdout and result.stdout.startswith("\0\x01"), "undecodable bytes show as U+FFFD")
    equal(result.replaced_bytes, 128)


@check(promise="4", title="300 MB of output leave our own memory flat", needs=frozenset({"shell", "processes"}))
async def endless_output_is_bounded(context: Context) -> None:
    box = await context.open()
    before = start_peak()
    result = await box.exec(f"head -c {MUCH_BYTES} /dev/zero; echo end")
    equal((result.truncated, result.stdout_total_bytes), (True, MUCH_BYTES + 4))
    true(result.stdout.endswith("end\n"), "the end is kept")
    grown = read_peak() - before
    true(grown < OWN_LIMIT_BYTES, f"our own memory grew by {grown >> 20} MiB")


@check(promise="4", title="A listener gets every byte of much output, a slow one too, and nothing piles up",
       needs=frozenset({"shell", "processes"}))  # fmt: skip
async def listener_gets_every_byte(context: Context) -> None:
    box = await context.open()
    before = start_peak()
    counted = 0

    def count(chunk: OutputChunk) -> None:
        nonlocal counted
        counted += len(chunk.data)

    for _ in range(3):
        counted = 0
        result = await box.exec("head -c 40000000 /dev/zero", on_output=count)
        equal((counted, result.stdout_total_bytes), (40_000_000, 40_000_000))

    async def dawdle(chunk: OutputChunk) -> None:
        if not counted >> 18 & 1:  # in turns, so that it falls behind and catches up again
            await asyncio.sleep(0.0005)
        count(chunk)

    counted = 0
    await box.exec("head -c 20000000 /dev/zero", on_output=dawdle)
    equal(counted, 20_000_000)
    grown = read_peak() - before
    true(grown < OWN_LIMIT_BYTES, f"our own memory grew by {grown >> 20} MiB")


@check(
    promise="3", title="What was printed right before the end is never lost", needs=frozenset({"shell", "processes"})
)
async def last_words_are_not_lost(context: Context) -> None:
    box = await context.open()
    for size in (1, 4096, 70_000, 1_000_000):
        result = await box.exec(f"head -c {size} /dev/zero; printf END; printf ERR >&2")
        equal((result.stdout_total_bytes, result.stdout[-3:], result.stderr), (size + 3, "END", "ERR"))


@check(promise="2", title="A program that alternates between its streams byte by byte is bounded as well",
       needs=frozenset({"python", "processes"}))  # fmt: skip
async def alternating_output_is_bounded(context: Context) -> None:
    box = await context.open()
    code = "import os\nfor _ in range(20000): os.write(1, b'o'); os.write(2, b'e')"
    result = await box.run_code(code, output_limit_bytes=4000)
    equal((result.stdout_total_bytes, result.stderr_total_bytes, result.truncated), (20_000, 20_000, True))
    true(len(result.stdout_bytes) < 4300, f"{len(result.stdout_bytes)} bytes were kept of a limit of 4000")


def start_peak() -> int:
    """Begin to measure our own memory; gives what is in use now."""
    with contextlib.suppress(OSError):  # not Linux, or an old kernel: then the peak is of the whole life
        Path("/proc/self/clear_refs").write_text("5")
    return read_peak()


def read_peak() -> int:
    """The most memory that was in use since `start_peak`, in bytes; 0 where nobody can say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
