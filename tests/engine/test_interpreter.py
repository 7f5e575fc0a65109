"""The interpreter in real sandboxes: state, order, ends, hostile code, charts; as root and as an ordinary user."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from daytona.common.charts import BarChart, BoxAndWhiskerChart, CompositeChart, LineChart, PieChart, parse_chart
from daytona_toolbox_api_client import Chart as ToolboxChart

from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.errors import (
    InvalidCommandError,
    NotRecordedError,
    SandboxClosedError,
    SandboxGoneError,
    UnknownLanguageError,
    WorkdirError,
)
from corral.sessions.interpreter.events import RunEvent
from corral.sessions.interpreter.oneshot import run_with_charts
from corral.spec import Spec
from support.user import OrdinaryUser

HANG_GUARD_SECONDS = 100
TIME_TO_BEGIN = 3.0  # a program that is to run into its timeout must have printed before, on a busy machine too


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


@pytest.fixture
async def box(backend: EmbeddedBackend) -> AsyncIterator[AsyncSandbox]:
    async with await backend.create(Spec()) as box:
        yield box


async def collect(events: AsyncIterator[RunEvent]) -> list[RunEvent]:
    return [event async for event in events]


async def wait_for_text(events: AsyncIterator[RunEvent], text: str) -> None:
    """Read on until the code has printed that."""
    seen = ""
    async for event in events:
        seen += event.text if event.kind == "stdout" else ""
        if text in seen:
            return
    raise AssertionError(f"{text!r} never came: {seen!r}")


async def test_state_is_kept_and_the_last_value_is_the_result(box: AsyncSandbox) -> None:
    assert (await box.interpreter.execute("x = 40")).ok
    result = await box.interpreter.execute("print('hello')\nx + 2")
    assert (result.stdout, result.text, result.status, result.error) == ("hello\n", "42", "completed", None)


async def test_events_come_in_order_and_the_end_is_the_last(box: AsyncSandbox) -> None:
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.system('echo c; echo d >&2')\ndisplay(1)\n2"
    events = await collect(box.interpreter.run(code))
    told = [(event.kind, event.text or event.data.get("text/plain")) for event in events]
    assert told == [
        ("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), ("stderr", "d\n"), ("display", "1"), ("result", "2"),
        ("end", None),
    ]  # fmt: skip
    assert len({event.run for event in events}) == 1


async def test_error_has_name_value_and_traceback(box: AsyncSandbox) -> None:
    await box.interpreter.execute("def f():\n    raise ValueError('bad')")
    result = await box.interpreter.execute("f()")
    assert result.status == "failed"
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("ValueError", "bad")
    assert "raise ValueError('bad')" in result.error.traceback
    assert ".corral" not in result.error.traceback


async def test_timeout_interrupts_and_keeps_the_state(box: AsyncSandbox) -> None:
    await box.interpreter.execute("x = 1")
    result = await box.interpreter.execute("import time\nprint('begun')\ntime.sleep(1000)", timeout=TIME_TO_BEGIN)
    assert (result.status, result.stdout, result.fresh) == ("timeout", "begun\n", False)
    assert (await box.interpreter.execute("x")).text == "1"


async def test_code_that_does_not_obey_is_ended_and_the_loss_is_said(box: AsyncSandbox) -> None:
    await box.interpreter.execute("x = 1")
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun')\ntime.sleep(1000)"
    result = await box.interpreter.execute(code, timeout=TIME_TO_BEGIN)
    assert (result.status, result.stdout, result.fresh) == ("timeout", "begun\n", True)
    after = await box.interpreter.execute("x")
    assert after.error and after.error.name == "NameError"  # noqa: PT018 - the first half is for the type checker
    assert "sleep" not in (await box.exec("ps -eo args 2>/dev/null || cat /proc/[0-9]*/cmdline")).stdout


async def test_hard_exit_is_said_and_the_next_run_is_fresh(box: AsyncSandbox) -> None:
    await box.interpreter.execute("x = 1")
    result = await box.interpreter.execute("import os\nprint('bye', flush=True)\nos._exit(3)")
    assert (result.status, result.stdout, result.fresh) == ("died", "bye\n", True)
    assert "exit code 3" in result.reason
    assert (await box.interpreter.execute("'x' in globals()")).text == "False"


async def test_death_between_two_runs_is_said_by_the_later(box: AsyncSandbox) -> None:
    await box.interpreter.execute("import os, threading\npid = os.getpid()")
    pid = (await box.interpreter.execute("pid")).text
    await box.exec(f"kill -9 {pid}", check=True)
    record = box.interpreter._contexts["default"].process
    assert record is not None
    await record.record.wait(timeout=HANG_GUARD_SECONDS)
    events = await collect(box.interpreter.run("'x' in globals()"))
    assert [event.kind for event in events] == ["restart", "result", "end"]
    assert [event.kind for event in await collect(box.interpreter.run("1"))] == ["result", "end"]


async def test_environment_and_working_folder(box: AsyncSandbox) -> None:
    await box.exec("mkdir sub", check=True)
    opened = await box.interpreter.open_context(cwd="sub")
    assert opened.cwd == "/home/daytona/sub"
    code = "import os\n(os.path.basename(os.getcwd()), os.environ.get('A'))"
    assert (await box.interpreter.execute(code, context=opened.id, envs={"A": "ä"})).text == "('sub', 'ä')"
    assert (await box.interpreter.execute(code, context=opened.id)).text == "('sub', None)"


async def test_contexts_are_apart_listed_and_closed(box: AsyncSandbox) -> None:
    assert await box.interpreter.contexts() == ()
    first, second = await box.interpreter.open_context(), await box.interpreter.open_context()
    await box.interpreter.execute("x = 1", context=first.id)
    assert (await box.interpreter.execute("'x' in globals()", context=second.id)).text == "False"
    assert (await box.interpreter.execute("'x' in globals()")).text == "False"
    assert {info.id for info in await box.interpreter.contexts()} == {first.id, second.id, "default"}
    await box.interpreter.close_context(first.id)
    for call in (
        box.interpreter.execute("1", context=first.id),
        box.interpreter.close_context(first.id),
        box.interpreter.interrupt(first.id),
        box.interpreter.restart("nonsense"),
        collect(box.interpreter.follow("nonsense")),
    ):
        with pytest.raises(NotRecordedError):
            await call
    assert {info.id for info in await box.interpreter.contexts()} == {second.id, "default"}


async def test_what_cannot_be_is_refused(box: AsyncSandbox) -> None:
    with pytest.raises(UnknownLanguageError):
        await box.interpreter.open_context(language="javascript")
    with pytest.raises(WorkdirError):
        await box.interpreter.open_context(cwd="missing")
    for bad in ({"timeout": -1}, {"timeout": float("nan")}, {"envs": {"A=B": "x"}}, {"envs": {"A": "x\0"}}):
        with pytest.raises(InvalidCommandError):
            await box.interpreter.execute("1", **bad)
    with pytest.raises(InvalidCommandError):
        await box.interpreter.execute(b"1")  # type: ignore[arg-type]
    assert (await box.exec("ls -A /tmp")).stdout == ""


async def test_runs_of_one_context_wait_for_each_other(box: AsyncSandbox) -> None:
    await box.interpreter.execute("order = []")
    code = "import time\norder.append(('begin', {0}))\ntime.sleep(0.05)\norder.append(('end', {0}))"
    results = await asyncio.gather(*(box.interpreter.execute(code.format(n)) for n in range(5)))
    assert all(result.ok for result in results)
    wanted = [(word, n) for n in range(5) for word in ("begin", "end")]
    assert (await box.interpreter.execute("order")).text == repr(wanted)


async def test_interrupt_and_restart(box: AsyncSandbox) -> None:
    assert await box.interpreter.interrupt() is False
    await box.interpreter.execute("x = 1")
    events = box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)")
    await wait_for_text(events, "go")
    (info,) = await box.interpreter.contexts()
    assert info.active
    assert await box.interpreter.interrupt() is True
    rest = await collect(events)
    assert (rest[-1].status, rest[-1].fresh) == ("interrupted", False)
    assert (await box.interpreter.execute("x")).text == "1"
    assert await box.interpreter.interrupt() is False
    events = box.interpreter.run("print('go')\ntime.sleep(1000)")
    await wait_for_text(events, "go")
    restart = asyncio.create_task(box.interpreter.restart())
    rest = await collect(events)
    assert (rest[-1].status, rest[-1].fresh) == ("interrupted", True)
    await restart
    assert [event.kind for event in await collect(box.interpreter.run("'x' in globals()"))] == ["result", "end"]


async def test_run_that_is_left_early_is_interrupted(box: AsyncSandbox) -> None:
    events = box.interpreter.run("import time\nx = 5\nprint('go')\ntime.sleep(1000)")
    await wait_for_text(events, "go")
    await events.aclose()  # type: ignore[attr-defined]
    assert (await asyncio.wait_for(box.interpreter.execute("x"), HANG_GUARD_SECONDS)).text == "5"


async def test_cancelled_run_is_interrupted_and_a_cancelled_queue_goes_on(box: AsyncSandbox) -> None:
    await box.interpreter.execute("import time\nx = 5")
    running = asyncio.create_task(box.interpreter.execute("open('begun', 'w').close()\ntime.sleep(1000)"))
    await box.exec("until test -e begun; do sleep 0.02; done", timeout=HANG_GUARD_SECONDS, check=True)
    waiting, last = (asyncio.create_task(box.interpreter.execute(code)) for code in ("x = 6", "x"))
    await asyncio.sleep(0)
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await asyncio.wait_for(last, HANG_GUARD_SECONDS)).text == "5"


async def test_much_of_everything_is_fine(box: AsyncSandbox) -> None:
    result = await box.interpreter.execute(f"x = '''{'a' * 5_000_000}'''\nlen(x)")
    assert result.text == "5000000"
    flood = await box.interpreter.execute("for _ in range(100): print('x' * 1048575)\n7", output_limit_bytes=100_000)
    assert (flood.status, flood.truncated) == ("completed", True)
    assert len(flood.stdout) < 200_000
    odd = await box.interpreter.execute("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe\\n')\nprint('\\ud800');")
    assert odd.stdout == "��\n\\ud800\n"
    assert (await box.interpreter.execute("'\\ud800'")).ok
    assert (await box.exec("ls -A /tmp")).stdout == ""


async def test_slow_reader_loses_output_but_not_the_end(box: AsyncSandbox) -> None:
    await box.interpreter.execute("1")
    events = box.interpreter.run("for _ in range(64): print('x' * 1048575)\nopen('done', 'w').close()")
    await anext(events)
    while not await box.files.exists("done"):
        await asyncio.sleep(0.05)
    rest = await asyncio.wait_for(collect(events), HANG_GUARD_SECONDS)
    assert rest[-1].status == "completed"
    lost = sum(event.lost_bytes for event in rest)
    assert 64 * 1024 * 1024 > lost > 16 * 1024 * 1024
    assert (await box.interpreter.execute("1")).text == "1"


async def test_lying_driver_harms_only_itself(box: AsyncSandbox) -> None:
    process = box.interpreter._contexts.get("default")
    assert process is None
    await box.interpreter.execute("1")
    find = (
        "import gc, os, sys\n"
        "channel = next(o for o in gc.get_objects() if type(o).__name__ == 'Channel')\n"
        "def forge(text): os.write(1, channel.mark + b'99.' + text + b'\\n')\n"
    )
    await box.interpreter.execute(find)
    lies = (
        'b\'{"event": "result", "data": 5}\'',
        'b\'{"event": "result", "data": {"text/plain": "\\\\ud800"}}\'',
        'b\'{"event": "error", "name": {"x": 1}}\'',
        'b\'{"event": "begin", "run": [1]}\'',
        "b'[' * 3000",
        'b\'{"event": "end", "run": "nobody"}\'',
        'b\'{"event": "pong", "ping": {}}\'',
    )
    for lie in lies:
        result = await asyncio.wait_for(box.interpreter.execute(f"forge({lie})"), HANG_GUARD_SECONDS)
        json.dumps([dict(shown) for shown in (*result.displays, result.result or {})], ensure_ascii=False).encode()
    assert (await box.exec("echo fine")).stdout == "fine\n"
    await box.interpreter.restart()
    assert (await box.interpreter.execute("1 + 1")).text == "2"


async def test_channel_that_the_code_closes_ends_only_the_context(box: AsyncSandbox) -> None:
    result = await asyncio.wait_for(box.interpreter.execute("import os\nos.closerange(0, 4096)"), HANG_GUARD_SECONDS)
    assert (result.status, result.fresh) == ("died", True)
    assert (await box.interpreter.execute("1 + 1")).text == "2"


async def test_follow_tells_a_run_again_and_changes_nothing(box: AsyncSandbox) -> None:
    assert await collect(box.interpreter.follow()) == []
    events = await collect(box.interpreter.run("print('one')\n1"))
    assert await collect(box.interpreter.follow()) == events
    second = await collect(box.interpreter.run("print('two')"))
    assert await collect(box.interpreter.follow()) == second
    assert await collect(box.interpreter.follow(run=events[0].run)) == events
    running = box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)")
    await wait_for_text(running, "go")
    follower = box.interpreter.follow()
    await wait_for_text(follower, "go")
    await follower.aclose()  # type: ignore[attr-defined]
    assert (await box.interpreter.contexts())[0].active
    await box.interpreter.interrupt()
    assert (await collect(running))[-1].status == "interrupted"


async def test_end_of_the_sandbox_ends_a_run(backend: EmbeddedBackend) -> None:
    box = await backend.create(Spec())
    events = box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)")
    await wait_for_text(events, "go")
    await box.kill()
    with pytest.raises(SandboxGoneError):
        await asyncio.wait_for(collect(events), HANG_GUARD_SECONDS)
    await box.aclose()
    with pytest.raises((SandboxClosedError, SandboxGoneError)):
        await box.interpreter.execute("1")


async def test_signal_that_ended_it_is_said(box: AsyncSandbox) -> None:
    result = await box.interpreter.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (result.status, result.fresh) == ("died", True)
    assert "signal 9" in result.reason


DYING_HOST = """
import asyncio, os, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec

async def main():
    box = await EmbeddedBackend(sys.argv[1]).create(Spec())
    name = await box.detach()
    await box.interpreter.execute("x = 41")
    opened = await box.interpreter.open_context(cwd="/tmp")
    code = "import time\\nprint('go')\\nwhile True:\\n    time.sleep(0.01)"
    async for event in box.interpreter.run(code, context=opened.id):
        if "go" in event.text:
            print(name, opened.id, flush=True)
            os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_contexts_of_a_detached_sandbox_outlive_a_killed_host(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", DYING_HOST, str(tmp_path)]
    host = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert host.returncode == -9, host.stderr
    name, opened = host.stdout.split()
    backend = EmbeddedBackend(tmp_path)
    try:
        async with await backend.connect(name) as box:
            assert (await box.interpreter.execute("x + 1")).text == "42"
            found = {info.id: info for info in await box.interpreter.contexts()}
            assert (found[opened].cwd, found[opened].active) == ("/tmp", True)
            follower = box.interpreter.follow(opened)
            await wait_for_text(follower, "go")
            assert await box.interpreter.interrupt(opened) is True
            assert (await collect(follower))[-1].status == "interrupted"
            assert (await box.interpreter.execute("time.__name__", context=opened)).text == "'time'"
            await box.interpreter.close_context(opened)
            assert [info.id for info in await box.interpreter.contexts()] == ["default"]
            await box.kill()
    finally:
        await backend.aclose()


def test_sync_door_has_it_too() -> None:
    with Sandbox() as box:
        box.interpreter.execute("x = 20")
        events = list(box.interpreter.run("print('hi')\nx + 1"))
        assert [(event.kind, event.text or event.data.get("text/plain")) for event in events] == [
            ("stdout", "hi\n"), ("result", "21"), ("end", None),
        ]  # fmt: skip
        for event in box.interpreter.run("import time\nprint('go')\ntime.sleep(1000)"):
            if "go" in event.text:
                break
        assert box.interpreter.execute("x").text == "20"
        context = box.interpreter.open_context()
        assert context.id in {info.id for info in box.interpreter.contexts()}
        box.interpreter.close_context(context.id)


# Charts.

PLOTS = """
import matplotlib.pyplot as plt
plt.plot([1, 2], [3, 4], label="a")
plt.title("T")
plt.show()
plt.figure()
plt.bar(["a", "b"], [1, 2.5])
plt.figure()
plt.pie([25, 75], labels=["p", "q"])
plt.figure()
plt.boxplot([[1, 2, 3, 4, 100]])
figure, (left, right) = plt.subplots(1, 2)
left.scatter([1], [2]); right.plot([1, 2]);
"""


@pytest.fixture(scope="module")
async def plotting(backend: EmbeddedBackend) -> AsyncIterator[AsyncSandbox]:
    async with await backend.create(Spec(packages=("matplotlib",))) as box:
        yield box


def check_plots(charts: list[dict[str, object]]) -> None:
    kinds = [chart["type"] for chart in charts]
    assert kinds == ["line", "bar", "pie", "box_and_whisker", "composite_chart"]
    line, bar, pie, whisker, composite = charts
    assert (line["title"], line["elements"]) == ("T", [{"label": "a", "points": [[1, 3], [2, 4]]}])
    assert bar["elements"] == [
        {"label": "a", "value": "1", "group": ""}, {"label": "b", "value": "2.5", "group": ""},
    ]  # fmt: skip
    assert pie["elements"] == [
        {"label": "p", "angle": 90, "radius": 1}, {"label": "q", "angle": 270, "radius": 1},
    ]  # fmt: skip
    assert whisker["elements"] == [
        {"label": "1", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [100]}
    ]
    assert [part["type"] for part in composite["elements"]] == ["scatter", "line"]  # type: ignore[attr-defined]
    parsed = [parse_chart(ToolboxChart.from_dict(chart)) for chart in charts]
    assert [type(chart) for chart in parsed] == [LineChart, BarChart, PieChart, BoxAndWhiskerChart, CompositeChart]
    assert parsed[0].elements[0].points == [[1, 3], [2, 4]]
    assert [element.value for element in parsed[1].elements] == ["1", "2.5"]
    assert all(str(chart["png"]).startswith("iVBOR") for chart in charts)


@pytest.mark.needs_network
async def test_figures_are_shown_with_their_data(plotting: AsyncSandbox) -> None:
    result = await plotting.interpreter.execute(PLOTS)
    assert result.status == "completed", result
    check_plots([dict(chart) for chart in result.charts])
    assert (await plotting.interpreter.execute("plt.get_fignums()")).text == "[]"
    again = await plotting.interpreter.execute("figure")
    assert [chart["type"] for chart in again.charts] == ["composite_chart"]
    assert set(again.result or {}) >= {"image/png", "text/plain"}


SHOWN_ONE_BY_ONE = """
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.title("first"); plt.show()
plt.bar(["a"], [1]); plt.show()
plt.scatter([1], [2]); plt.show(block=False); plt.title("third"); plt.show()
plt.savefig("late.png")
"""


@pytest.mark.needs_network
async def test_a_plot_that_was_shown_is_over(plotting: AsyncSandbox) -> None:
    wanted = [("line", "first"), ("bar", ""), ("scatter", ""), ("scatter", "third")]
    charts = (await run_with_charts(plotting, SHOWN_ONE_BY_ONE)).charts
    assert [(chart["type"], chart["title"]) for chart in charts] == wanted
    result = await plotting.interpreter.execute(SHOWN_ONE_BY_ONE)
    assert [(chart["type"], chart["title"]) for chart in result.charts] == wanted


@pytest.mark.needs_network
async def test_snippet_gives_its_charts_apart_from_what_it_prints(plotting: AsyncSandbox) -> None:
    code = PLOTS + "print('dtn_artifact_k39fd2:{}')\nimport sys\nprint(sys.argv[1:], __name__)\n1 / 0"
    result = await plotting.run_code(code, charts=True, args=["x"])
    check_plots([dict(chart) for chart in result.charts])
    assert len(result.pngs) == len(result.charts)
    assert result.stdout == "dtn_artifact_k39fd2:{}\n['x'] __main__\n"
    line = len(code.splitlines())
    assert f'snippet.py", line {line}, in <module>\n    1 / 0' in result.stderr
    assert result.stderr.count("File ") == 1
    assert (result.exit_code, result.language) == (1, "python")
    assert (await plotting.exec("ls -A /tmp | grep corral")).stdout == ""


async def test_snippet_without_figures_is_a_plain_snippet(box: AsyncSandbox) -> None:
    code = "import sys\nprint(sorted(globals()), sys.path[0], sys.argv[1:])\ninput()"
    result = await run_with_charts(box, code, args=["a b"], stdin="x\n")
    plain = await box.run_code(code, args=["a b"], stdin="x\n")
    assert (result.stdout, result.exit_code, result.charts) == (plain.stdout, plain.exit_code, ())
    forged = (
        "import glob\nopen(glob.glob('/tmp/.corral-*')[0] + '/charts.jsonl', 'w').write('[]\\n{\"type\": 5}\\n' * 9)"
    )
    assert (await run_with_charts(box, forged)).charts == ()


SCRIPT = """
import asyncio
from corral import AsyncSandbox

async def main():
    async with AsyncSandbox() as box:
        run = box.interpreter.execute
        await run("x = 41")
        assert (await run("x + 1")).text == "42"
        result = await run("import time\\nprint('begun')\\ntime.sleep(1000)", timeout=3)
        assert (result.status, result.stdout, result.fresh) == ("timeout", "begun\\n", False), result
        assert (await run("x")).text == "41"
        result = await run("import signal\\nsignal.signal(2, signal.SIG_IGN)\\ntime.sleep(1000)", timeout=3)
        assert (result.status, result.fresh) == ("timeout", True), result
        result = await run("import os\\nos._exit(3)")
        assert (result.status, result.fresh) == ("died", True), result
        context = await box.interpreter.open_context(cwd="/tmp")
        assert (await run("import os; os.getcwd()", context=context.id)).text == "'/tmp'"
        await box.interpreter.close_context(context.id)
    print("FINE")

asyncio.run(main())
"""


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_ordinary_user_has_it_as_well(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(SCRIPT, env={"CORRAL_DATA_DIR": str(ordinary_user.home / "data")}, timeout=100)
    assert done.stdout.strip().endswith("FINE"), done.stderr
