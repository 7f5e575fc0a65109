"""Invalid input raises a typed error that names the value, and leaves nothing behind."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    CorralError,
    InvalidCommandError,
    SandboxFileError,
    SpecError,
    UnknownBackendError,
    UnknownLanguageError,
    WorkdirError,
)
from corral.spec import make_spec
from corral.testing.check import Context, broken, check, equal, raises, still_works, true, write_tree

BAD_COMMANDS: tuple[Any, ...] = ("", "  \n", [], [""], ["a\0b"], ["ok", "a\0b"], "echo \0", b"true", ["ok", 3], 5, None)
BAD_TIMEOUTS: tuple[Any, ...] = (0, -1, 0.0, -0.5, math.nan, math.inf, True, "5")
BAD_ENVS: tuple[Any, ...] = ({"A=B": "x"}, {"": "x"}, {"A\0": "x"}, {"A": "hush\0"}, {"A": 3}, {3: "x"})


@check("exec", "A command that is empty, has a NUL or is not text is InvalidCommandError",
       raises="InvalidCommandError start:InvalidCommandError")  # fmt: skip
async def impossible_command_is_refused(box: AsyncSandbox) -> None:
    for command in BAD_COMMANDS:
        error = await raises(InvalidCommandError, box.exec(command))
        true(isinstance(error, ValueError), "InvalidCommandError is a ValueError")
        await raises(InvalidCommandError, box.start(command))
    await still_works(box)


@check("5", "An argument of 200 KiB is refused with a hint; a shell text of 200 KiB runs")
async def oversized_argument_is_refused(box: AsyncSandbox) -> None:
    error = await raises(InvalidCommandError, box.exec(["echo", "x" * (200 << 10)]))
    true("stdin" in str(error), f"the message should say what to do: {error}")
    result = await box.exec("echo start\n" + "# padding\n" * (20 << 10) + "echo end")
    equal(result.stdout, "start\nend\n")
    equal([file.name for file in await box.files.list("/tmp")], [], "the script's file is gone")


@check("exec", "Arguments or variables that are too large together are refused", needs="processes")
async def oversized_sum_is_refused(box: AsyncSandbox) -> None:
    await raises(InvalidCommandError, box.exec(["true", *(["x" * (100 << 10)] * 60)]))
    await raises(InvalidCommandError, box.exec(["true"], env={f"V{n}": "x" * (100 << 10) for n in range(60)}))
    await still_works(box)


@check("6", "Variables with '=' or NUL in the name, or a non-text value, are refused; values stay hidden",
       raises="exec:InvalidCommandError Backend.create:SpecError")  # fmt: skip
async def impossible_env_is_refused(box: AsyncSandbox) -> None:
    for env in BAD_ENVS:
        error = await raises(InvalidCommandError, box.exec("true", env=env))
        true("hush" not in str(error), "a value was shown in the message")
        await raises(InvalidCommandError, box.start("true", env=env))
        await raises(SpecError, partial(make_spec, env=env))
    await raises(InvalidCommandError, box.exec("true", env={"BIG": "x" * (200 << 10)}))


@check("6", "A timeout that is zero, negative, NaN, infinite or not a number is refused",
       raises="exec:InvalidCommandError run_code:InvalidCommandError start:InvalidCommandError")  # fmt: skip
async def impossible_timeout_is_refused(box: AsyncSandbox) -> None:
    for timeout in BAD_TIMEOUTS:
        for work in (box.exec("true", timeout=timeout), box.run_code("x", "sh", timeout=timeout)):
            error = await raises(InvalidCommandError, work)
            true(repr(timeout) in str(error), f"the message should name {timeout!r}: {error}")
        await raises(InvalidCommandError, box.start("true", timeout=timeout))
        await raises(SpecError, partial(make_spec, exec_timeout=timeout))
        if timeout is not True:
            await raises(SpecError, partial(make_spec, lifetime=timeout))


@check("exec", "Input that is neither bytes, text nor a stream is refused", raises="InvalidCommandError")
async def impossible_stdin_is_refused(box: AsyncSandbox) -> None:
    for stdin in (5, ["x"], object()):
        await raises(InvalidCommandError, box.exec(["cat"], stdin=stdin))  # type: ignore[arg-type]
    await still_works(box)


@check("1", "An error in the input stream reaches the caller, without a hang")
async def failing_stdin_reaches_the_caller(box: AsyncSandbox) -> None:
    await raises(ZeroDivisionError, box.exec(["cat"], stdin=broken()))
    await still_works(box)


@check("6", "A cwd that is missing, a file, or a link to a folder of the host is WorkdirError",
       raises="exec:WorkdirError start:WorkdirError run_code:WorkdirError")  # fmt: skip
async def impossible_cwd_is_refused(context: Context, box: AsyncSandbox) -> None:
    await write_tree(box.files, {"file.txt": "x"}, links={"out": str(context.scratch), "nowhere": "missing"})
    for cwd in ("missing", "file.txt", "out", "nowhere", "/no/such/workdir"):
        error = await raises(WorkdirError, box.exec("pwd", cwd=cwd))
        true(isinstance(error, FileNotFoundError), "WorkdirError is a FileNotFoundError")
        true(cwd in str(error), f"the message should name {cwd!r}: {error}")
        await raises(WorkdirError, box.start("pwd", cwd=cwd))
        await raises(WorkdirError, box.run_code("pwd", "sh", cwd=cwd))
    await still_works(box)


@check("run_code", "An unknown language is an error that lists the known ones", raises="UnknownLanguageError")
async def unknown_language_is_refused(box: AsyncSandbox) -> None:
    for language in ("klingon", "", "python\0"):
        error = await raises(UnknownLanguageError, box.run_code("x", language))
        true("python" in str(error) and repr(language) in str(error), f"names the value and the known: {error}")


@check("1", "An unknown backend is an error that lists the known ones")
async def unknown_backend_is_refused(context: Context) -> None:
    error = await raises(UnknownBackendError, lambda: get_backend("no-such-backend"))
    true("no-such-backend" in str(error) and "embedded" in str(error), f"names the value and the known: {error}")


@check("files", "A path that is empty, has a NUL or is too long is refused by every method")
async def impossible_path_is_refused(box: AsyncSandbox) -> None:
    files = box.files
    for path in ("", "a\0b", "x" * 5000, "n" * 300):
        for work in (
            files.read(path),
            files.write(path, b""),
            files.list(path),
            files.stat(path),
            files.mkdir(path),
            files.chmod(path, 0o600),
            files.remove(path),
            files.edit(path, "a", "b"),
            files.move(path, "b"),
            files.move("a", path),
            files.symlink(path, "x"),
            files.glob("*", path=path),
            files.grep("x", path=path),
        ):
            error = await raises(SandboxFileError, work)
            true(len(str(error)) < 1000, "the message is short")


@check("exec", "An output limit below 1 is refused", raises="InvalidCommandError")
async def impossible_output_limit_is_refused(box: AsyncSandbox) -> None:
    for limit in (0, -1):
        await raises(InvalidCommandError, box.exec("true", output_limit_bytes=limit))
        await raises(SpecError, partial(make_spec, output_limit_bytes=limit))


@check("1", "Errors name the sandbox and show no path of the host")
async def errors_tell_no_secret(context: Context, box: AsyncSandbox) -> None:
    for work in (box.exec("true", cwd="missing"), box.files.read("missing"), box.exec("exit 3", check=True)):
        error = await raises(CorralError, work)
        equal(error.sandbox_id, box.id, f"{type(error).__name__}.sandbox_id")
        true(error.code and error.message, "code and message are set")
        true(str(context.scratch) not in str(error), "a path of the host was shown")
