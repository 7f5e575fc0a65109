"""The interpreter: code that keeps its state from one run to the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from corral.errors import InvalidCommandError, NotRecordedError, UnknownLanguageError, WorkdirError
from corral.sessions.interpreter.events import RunEvent
from corral.testing.check import Context, check, equal, raises, true, until

PYTHON = frozenset({"python", "processes"})


async def _read_until(events: AsyncIterator[RunEvent], text: str) -> None:
    seen = ""
    async for event in events:
        seen += event.text if event.kind == "stdout" else ""
        if text in seen:
            return
    raise AssertionError(f"{text!r} never came: {seen!r}")


@check(promise="CanInterpret", title="Variables, functions and the folder stay from one run to the next", needs=PYTHON)
async def state_is_kept(context: Context) -> None:
    box = await context.open()
    await box.interpreter.execute("import os\nx = 40\ndef add(n): return x + n\nos.chdir('/tmp')")
    result = await box.interpreter.execute("print(os.getcwd())\nadd(2)")
    equal((result.stdout, result.text, result.status), ("/tmp\n", "42", "completed"), str(result.error))
    equal((await box.run_code("print('x' in globals())")).stdout, "False\n", "a snippet has a process of its own")


@check(promise="CanInterpret", title="Events come in the order in which things happened", needs=PYTHON)
async def events_are_in_order(context: Context) -> None:
    box = await context.open()
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.system('echo c')\ndisplay(1)\n2"
    events = [event async for event in box.interpreter.run(code)]
    told = [(event.kind, event.text or event.data.get("text/plain")) for event in events]
    wanted = [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), ("display", "1"), ("result", "2"), ("end", None)]
    equal(told, wanted)
    equal([event async for event in box.interpreter.follow()], events, "told again")


@check(promise="1", title="An error of the code is told with its own lines, and the state is kept", needs=PYTHON)
async def error_of_the_code_is_told(context: Context) -> None:
    box = await context.open()
    await box.interpreter.execute("def f():\n    raise ValueError('bad')")
    result = await box.interpreter.execute("x = 1\nf()")
    true(result.status == "failed" and result.error is not None, f"an error: {result!r}")
    if result.error is not None:
        equal((result.error.name, result.error.value), ("ValueError", "bad"))
        true("raise ValueError('bad')" in result.error.traceback, result.error.traceback)
    equal((await box.interpreter.execute("exit(3)")).status, "failed", "exit() ends the run")
    equal((await box.interpreter.execute("x")).text, "1", "and not the context")


@check(promise="2", title="A run out of time is interrupted; one that does not obey loses its process, which is said",
       needs=PYTHON)  # fmt: skip
async def run_out_of_time_is_ended(context: Context) -> None:
    box = await context.open()
    await box.interpreter.execute("import signal, time\nx = 1")
    result = await box.interpreter.execute("print('begun')\ntime.sleep(1000)", timeout=0.3)
    equal((result.status, result.stdout, result.fresh), ("timeout", "begun\n", False))
    equal((await box.interpreter.execute("x")).text, "1")
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)"
    result = await box.interpreter.execute(stubborn, timeout=0.3)
    equal((result.status, result.fresh), ("timeout", True))
    equal((await box.interpreter.execute("'x' in globals()")).text, "False")


@check(promise="7", title="A process that ends takes the state with it, and that is said", needs=PYTHON)
async def lost_state_is_said(context: Context) -> None:
    box = await context.open()
    result = await box.interpreter.execute("import os\nos._exit(3)")
    equal((result.status, result.fresh), ("died", True))
    equal((await box.interpreter.execute("'os' in globals()")).text, "False")


@check(promise="2", title="A run that is left or cancelled is interrupted, and the next one is not kept waiting",
       needs=PYTHON)  # fmt: skip
async def cancelled_run_is_interrupted(context: Context) -> None:
    box = await context.open()
    await box.interpreter.execute("import time\nx = 5")
    task = asyncio.ensure_future(box.interpreter.execute("open('begun', 'w').close()\ntime.sleep(1000)"))
    await until(lambda: box.files.exists("begun"), True, "the run has not begun")
    task.cancel()
    await asyncio.wait({task})
    equal((await box.interpreter.execute("x")).text, "5")


@check(promise="CanInterpret", title="Runs of one context take turns, and an interrupt ends the one that runs",
       needs=PYTHON)  # fmt: skip
async def runs_take_turns(context: Context) -> None:
    box = await context.open()
    equal(await box.interpreter.interrupt(), False, "nothing runs")
    first = box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)")
    await _read_until(first, "go")
    second = asyncio.ensure_future(box.interpreter.execute("'second'"))
    equal([info.active for info in await box.interpreter.contexts()], [True])
    equal(await box.interpreter.interrupt(), True)
    rest = [event async for event in first]
    equal((rest[-1].status, rest[-1].fresh), ("interrupted", False))
    equal((await second).text, "'second'")


@check(promise="CanInterpret", title="Contexts are apart, are restarted, and are gone when closed", needs=PYTHON)
async def contexts_are_apart(context: Context) -> None:
    box = await context.open()
    opened = await box.interpreter.open_context(cwd="/tmp")
    equal((opened.cwd, opened.language, opened.active), ("/tmp", "python", False))
    await box.interpreter.execute("x = 1", context=opened.id, envs={"A": "b"})
    equal((await box.interpreter.execute("'x' in globals()")).text, "False")
    await box.interpreter.restart(opened.id)
    equal((await box.interpreter.execute("'x' in globals()", context=opened.id)).text, "False")
    await box.interpreter.close_context(opened.id)
    await raises(NotRecordedError, box.interpreter.execute("1", context=opened.id))
    equal([info.id for info in await box.interpreter.contexts()], ["default"])


@check(promise="CanInterpret", title="What can't be interpreted is refused", needs=PYTHON)
async def nonsense_is_refused(context: Context) -> None:
    box = await context.open()
    await raises(UnknownLanguageError, box.interpreter.open_context(language="sh"))
    await raises(WorkdirError, box.interpreter.open_context(cwd="missing"))
    await raises(InvalidCommandError, box.interpreter.execute("1", timeout=-1.0))
    await raises(InvalidCommandError, box.interpreter.execute("1", envs={"A=B": "c"}))
    await raises(NotRecordedError, box.interpreter.interrupt("nonsense"))
