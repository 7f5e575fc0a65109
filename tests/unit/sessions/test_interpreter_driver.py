"""The interpreter's driver as a plain program, and the host's side of its frames: no sandbox is needed for either."""

import ast
import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.client import sync
from corral.concurrency.turn import Turn
from corral.inside.bundle import bundle
from corral.sessions.interpreter import contexts
from corral.sessions.interpreter.chartdata import check_chart, parse_charts
from corral.sessions.interpreter.frames import MAX_EVENT_BYTES, FrameReader, parse_json
from corral.sessions.interpreter.oneshot import CHARTS_PART
from corral.sessions.interpreter.process import DRIVER_PARTS

TOKEN = "0123456789abcdef"
HANG_GUARD_SECONDS = 60


class Driver:
    """The driver, with its two streams told apart into text and events."""

    def __init__(self, folder: Path) -> None:
        inside = folder / "inside"
        inside.mkdir()
        (inside / "driver.py").write_bytes(bundle(*DRIVER_PARTS))
        (inside / "charts.py").write_bytes(bundle(CHARTS_PART))
        self.inside = inside
        self.runs = 0
        self.stderr = folder / "stderr"
        with self.stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(inside / "driver.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=folder, start_new_session=True,
            )  # fmt: skip
        self.reader = FrameReader(TOKEN)
        self.send({"mark": TOKEN})
        assert self.read_until("ready")[-1]["event"] == "ready"

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def read_until(self, kind: str) -> list[Any]:
        """Text and events up to one of that kind; of a driver that ends, up to its end."""
        assert self.process.stdout is not None
        found: list[Any] = []
        while data := os.read(self.process.stdout.fileno(), 65536):
            found += self.reader.feed(data)
            if any(isinstance(item, dict) and item["event"] == kind for item in found):
                break
        return found

    def begin(self, code: str, **more: Any) -> None:
        self.runs += 1
        self.send({"run": str(self.runs), "code": code, **more})

    def run(self, code: str, **more: Any) -> "Run":
        self.begin(code, **more)
        return Run(self.read_until("end"))

    def read_stderr(self) -> str:
        """What was printed there, up to the end of the last run: that is told here after it is told on stdout."""
        self.send({"ping": "all written"})
        self.read_until("pong")
        pieces = FrameReader(TOKEN).feed(self.stderr.read_bytes())
        return b"".join(piece for piece in pieces if isinstance(piece, bytes)).decode()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(HANG_GUARD_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


class Run:
    """What one run told."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found
        self.stdout = b"".join(item for item in found if isinstance(item, bytes))
        self.events = [item for item in found if isinstance(item, dict)]

    def get(self, kind: str) -> dict[str, Any]:
        (event,) = [event for event in self.events if event["event"] == kind]
        return event

    @property
    def state(self) -> str:
        return str(self.get("end")["state"])

    @property
    def text(self) -> str:
        return str(self.get("result")["data"]["text/plain"])


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def test_text_sent_inside_stands_alone_and_is_old_python() -> None:
    for text in (bundle(*DRIVER_PARTS), bundle(CHARTS_PART)):
        tree = ast.parse(text, feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names, name


def test_driver_leaves_no_file_behind(driver: Driver) -> None:
    assert not driver.inside.exists()


def test_state_is_kept(driver: Driver) -> None:
    assert driver.run("import math\nx = 20\ndef double(n): return n * 2").state == "completed"
    assert driver.run("double(x) + math.floor(2.5)").text == "42"
    assert driver.run("_ + 1").text == "43"
    assert driver.run("import os; os.mkdir('sub'); os.chdir('sub')").state == "completed"
    assert driver.run("os.path.basename(os.getcwd())").text == "'sub'"


def test_last_expression_is_the_result_unless_it_is_none_or_silenced(driver: Driver) -> None:
    for code in ("x = 1", "None", "1 + 1;", "", "# nothing", "print('x')"):
        assert [event["event"] for event in driver.run(code).events] == ["begin", "end"], code
    assert driver.run("if True:\n    pass\n'ä'").text == "'ä'"


def test_future_statements_hold_for_later_runs(driver: Driver) -> None:
    driver.run("from __future__ import annotations")
    assert driver.run("def f(x: nonsense): pass\nf.__annotations__").text == "{'x': 'nonsense'}"


def test_await_works_at_the_top_with_one_loop_for_all_runs(driver: Driver) -> None:
    driver.run("import asyncio")
    assert driver.run("task = asyncio.ensure_future(asyncio.sleep(0, 'later'))\nawait asyncio.sleep(0)").state == (
        "completed"
    )
    assert driver.run("await task").text == "'later'"
    assert driver.run("[x async for x in (i async for i in agen())]").state == "failed"
    assert driver.run("asyncio.run(asyncio.sleep(0, 'own loop'))").text == "'own loop'"
    assert driver.run("await asyncio.sleep(0, 'again')").text == "'again'"


def test_traceback_has_the_codes_own_lines_and_no_frame_of_ours(driver: Driver) -> None:
    driver.run("def f():\n    # a comment\n    return 1 / 0")
    error = driver.run("\n\nf()").get("error")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert 'File "<run 2>", line 3, in <module>\n    f()' in error["traceback"]
    assert 'File "<run 1>", line 3, in f\n    return 1 / 0' in error["traceback"]
    assert "driver.py" not in error["traceback"]
    chained = driver.run("try:\n    f()\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e").get("error")
    assert "direct cause" in chained["traceback"]
    assert "driver.py" not in chained["traceback"]
    deep = driver.run("def g(n): return g(n + 1)\ng(0)").get("error")
    assert deep["name"] == "RecursionError"
    assert "driver.py" not in deep["traceback"]
    led_back = driver.run("class R:\n    def _repr_html_(self): raise KeyboardInterrupt\ndisplay(R())").get("error")
    assert "in _repr_html_" in led_back["traceback"]
    assert "driver.py" not in led_back["traceback"]


def test_syntax_error_shows_its_line(driver: Driver) -> None:
    error = driver.run("x = 1\ny = = 2").get("error")
    assert error["name"] == "SyntaxError"
    assert 'File "<run 1>", line 2' in error["traceback"]
    assert "y = = 2" in error["traceback"]
    assert "driver.py" not in error["traceback"]


def test_children_print_in_order_with_the_code(driver: Driver) -> None:
    code = (
        "import os, subprocess, sys\nfor i in range(50):\n    print('a', end='')\n    os.system('printf b')\n"
        "    print('c', end='')\n    subprocess.run(['printf', 'd'])\n    sys.stdout.write('e\\n')"
    )
    assert driver.run(code).stdout == b"abcde\n" * 50


def test_events_stand_where_they_happened(driver: Driver) -> None:
    found = driver.run("for i in range(3):\n    print(i)\n    display(i)").found[1:-1]
    shown = [item.decode() if isinstance(item, bytes) else item["data"]["text/plain"] for item in found]
    assert shown == ["0\n", "0", "1\n", "1", "2\n", "2"]


def test_values_are_shown_as_rich_as_they_are(driver: Driver) -> None:
    driver.run(
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>x</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "    def _repr_json_(self): return {'a': [1]}\n"
        "    def _repr_markdown_(self): return '*x*', {'m': 1}\n"
        "    def _repr_svg_(self): raise RuntimeError\n"
        "    def __repr__(self): return 'rich'\n"
        "class Bundle:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'p', 'x/y': 1}, {'z': 2}\n"
    )
    result = driver.run("Rich()").get("result")
    assert result["data"] == {
        "text/plain": "rich", "text/html": "<b>x</b>", "image/png": "iVBORw==", "application/json": {"a": [1]},
        "text/markdown": "*x*",
    }  # fmt: skip
    assert result["metadata"] == {"text/markdown": {"m": 1}}
    bundle = driver.run("Bundle()").get("result")
    assert (bundle["data"], bundle["metadata"]) == ({"text/plain": "p", "x/y": 1}, {"z": 2})
    assert driver.run("Rich").text == "<class '__main__.Rich'>"
    assert list(driver.run("from unittest.mock import MagicMock\nMagicMock()").get("result")["data"]) == ["text/plain"]
    assert driver.run("display({'text/html': '<i>'}, raw=True)").get("display")["data"] == {"text/html": "<i>"}


def test_values_that_cannot_be_shown_harm_nobody(driver: Driver) -> None:
    driver.run("class Bad:\n    def __repr__(self): raise ValueError('no')\n    def __str__(self): raise ValueError")
    assert "its repr raised ValueError" in driver.run("Bad()").text
    assert driver.run("class E(Exception):\n    __str__ = Bad.__str__\nraise E").get("error")["name"] == "E"
    assert driver.run("class R:\n    def _repr_json_(self): return {1, 2}\nR()").state == "completed"
    large = driver.run("class L:\n    def _repr_html_(self): return 'x' * 20_000_000\nL()").get("result")["data"]
    assert list(large) == ["text/plain"]
    assert "text/html left out" in large["text/plain"]
    assert len(driver.run("'x' * 5_000_000").text) < 2_000_000
    assert driver.run("x = []\nfor _ in range(100_000): x = [x]\nx").state in ("completed", "failed")
    assert driver.run("1").text == "1"


def test_large_event_comes_whole_though_others_print_into_it(driver: Driver) -> None:
    code = (
        "import subprocess\nchild = subprocess.Popen('while :; do echo noise; done', shell=True)\n"
        "class Big:\n    def _repr_html_(self): return 'é' * 300_000\ndisplay(Big())\nchild.kill()\nchild.wait();"
    )
    run = driver.run(code)
    assert run.get("display")["data"]["text/html"] == "é" * 300_000
    assert set(run.stdout.split()) <= {b"noise"}


def test_environment_is_for_one_run(driver: Driver) -> None:
    driver.run("import os\nos.environ['KEPT'] = 'mine'")
    code = "(os.environ['KEPT'], os.environ['NEW'], os.popen('echo $NEW').read())"
    assert driver.run(code, envs={"KEPT": "run", "NEW": "é"}).text == "('run', 'é', 'é\\n')"
    assert driver.run("(os.environ['KEPT'], os.environ.get('NEW'))").text == "('mine', None)"


def test_input_says_that_it_is_not_available(driver: Driver) -> None:
    error = driver.run("input('name? ')").get("error")
    assert error["name"] == "EOFError"
    assert "not available" in error["value"]
    assert driver.run("import sys\nsys.stdin.read()").text == "''"
    assert driver.run("import os\nos.read(0, 1)").text == "b''"
    assert driver.run("import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout").text == "b''"


def test_exit_ends_the_run_and_keeps_the_state(driver: Driver) -> None:
    for code in ("x = 5\nexit(3)", "import sys; sys.exit('reason')", "raise SystemExit", "quit()"):
        run = driver.run(code)
        assert (run.state, run.get("error")["name"]) == ("failed", "SystemExit"), code
    assert driver.run("x").text == "5"


def test_hard_exit_ends_the_process(driver: Driver) -> None:
    driver.begin("import os\nos._exit(7)")
    driver.read_until("end")
    assert driver.process.wait(HANG_GUARD_SECONDS) == 7


def test_interrupt_keeps_the_state(driver: Driver) -> None:
    codes = (
        "import time\nx = 1\nprint('go')\ntime.sleep(1000)",
        "print('go')\nwhile True: pass",
        "import asyncio\nprint('go')\nawait asyncio.sleep(1000)",
        "import subprocess\nprint('go')\nsubprocess.run(['sleep', '1000'])",
        "print('go')\nwhile True: print('x' * 1000)",
        "print('go')\nwhile True: display('x' * 10_000)",
    )
    assert driver.process.stdout is not None
    for code in codes:
        driver.begin(code)
        seen = b""
        while b"go\n" not in seen:
            seen += os.read(driver.process.stdout.fileno(), 65536)
        os.killpg(driver.process.pid, signal.SIGINT)
        # As the host does: a signal just before a blocking call is seen by Python only after it, so there is a second.
        while not select.select([driver.process.stdout], [], [], 5)[0]:
            os.killpg(driver.process.pid, signal.SIGINT)
        run = Run(driver.reader.feed(seen) + driver.read_until("end"))
        assert run.state == "interrupted", code
        assert run.get("error")["name"] == "KeyboardInterrupt"
        assert "driver.py" not in run.get("error")["traceback"], code
        assert driver.run("x").text == "1"


def test_interrupt_between_runs_is_nobodys(driver: Driver) -> None:
    driver.run("x = 1")
    for _ in range(20):
        os.kill(driver.process.pid, signal.SIGINT)
        assert driver.run("x").text == "1"


def test_code_may_do_what_it_likes_to_its_streams(driver: Driver) -> None:
    codes = (
        "import os, sys\nos.close(1)",
        "os.close(2)",
        "os.close(0)",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "sys.stdout.close()",
        "sys.stderr.close()",
        "sys.stdout = None",
        "sys.__stdout__.close()",
        "os.set_blocking(1, False)",
        "exec('import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)')",
    )
    for code in codes:
        driver.run(code)
        assert driver.run("if sys.stdout is None: sys.stdout = sys.__stdout__\nprint('still')").stdout == b"still\n", (
            code
        )
    run = driver.run(
        "import sys\nclass S:\n    def write(self, t): raise OSError\n    flush = close = write\nsys.stdout = S()"
    )
    assert run.state == "completed"
    assert driver.run("sys.stdout = sys.__stdout__\nprint('still')").stdout == b"still\n"


def test_any_bytes_are_printed(driver: Driver) -> None:
    code = "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\udcff', '\\ud800', 'ä')"
    assert driver.run(code + ";").stdout == bytes(range(256)) + b"\xff \\ud800 \xc3\xa4\n"


def test_standard_error_is_apart_and_told_of_the_end_as_well(driver: Driver) -> None:
    driver.run("import sys, os\nprint('one', file=sys.stderr)\nos.system('echo two >&2');")
    assert driver.read_stderr() == "one\ntwo\n"
    events = [item for item in FrameReader(TOKEN).feed(driver.stderr.read_bytes()) if isinstance(item, dict)]
    assert [event["event"] for event in events] == ["begin", "end"]


def test_forked_child_does_not_become_a_second_interpreter(driver: Driver) -> None:
    code = (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    print('child')\n    {}\n"
        "else:\n    status = os.WEXITSTATUS(os.waitpid(pid, 0)[1])\n    print('parent', status)"
    )
    for end, status in (("pass", 0), ("sys.exit(3)", 3), ("1 / 0", 1)):
        run = driver.run(code.format(end))
        assert run.stdout == f"child\nparent {status}\n".encode()
        assert run.state == "completed"
    pool = (
        "import multiprocessing as m\ndef double(x): return 2 * x\n"
        "with m.get_context('fork').Pool(2) as p: r = p.map(double, [1, 2])\nr"
    )
    assert driver.run(pool).text == "[2, 4]"


def test_thread_that_prints_after_the_run_is_not_lost(driver: Driver) -> None:
    driver.run(
        "import threading\ngate = threading.Event()\ndone = threading.Event()\n"
        "def late():\n    gate.wait()\n    print('late')\n    display('shown')\n    done.set()\n"
        "threading.Thread(target=late, daemon=True).start()"
    )
    assert b"late\n" in driver.run("gate.set()\ndone.wait();").stdout


def test_nothing_of_ours_is_in_the_codes_way(driver: Driver) -> None:
    assert driver.run("sorted(n for n in globals() if not n.startswith('__'))").text == "[]"
    assert driver.run("__name__").text == "'__main__'"
    assert driver.run("import threading\nthreading.active_count()").text == "1"
    assert driver.run("import sys\n(sys.argv, sys.path[0])").text == "([''], '')"
    assert driver.run("class C: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(C()))) is C").text == "True"
    Path(driver.inside.parent / "beside.py").write_text("value = 7\n")
    assert driver.run("import beside\nbeside.value").text == "7"


def test_long_code_comes_by_file(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "request"
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps({"code": f"x = '''{'a' * 5_000_000}'''\nlen(x)", "envs": {}}))
    driver.send({"run": "long", "file": str(folder / "request.json")})
    assert Run(driver.read_until("end")).text == "5000000"
    assert not folder.exists()


# The host's side.


def test_sync_door_has_every_method() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(contexts.Interpreter) == public(sync.Interpreter)


def frame(event: object, number: int = 1, size: int = 1000) -> bytes:
    data = json.dumps(event).encode()
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    marks = [b"+"] * (len(parts) - 1) + [b"."]
    return b"".join(b"\x1e%s:%d%s%s\n" % (TOKEN.encode(), number, m, p) for m, p in zip(marks, parts, strict=True))


def test_frames_are_found_however_they_are_cut() -> None:
    event = {"event": "display", "data": "x" * 2500}
    stream = b"before\x1e" + frame(event) + b"\x1e0123between" + frame(event, 2) + b"after"
    for size in (1, 2, 7, 100, 5000):
        reader = FrameReader(TOKEN)
        found: list[Any] = []
        for start in range(0, len(stream), size):
            found += reader.feed(stream[start : start + size])
        events = [item for item in found if isinstance(item, dict)]
        text = b"".join(item for item in found if isinstance(item, bytes)) + reader.flush()
        assert events == [event, event]
        assert text == b"before\x1e\x1e0123betweenafter"


def test_broken_frames_are_swallowed_or_text_and_never_more() -> None:
    mark = b"\x1e" + TOKEN.encode() + b":"
    for broken in (b"", b".", b"1", b"1.", b"1.{", b"1.[]", b'1.{"event": 3}', b"x.{}", b"1*{}", b"9" * 50 + b".{}"):
        reader = FrameReader(TOKEN)
        found = reader.feed(mark + broken + b"\n" + frame({"event": "ok"}))
        assert found == [{"event": "ok"}], broken
    reader = FrameReader(TOKEN)
    endless = mark + b"1." + b"x" * 10_000
    assert b"".join(item for item in reader.feed(endless) if isinstance(item, bytes)) == endless
    deep = b"[" * 100_000 + b"]" * 100_000
    assert parse_json(deep) is None


def test_event_beyond_the_limit_is_dropped_and_memory_with_it() -> None:
    reader = FrameReader(TOKEN)
    piece = b"\x1e" + TOKEN.encode() + b":1+" + b"x" * 4000 + b"\n"
    for _ in range(MAX_EVENT_BYTES // 4000 + 100):
        assert reader.feed(piece) == []
    assert sum(map(len, reader._parts)) <= MAX_EVENT_BYTES
    assert reader.feed(frame({"event": "ok"}, 2)) == [{"event": "ok"}]


def test_hostile_json_becomes_values_that_any_encoder_takes() -> None:
    value = parse_json('{"a": NaN, "b": -Infinity, "c": 1e999, "d": "\\ud800", "e": 1.5}')
    assert value == {"a": None, "b": None, "c": None, "d": "?", "e": 1.5}
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def test_only_charts_are_taken_for_charts() -> None:
    good = {"type": "line", "title": "t", "png": "aa", "elements": [{"label": "a", "points": [[1, 2.5]]}]}
    assert check_chart(good) == good
    dirty = {
        "type": "bar", "title": 3, "png": ["x"], "evil": "x", "x_ticks": [1, "a", None, True],
        "x_tick_labels": ["a", 1],
        "elements": [{"label": 1, "value": 2, "group": "g", "points": [[1], [1, "a"], 3], "min": "x"}, 5],
    }  # fmt: skip
    assert check_chart(dirty) == {
        "type": "bar", "x_ticks": [1], "x_tick_labels": ["a"], "elements": [{"group": "g", "points": []}],
    }  # fmt: skip
    for bad in (None, 3, [], {}, {"type": "evil"}, {"type": ["line"]}):
        assert check_chart(bad) is None, bad
    nested: dict[str, Any] = {"type": "composite_chart", "elements": []}
    for _ in range(50):
        nested = {"type": "composite_chart", "elements": [nested]}
    assert check_chart(nested) is not None
    lines = b"\n".join([b"no json", json.dumps(good).encode(), b"", b"[]"])
    assert tuple(parse_charts(lines)) == (good,)


async def test_turns_are_taken_in_order_and_a_cancelled_one_is_passed_on() -> None:
    turn = Turn()
    await turn.take()
    order: list[int] = []

    async def wait(number: int) -> None:
        await turn.take()
        order.append(number)
        turn.release()

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    turn.release()
    await asyncio.gather(tasks[0], tasks[2], tasks[3])
    assert order == [0, 2, 3]


async def test_turn_handed_over_to_somebody_cancelled_is_handed_on() -> None:
    turn = Turn()
    await turn.take()
    first = asyncio.create_task(turn.take())
    second = asyncio.create_task(turn.take())
    await asyncio.sleep(0)
    turn.release()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    if not first.cancelled():
        turn.release()
    await asyncio.wait_for(second, HANG_GUARD_SECONDS)
