"""Running a program to its end: its input, its output, and its result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from corral.client.sandbox import AsyncSandbox
from corral.errors import ExecTimeoutError, ExitError, InvalidCommandError
from corral.results import OutputChunk
from corral.spec import HOME
from corral.testing.check import (
    REAL,
    TIME_TO_PRINT,
    Context,
    check,
    equal,
    flat_memory,
    pieces,
    raises,
    repeat,
    still_works,
    true,
)


@check("exec", "A list is an argv: its items are not expanded or split")
async def argv_is_taken_as_it_is(box: AsyncSandbox) -> None:
    result = await box.exec(["echo", "a  b", "$HOME", "*", "", "'q'", "-x", "ü"])
    equal(result.stdout, "a  b $HOME *  'q' -x ü\n")
    equal((result.exit_code, result.reason, result.ok), (0, "exited", True))


@check("exec", "A string is run by /bin/sh")
async def text_goes_to_the_shell(box: AsyncSandbox) -> None:
    result = await box.exec('echo one; echo "$WHO" && echo three', env={"WHO": "two  words"})
    equal(result.stdout, "one\ntwo  words\nthree\n")


@check("1", "A command's failure is a result")
async def failure_is_a_result(box: AsyncSandbox) -> None:
    result = await box.exec("echo said >&2; exit 3")
    equal((result.exit_code, result.reason, result.ok, result.stderr), (3, "exited", False, "said\n"))
    equal((await box.exec(["false"])).exit_code, 1)


@check("2", "A missing program gives 127, with or without a shell")
async def missing_program_is_127(box: AsyncSandbox) -> None:
    for command in (["corral-no-such-program", "x"], ["/no/such/program"], "corral-no-such-program"):
        result = await box.exec(command)
        equal((result.exit_code, result.reason), (127, "exited"), repr(command))
        true(result.stderr, f"{command!r}: standard error should say that it was not found")


@check("2", "A file that can't be executed gives 126")
async def file_without_permission_is_126(box: AsyncSandbox, home: str) -> None:
    await box.files.write("plain.sh", "#!/bin/sh\necho no\n", mode=0o644)
    for command in ([f"{home}/plain.sh"], [home], "./plain.sh"):
        equal((await box.exec(command)).exit_code, 126, repr(command))
    await box.files.chmod("plain.sh", 0o755)
    equal((await box.exec(["./plain.sh"])).stdout, "no\n")


@check("2", "A program ended by a signal gives 128+n, with the reason and the number")
async def signal_is_128_plus_n(box: AsyncSandbox) -> None:
    for name, number in (("KILL", 9), ("TERM", 15), ("USR1", 10)):
        result = await box.exec(f"echo before; kill -{name} $$")
        equal((result.exit_code, result.reason, result.signal), (128 + number, "signalled", number), name)
        equal(result.stdout, "before\n")


@check("6", "The spec's workdir exists, is the cwd, and relative paths of files start there")
async def workdir_exists_and_is_the_cwd(context: Context, box: AsyncSandbox) -> None:
    equal((await box.exec("pwd")).stdout, f"{HOME}\n")
    other = await context.open(workdir="/srv/deep/folder")
    equal((await other.exec("pwd")).stdout, "/srv/deep/folder\n")
    await other.files.write("here.txt", "x")
    equal((await other.exec(["cat", "/srv/deep/folder/here.txt"])).stdout, "x")
    equal((await other.exec("echo y > made; cat made")).stdout, "y\n", "the program may write in its workdir")


@check("6", "A call's cwd is honoured, absolute or relative to the workdir, and not remembered")
async def cwd_is_honoured(box: AsyncSandbox, home: str) -> None:
    await box.files.mkdir("sub/folder with space")
    for cwd in ("sub/folder with space", f"{home}/sub/folder with space"):
        equal((await box.exec("pwd", cwd=cwd)).stdout, f"{home}/sub/folder with space\n")
    equal((await box.exec("pwd")).stdout, f"{home}\n")


@check("6", "A call's env overrides the spec's, for that call only; the host's env is not visible")
async def env_is_honoured(context: Context) -> None:
    os.environ["CORRAL_CHECK_HOST_SECRET"] = "leaked"
    try:
        box = await context.open(env={"KEEP": "spec", "CHANGE": "spec"})
        odd = "a=b c\n'\"$x ü"
        seen = (await box.exec(["env"], env={"CHANGE": "call", "ODD": odd, "lower.dot": "1"})).stdout
        for line in ("KEEP=spec\n", "CHANGE=call\n", f"ODD={odd}\n", "lower.dot=1\n", "HOME=", "PATH=", "USER="):
            true(line in seen, f"{line!r} is missing from the environment {seen!r}")
        after = (await box.exec(["env"])).stdout
        true("CHANGE=spec\n" in after and "ODD" not in after, f"a call's env was remembered: {after!r}")
        true("leaked" not in seen, "the host's environment is visible inside")
    finally:
        del os.environ["CORRAL_CHECK_HOST_SECRET"]


@check("6", "Input may be bytes, text or a stream, and ends; without it, stdin is empty")
async def stdin_is_honoured(box: AsyncSandbox) -> None:
    equal((await box.exec(["cat"], stdin=b"\0\xff\n")).stdout_bytes, b"\0\xff\n")
    equal((await box.exec(["cat"], stdin="grüße")).stdout, "grüße")
    equal((await box.exec(["cat"], stdin=pieces(b"a", b"", b"b", b"c"))).stdout, "abc")
    equal((await box.exec(["cat"], stdin=b"")).stdout, "")
    equal((await box.exec(["cat"])).stdout, "")


@check("6", "Megabytes of input pass through while output is read")
async def large_stdin_passes(context: Context) -> None:
    box = await context.open(output_limit_bytes=16 << 20)
    data = os.urandom(1 << 20) * 3
    equal((await box.exec(["cat"], stdin=data)).stdout_bytes == data, True, "3 MiB through cat are the same")
    result = await box.exec(["cat"], stdin=repeat(b"x" * 65536, 48))
    equal(result.stdout_total_bytes, 48 * 65536)


@check("6", "A program that does not read its input is not an error")
async def unread_stdin_is_no_error(box: AsyncSandbox) -> None:
    result = await box.exec(["true"], stdin=b"x" * (2 << 20))
    equal((result.exit_code, result.reason), (0, "exited"))


@check("6", "A timeout is a float; without one, the spec's is used")
async def float_timeout_is_honoured(context: Context) -> None:
    box = await context.open(exec_timeout=0.25)
    equal((await box.exec(["sleep", "1000"])).reason, "timeout")
    equal((await box.exec(["sleep", "1000"], timeout=0.1)).exit_code, 124)
    equal((await box.exec("sleep 0.4; echo done", timeout=50.5)).stdout, "done\n", "the call's timeout comes first")


@check("2", "check=True turns a failure into ExitError with the result", raises="exec:ExitError")
async def check_raises_exit_error(box: AsyncSandbox) -> None:
    error = await raises(ExitError, box.exec("echo out; echo why >&2; exit 4", check=True))
    equal((error.result.exit_code, error.result.stdout, error.result.stderr), (4, "out\n", "why\n"))
    true("4" in str(error), f"the message should name the exit code: {error}")
    equal(error.sandbox_id, box.id)
    equal((await box.exec("echo fine", check=True)).stdout, "fine\n")


@check("2", "check=True turns a timeout into ExecTimeoutError with the partial output", raises="exec:ExecTimeoutError")
async def check_raises_timeout_error(box: AsyncSandbox) -> None:
    error = await raises(ExecTimeoutError, box.exec("echo early; sleep 1000", timeout=TIME_TO_PRINT, check=True))
    true(isinstance(error, TimeoutError), "ExecTimeoutError is a TimeoutError")
    equal((error.result.stdout, error.result.exit_code), ("early\n", 124))


@check("exec", "on_output, sync or async, gets every piece in order")
async def on_output_gets_everything(box: AsyncSandbox) -> None:
    seen: list[OutputChunk] = []

    async def later(chunk: OutputChunk) -> None:
        await asyncio.sleep(0)
        seen.append(chunk)

    command = "echo one; echo two >&2; echo three"
    for listener in (seen.append, later):
        seen.clear()
        result = await box.exec(command, on_output=listener)
        equal(b"".join(chunk.data for chunk in seen), result.output_bytes)
        equal(b"".join(chunk.data for chunk in seen if chunk.stream == "stderr"), b"two\n")
        equal(result.output, "one\ntwo\nthree\n")


@check("exec", "Output is passed on while the program runs")
async def on_output_comes_while_it_runs(box: AsyncSandbox) -> None:
    asked = asyncio.Event()

    async def stdin() -> AsyncIterator[bytes]:
        await asked.wait()  # the program goes on only when its first words were heard
        yield b"go\n"

    result = await box.exec("echo ready; cat", stdin=stdin(), on_output=lambda chunk: asked.set())
    equal(result.stdout, "ready\ngo\n")


@check("2", "An error in on_output reaches the caller, and the program is ended")
async def failing_listener_reaches_the_caller(box: AsyncSandbox) -> None:

    def fail(chunk: OutputChunk) -> None:
        raise ZeroDivisionError("of the caller's own")

    await raises(ZeroDivisionError, box.exec("echo x; sleep 1000", on_output=fail))
    await still_works(box)


@check("exec", "A result has the usage of its call; what could not be counted has a note")
async def usage_of_a_call_is_told(box: AsyncSandbox) -> None:
    usage = (await box.exec("sleep 0.05")).usage
    true(usage.wall_seconds >= 0.05, f"wall_seconds is {usage.wall_seconds}")
    for name in ("cpu_seconds", "peak_memory_bytes"):
        value = getattr(usage, name)
        true(value is not None or usage.notes, f"{name} is None and nothing says why")
        true(value is None or value >= 0, f"{name} is {value}")


@check("exec", "CPU time and memory are counted for each call", needs="python processes")
async def usage_of_a_call_is_its_own(box: AsyncSandbox) -> None:
    code = "import time\nx = b'x' * (60 << 20)\nwhile time.process_time() < 0.3: pass"
    heavy = (await box.run_code(code)).usage
    light = (await box.exec(["true"])).usage
    if heavy.cpu_seconds is not None and light.cpu_seconds is not None:
        true(heavy.cpu_seconds >= 0.25, f"0.3 s of work were counted as {heavy.cpu_seconds}")
        true(light.cpu_seconds < heavy.cpu_seconds, "`true` costs less than 0.3 s of work")
    if heavy.peak_memory_bytes is not None:
        true(heavy.peak_memory_bytes >= 50 << 20, f"60 MiB in use were counted as {heavy.peak_memory_bytes}")


@check("exec", "Many programs run side by side, each with its own result")
async def programs_run_side_by_side(box: AsyncSandbox) -> None:
    results = await asyncio.gather(*(box.exec(["echo", str(number)]) for number in range(20)))
    equal([result.stdout for result in results], [f"{number}\n" for number in range(20)])


@check("exec", "Files that a program wrote are visible to the next")
async def files_stay_between_programs(box: AsyncSandbox) -> None:
    await box.exec("echo kept > note.txt")
    equal(await box.files.read("note.txt"), b"kept\n")
    equal((await box.exec(["cat", "note.txt"])).stdout, "kept\n")


@check("exec", "An existing user is used, an unknown one is an error",
       needs="users shell", raises="InvalidCommandError")  # fmt: skip
async def user_is_honoured(box: AsyncSandbox) -> None:
    equal((await box.exec("id -u", user="root")).stdout, "0\n")
    equal((await box.exec("id -un")).stdout, (await box.exec("id -un", user="daytona")).stdout)
    await raises(InvalidCommandError, box.exec("true", user="no-such-user"))


@check("exec", "read_only and hidden apply to one call and all of its processes", needs="views shell")
async def views_hold_for_one_call(box: AsyncSandbox) -> None:
    await box.files.write("data/in.txt", "old")
    await box.files.write("secret/key.txt", "hush")
    script = (
        "echo new > data/in.txt; rm -f data/in.txt; touch data/more; cat secret/key.txt; ls secret; cat data/in.txt"
    )
    result = await box.exec(f"sh -c '{script}'", read_only=["data"], hidden=["secret"])
    true("hush" not in result.output and "key.txt" not in result.stdout, f"hidden is seen: {result.output}")
    equal(await box.files.read("data/in.txt"), b"old")
    equal([file.name for file in await box.files.list("data")], ["in.txt"])
    other = await box.exec("echo new > data/in.txt; cat secret/key.txt data/in.txt")
    equal(other.stdout, "hushnew\n", "the next call is free again")
    # The root of a process can't be covered: the call is refused, so that the rule is not silently ignored.
    await box.files.symlink("everything", "/")
    for everything in ("/", "everything"):
        await raises(InvalidCommandError, box.exec("cat secret/key.txt", hidden=[everything]))


# Output: both streams, their order, and the limit.

MUCH_BYTES = 300_000_000


@check("exec", "stdout and stderr are separate, and output has both in the order of writing")
async def streams_are_apart_and_in_order(box: AsyncSandbox) -> None:
    command = "; ".join(f"echo {n}{' >&2' if n % 3 else ''}" for n in range(40))
    for _ in range(3):
        result = await box.exec(command)
        equal(result.stdout, "".join(f"{n}\n" for n in range(40) if n % 3 == 0))
        equal(result.stderr, "".join(f"{n}\n" for n in range(40) if n % 3))
        equal(result.output, "".join(f"{n}\n" for n in range(40)))


@check("2", "Output beyond the limit is cut in the middle, with a note and byte counts")
async def long_output_is_cut_and_said(box: AsyncSandbox) -> None:
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


@check("2", "Output up to the limit is complete; without one, the spec's limit is used")
async def output_at_the_limit_is_whole(context: Context) -> None:
    box = await context.open(output_limit_bytes=1000)
    await box.files.write("exact.txt", b"x" * 1000)
    result = await box.exec(["cat", "exact.txt"])
    equal((result.truncated, len(result.stdout_bytes)), (False, 1000), "1000 bytes at a limit of 1000")
    await box.files.write("more.txt", b"x" * 1001)
    equal((await box.exec(["cat", "more.txt"])).truncated, True, "1001 bytes at a limit of 1000")
    equal((await box.exec(["cat", "more.txt"], output_limit_bytes=5000)).truncated, False)


@check("exec", "Output that is not UTF-8 is kept as bytes, decoded with U+FFFD, and counted")
async def bytes_that_are_not_text_are_kept(box: AsyncSandbox) -> None:
    await box.files.write("bytes.bin", bytes(range(256)))
    result = await box.exec(["cat", "bytes.bin"])
    equal(result.stdout_bytes, bytes(range(256)))
    equal(result.output_bytes, bytes(range(256)))
    true("\ufffd" in result.stdout and result.stdout.startswith("\0\x01"), "undecodable bytes show as U+FFFD")
    equal(result.replaced_bytes, 128)


@check("4", "300 MB of output do not grow our own memory", needs=REAL)
async def endless_output_is_bounded(box: AsyncSandbox) -> None:
    with flat_memory():
        result = await box.exec(f"head -c {MUCH_BYTES} /dev/zero; echo end")
    equal((result.truncated, result.stdout_total_bytes), (True, MUCH_BYTES + 4))
    true(result.stdout.endswith("end\n"), "the end is kept")


@check("4", "A listener gets every byte of much output, even a slow one, in bounded memory", needs=REAL)
async def listener_gets_every_byte(box: AsyncSandbox) -> None:
    counted = 0

    def count(chunk: OutputChunk) -> None:
        nonlocal counted
        counted += len(chunk.data)

    async def dawdle(chunk: OutputChunk) -> None:
        if not counted >> 18 & 1:  # in turns, so that it falls behind and catches up again
            await asyncio.sleep(0.0005)
        count(chunk)

    with flat_memory():
        for _ in range(3):
            counted = 0
            result = await box.exec("head -c 40000000 /dev/zero", on_output=count)
            equal((counted, result.stdout_total_bytes), (40_000_000, 40_000_000))
        counted = 0
        await box.exec("head -c 20000000 /dev/zero", on_output=dawdle)
        equal(counted, 20_000_000)


@check("3", "Output right before the end is never lost", needs=REAL)
async def last_words_are_not_lost(box: AsyncSandbox) -> None:
    for size in (1, 4096, 70_000, 1_000_000):
        result = await box.exec(f"head -c {size} /dev/zero; printf END; printf ERR >&2")
        equal((result.stdout_total_bytes, result.stdout[-3:], result.stderr), (size + 3, "END", "ERR"))


@check("2", "Output that alternates between the streams byte by byte is bounded too", needs="python processes")
async def alternating_output_is_bounded(box: AsyncSandbox) -> None:
    code = "import os\nfor _ in range(20000): os.write(1, b'o'); os.write(2, b'e')"
    result = await box.run_code(code, output_limit_bytes=4000)
    equal((result.stdout_total_bytes, result.stderr_total_bytes, result.truncated), (20_000, 20_000, True))
    true(len(result.stdout_bytes) < 4300, f"{len(result.stdout_bytes)} bytes were kept of a limit of 4000")
