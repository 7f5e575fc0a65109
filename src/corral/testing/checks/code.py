"""Snippets, each a new process; and the interpreter, which keeps its state between runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    BackendUnavailableError,
    ExecTimeoutError,
    ExitError,
    InvalidCommandError,
    NotRecordedError,
    UnknownLanguageError,
    WorkdirError,
)
from corral.languages import find_language, language_names
from corral.sessions.interpreter.events import RunEvent
from corral.testing.check import TIME_TO_PRINT, check, equal, pieces, raises, true, until

PYTHON = "python processes"
HELLO = {
    "python": "print('hello', 6 * 7)",
    "bash": 'x=(6 7); [[ a == a ]] && echo "hello $((x[0] * x[1]))"',
    "sh": "echo hello $((6 * 7))",
    "javascript": "console.log('hello', 6 * 7)",
    "typescript": "const n: number = 7; console.log('hello', 6 * n)",
}


@check("run_code", "Every language runs, or says what to install", needs="processes", raises="BackendUnavailableError")
async def every_language_runs_or_says_why(box: AsyncSandbox) -> None:
    for name in (name for name in language_names() if name in HELLO):
        try:
            result = await box.run_code(HELLO[name], name)
        except BackendUnavailableError as error:
            true(error.hint, f"{name}: the error says what to install")
            continue
        equal((result.stdout, result.exit_code, result.language), ("hello 42\n", 0, name), f"{name}: {result.stderr}")


@check("run_code", "A snippet's language may be an alias; the result has the language's own name")
async def aliases_are_known(box: AsyncSandbox) -> None:
    for alias in ("sh", " SH ", "posix", "dash"):
        result = await box.run_code("echo hi", alias)
        equal((result.stdout, result.language), ("hi\n", "sh"))
    equal(find_language("Py3").name, "python")
    equal(find_language("tsx").name, "typescript")


@check("run_code", "Of a terminal transcript, the commands are run")
async def transcript_is_run(box: AsyncSandbox) -> None:
    result = await box.run_code("$ echo one\none\n$ echo two\ntwo\n", "console")
    equal((result.stdout, result.exit_code), ("one\ntwo\n", 0), result.stderr)


@check("1", "A snippet's failure is a result; check=True makes it an error",
       raises="run_code:ExitError run_code:ExecTimeoutError")  # fmt: skip
async def failing_snippet_is_a_result(box: AsyncSandbox) -> None:
    equal((await box.run_code("echo out; exit 7", "sh")).exit_code, 7)
    error = await raises(ExitError, box.run_code("echo out; exit 7", "sh", check=True))
    equal((error.result.exit_code, error.result.stdout), (7, "out\n"))
    await raises(ExecTimeoutError, box.run_code("sleep 1000", "sh", timeout=0.3, check=True))


@check("6", "A snippet gets its arguments, cwd, env, input, timeout and listener")
async def snippet_gets_what_a_program_gets(box: AsyncSandbox) -> None:
    await box.files.mkdir("sub")
    heard: list[bytes] = []
    result = await box.run_code(
        'pwd; echo "$1-$2-$WHO"; cat', "sh", args=["a b", "ü"], cwd="sub", env={"WHO": "me"}, stdin=pieces(b"in"),
        on_output=lambda chunk: heard.append(chunk.data),
    )  # fmt: skip
    equal(result.stdout, f"{box.spec.workdir}/sub\na b-ü-me\nin")
    equal(b"".join(heard), result.output_bytes)
    equal((await box.run_code("echo early; sleep 1000", "sh", timeout=0.3)).reason, "timeout")
    equal((await box.run_code(b"echo bytes", "sh")).stdout, "bytes\n")


@check("run_code", "A file inside is run where it is, and is kept")
async def file_is_run_from_its_place(box: AsyncSandbox) -> None:
    await box.files.write("sub/job.sh", "echo the file\n")
    equal((await box.run_code("echo the code\n", "sh", file="sub/job.sh")).stdout, "the file\n")
    equal(await box.files.read("sub/job.sh"), b"echo the file\n")


@check("run_code", "A snippet leaves no file behind, however it ends")
async def snippet_leaves_no_file(box: AsyncSandbox) -> None:
    await box.run_code("true", "sh")
    with contextlib.suppress(BackendUnavailableError):  # it would need a file in this working folder, which takes none
        await box.run_code("import fs from 'fs'", "javascript", cwd="/proc")
    await box.run_code("exit 3", "sh")
    await box.run_code("sleep 1000", "sh", timeout=0.2)
    for folder in (".", "/tmp"):
        equal([file.path for file in await box.files.list(folder)], [], folder)


@check("5", "A snippet of 5 MB runs", needs=PYTHON)
async def snippet_of_megabytes_runs(box: AsyncSandbox) -> None:
    code = f"data = '{'x' * (5 << 20)}'\nprint(len(data))\n"
    result = await box.run_code(code)
    equal((result.stdout, result.exit_code), (f"{5 << 20}\n", 0), result.stderr[-300:])


@check("run_code", "A traceback has the snippet's own lines and no frame of Corral", needs=PYTHON)
async def traceback_has_the_right_lines(box: AsyncSandbox) -> None:
    result = await box.run_code("def f():\n    return 1 / 0\n\nf()\n")
    equal(result.exit_code, 1)
    true("line 4, in <module>" in result.stderr and "line 2, in f" in result.stderr, result.stderr)
    equal(result.stderr.count("File "), 2, "frames in the traceback")
    true("return 1 / 0" in result.stderr, "the source line is shown")
    broken = await box.run_code("x = 1\ny = = 2\n")
    true("line 2" in broken.stderr and "SyntaxError" in broken.stderr, broken.stderr)


@check("run_code", "A Python snippet is a script: __main__, its arguments, its exit code", needs=PYTHON)
async def python_snippet_is_a_script(box: AsyncSandbox) -> None:
    code = "import sys\nprint(__name__, sys.argv[1:], sys.stdin.read())\nsys.exit(7)"
    result = await box.run_code(code, args=["a b", "--flag"], stdin="input")
    equal((result.stdout, result.exit_code), ("__main__ ['a b', '--flag'] input\n", 7), result.stderr)


@check("run_code", "Every snippet is a new process, and files are kept", needs=PYTHON)
async def snippets_share_files_not_state(box: AsyncSandbox) -> None:
    await box.run_code("state = 1\nopen('state.txt', 'w').write('kept')")
    result = await box.run_code("print(open('state.txt').read(), 'state' in globals())")
    equal(result.stdout, "kept False\n", result.stderr)


@check("run_code", "Imports are looked up in the cwd", needs=PYTHON)
async def imports_come_from_the_cwd(box: AsyncSandbox) -> None:
    await box.files.write("lib/helper.py", "value = 'from the cwd'\n")
    result = await box.run_code("import helper\nprint(helper.value)", cwd="lib")
    equal(result.stdout, "from the cwd\n", result.stderr)


@check("run_code", "A snippet that is not UTF-8, or has odd characters, arrives unchanged", needs=PYTHON)
async def snippet_arrives_byte_for_byte(box: AsyncSandbox) -> None:
    result = await box.run_code(b"# coding: latin-1\nprint(ascii('\xe9'))\n")
    equal(result.stdout, "'\\xe9'\n", result.stderr)
    equal((await box.run_code("print(ascii('ü\u2028😀'))\r\nprint(2)\r\n")).stdout, "'\\xfc\\u2028\\U0001f600'\n2\n")


# The interpreter, which keeps its state between runs.


async def _read_until(events: AsyncIterator[RunEvent], text: str) -> None:
    seen = ""
    async for event in events:
        seen += event.text if event.kind == "stdout" else ""
        if text in seen:
            return
    raise AssertionError(f"{text!r} never came: {seen!r}")


@check("CanInterpret", "Variables, functions and the working folder are kept between runs", needs=PYTHON)
async def state_is_kept(box: AsyncSandbox) -> None:
    await box.interpreter.execute("import os\nx = 40\ndef add(n): return x + n\nos.chdir('/tmp')")
    result = await box.interpreter.execute("print(os.getcwd())\nadd(2)")
    equal((result.stdout, result.text, result.status), ("/tmp\n", "42", "completed"), str(result.error))
    equal(
        (await box.run_code("print('x' in globals())")).stdout,
        "False\n",
        "a snippet is a separate process",
    )


@check("CanInterpret", "Events arrive in the order in which they happened", needs=PYTHON)
async def events_are_in_order(box: AsyncSandbox) -> None:
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.system('echo c')\ndisplay(1)\n2"
    events = [event async for event in box.interpreter.run(code)]
    told = [(event.kind, event.text or event.data.get("text/plain")) for event in events]
    wanted = [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), ("display", "1"), ("result", "2"), ("end", None)]
    equal(told, wanted)
    equal([event async for event in box.interpreter.follow()], events, "the same when read again")


@check("1", "An error of the code is reported with its own lines, and the state is kept", needs=PYTHON)
async def error_of_the_code_is_told(box: AsyncSandbox) -> None:
    await box.interpreter.execute("def f():\n    raise ValueError('bad')")
    result = await box.interpreter.execute("x = 1\nf()")
    true(result.status == "failed" and result.error is not None, f"an error: {result!r}")
    if result.error is not None:
        equal((result.error.name, result.error.value), ("ValueError", "bad"))
        true("raise ValueError('bad')" in result.error.traceback, result.error.traceback)
    equal((await box.interpreter.execute("exit(3)")).status, "failed", "exit() ends the run")
    equal((await box.interpreter.execute("x")).text, "1", "and not the context")


@check("2", "A timeout interrupts a run; if that is ignored, the process ends and the result says so", needs=PYTHON)
async def run_out_of_time_is_ended(box: AsyncSandbox) -> None:
    await box.interpreter.execute("import signal, time\nx = 1")
    result = await box.interpreter.execute("print('begun')\ntime.sleep(1000)", timeout=TIME_TO_PRINT)
    equal((result.status, result.stdout, result.fresh), ("timeout", "begun\n", False))
    equal((await box.interpreter.execute("x")).text, "1")
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)"
    result = await box.interpreter.execute(stubborn, timeout=0.3)
    equal((result.status, result.fresh), ("timeout", True))
    equal((await box.interpreter.execute("'x' in globals()")).text, "False")


@check("7", "If the process ends, the state is lost, and the result says so", needs=PYTHON)
async def lost_state_is_said(box: AsyncSandbox) -> None:
    result = await box.interpreter.execute("import os\nos._exit(3)")
    equal((result.status, result.fresh), ("died", True))
    equal((await box.interpreter.execute("'os' in globals()")).text, "False")


@check("2", "A run that is cancelled is interrupted, and the next one does not wait for it", needs=PYTHON)
async def cancelled_run_is_interrupted(box: AsyncSandbox) -> None:
    await box.interpreter.execute("import time\nx = 5")
    task = asyncio.ensure_future(box.interpreter.execute("open('begun', 'w').close()\ntime.sleep(1000)"))
    await until(lambda: box.files.exists("begun"), True, "the run has not begun")
    task.cancel()
    await asyncio.wait({task})
    equal((await box.interpreter.execute("x")).text, "5")


@check("CanInterpret", "Runs of one context take turns, and an interrupt ends the current one", needs=PYTHON)
async def runs_take_turns(box: AsyncSandbox) -> None:
    equal(await box.interpreter.interrupt(), False, "nothing runs")
    first = box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)")
    await _read_until(first, "go")
    second = asyncio.ensure_future(box.interpreter.execute("'second'"))
    equal([info.active for info in await box.interpreter.contexts()], [True])
    equal(await box.interpreter.interrupt(), True)
    rest = [event async for event in first]
    equal((rest[-1].status, rest[-1].fresh), ("interrupted", False))
    equal((await second).text, "'second'")


@check("CanInterpret", "Contexts are separate, can be restarted, and are gone when closed", needs=PYTHON)
async def contexts_are_apart(box: AsyncSandbox) -> None:
    opened = await box.interpreter.open_context(cwd="/tmp")
    equal((opened.cwd, opened.language, opened.active), ("/tmp", "python", False))
    await box.interpreter.execute("x = 1", context=opened.id, envs={"A": "b"})
    equal((await box.interpreter.execute("'x' in globals()")).text, "False")
    await box.interpreter.restart(opened.id)
    equal((await box.interpreter.execute("'x' in globals()", context=opened.id)).text, "False")
    await box.interpreter.close_context(opened.id)
    await raises(NotRecordedError, box.interpreter.execute("1", context=opened.id))
    equal([info.id for info in await box.interpreter.contexts()], ["default"])


@check("CanInterpret", "Invalid languages, folders, timeouts and variables are refused", needs=PYTHON)
async def nonsense_is_refused(box: AsyncSandbox) -> None:
    await raises(UnknownLanguageError, box.interpreter.open_context(language="sh"))
    await raises(WorkdirError, box.interpreter.open_context(cwd="missing"))
    await raises(InvalidCommandError, box.interpreter.execute("1", timeout=-1.0))
    await raises(InvalidCommandError, box.interpreter.execute("1", envs={"A=B": "c"}))
    await raises(NotRecordedError, box.interpreter.interrupt("nonsense"))
