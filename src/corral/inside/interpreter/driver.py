"""Runs INSIDE a sandbox, under its own python3 (3.8 or newer, standard library only): the stateful interpreter.

The host never imports it: it sends the text, joined with that of `streams.py` and `shown.py` into a single file
(`bundle.py`). Requests come as lines of JSON on standard input, which the code never sees: its own is empty. Output of
the code and its children goes straight to descriptors 1 and 2. Events are sent in between, as frames: a random mark, a
number, JSON, a newline. A frame is one write of at most PIPE_BUF bytes, which the kernel never mixes with another. Code
here can forge a frame, and so deceive itself; the host trusts none.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import builtins
import codecs
import inspect
import json
import linecache
import os
import shutil
import signal
import sys
import traceback
import types
from collections import deque

from corral.inside.interpreter.shown import PLAIN_CHARS, describe, fit
from corral.inside.interpreter.streams import Channel, Raw, Streams, encode_odd, open_text

if False:  # for type checkers alone: nothing is imported that is not needed
    from collections.abc import Callable
    from typing import Any

HERE = __file__
SOURCE_CHARS = 64 * 1024 * 1024


class Interpreter:
    """The state between runs."""

    def __init__(self, channel: Channel, charts: Any) -> None:
        self.channel = channel
        self.charts = charts
        self.pid = os.getpid()
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = builtins
        self.streams = Streams()
        self.running = False
        self.flags = 0
        self.count = 0
        self.sources: deque[tuple[str, int]] = deque()
        self.loop: asyncio.AbstractEventLoop | None = None

    def on_interrupt(self, number: int, frame: Any) -> None:
        """Interrupt the code, but never in the middle of our own writes."""
        if os.getpid() != self.pid:
            raise KeyboardInterrupt
        if self.running and self.streams.guarded:
            self.streams.interrupted = True
        elif self.running:
            raise KeyboardInterrupt

    def send(self, event: dict[str, Any], fds: tuple[int, ...] = (1,)) -> None:
        """Send an event, after all output before it."""
        data = json.dumps(event, ensure_ascii=True).encode("ascii")
        self.streams.enter()
        try:
            try:
                self.streams.put()
            except OSError:
                pass  # the code has closed its stream
            self.channel.send(data, fds)
        finally:
            self.streams.leave()

    # What the code sees.

    def show(self, *values: Any, raw: bool = False, **_: Any) -> None:
        """Show values as rich as they are; `raw=True` takes MIME bundles."""
        for value in values:
            data, metadata = ({str(k): v for k, v in value.items()}, {}) if raw else describe(value, self.charts)
            self.display(data, metadata)

    def display(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        data, metadata = fit(data, metadata or {})
        self.send({"event": "display", "data": data, "metadata": metadata})

    @staticmethod
    def input(prompt: object = "", /) -> str:
        """Refused: there is no terminal to read from."""
        raise EOFError("input() is not available: the interpreter has no terminal and its standard input is empty")

    def prepare(self) -> None:
        """Set this process up as the code expects it."""
        sys.modules["__main__"] = self.main
        sys.argv = [""]
        if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(HERE)):
            del sys.path[0]
        sys.path.insert(0, "")  # imports are looked up in the working folder, wherever that is
        codecs.register_error("corral", encode_odd)
        self.open_streams()
        self.streams.start()
        vars(builtins)["display"] = self.show
        builtins.input = self.input
        signal.signal(signal.SIGINT, self.on_interrupt)

    def open_streams(self) -> None:
        first = not isinstance(getattr(sys.__stdout__, "buffer", None), Raw)
        if first or getattr(sys.stdout, "closed", False) or sys.stdout is None:
            sys.stdout = open_text(self.streams, 1, "<stdout>")
        if first or getattr(sys.stderr, "closed", False) or sys.stderr is None:
            sys.stderr = open_text(self.streams, 2, "<stderr>")
        if first or getattr(sys.__stdout__, "closed", False):
            vars(sys)["__stdout__"] = sys.stdout
            vars(sys)["__stderr__"] = sys.stderr

    # Running.

    def run(self, request: dict[str, Any]) -> None:
        """One run, from its first event to its last."""
        name = str(request["run"])
        self.count += 1
        if "file" in request:
            with open(request["file"], encoding="utf-8", errors="surrogatepass") as file:
                request.update(json.load(file))
            shutil.rmtree(os.path.dirname(request["file"]), ignore_errors=True)
        code = str(request["code"])
        envs = {str(key): str(value) for key, value in request.get("envs", {}).items()}
        saved = {key: os.environ.get(key) for key in envs}
        self.streams.direct = False
        self.send({"event": "begin", "run": name}, (1, 2))
        os.environ.update(envs)
        state = self.guard(lambda: self.evaluate(code, f"<run {self.count}>"))
        # Figures are shown after an error as well, and closed, so that the next run does not draw on them.
        shown = self.guard(lambda: self.charts.flush(show=state != "interrupted"))
        state = shown if state == "completed" else state
        self.streams.interrupted = False
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        self.settle()
        self.send({"event": "end", "run": name, "state": state}, (1, 2))

    def guard(self, action: Callable[[], None]) -> str:
        """Run a part of the code and report its errors; returns how it ended."""
        state = "completed"
        try:
            try:
                self.running = True
                action()
            finally:
                self.running = False
        except BaseException as error:
            if os.getpid() != self.pid:
                end_fork(error)
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.report(error)
        if os.getpid() != self.pid:
            end_fork(None)
        return state

    def evaluate(self, code: str, name: str) -> None:
        lines = code.splitlines(True)
        linecache.cache[name] = (len(code), None, lines, name)
        self.sources.append((name, len(code)))
        while sum(size for _, size in self.sources) > SOURCE_CHARS and len(self.sources) > 1:
            linecache.cache.pop(self.sources.popleft()[0], None)
        # From text, as the tokenizer sees it: a lone surrogate is an error in the code, not in the driver.
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self.flags, True)
        assert isinstance(tree, ast.Module)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        parts = [self.compile(tree, name, "exec")]
        if last is not None:
            parts.append(self.compile(last, name, "eval"))
        value = self.execute(parts)
        if last is not None and value is not None:
            self.main.__dict__["_"] = value
            data, metadata = fit(*describe(value, self.charts))
            self.send({"event": "result", "data": data, "metadata": metadata})

    def compile(self, tree: Any, name: str, mode: str) -> types.CodeType:
        compiled: types.CodeType = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self.flags, True)
        for feature in __future__.all_feature_names:  # `from __future__ import …` holds for the runs that follow
            self.flags |= compiled.co_flags & getattr(__future__, feature).compiler_flag
        return compiled

    def execute(self, parts: list[types.CodeType]) -> Any:
        """Run the parts of a run; returns the value of the last. If one awaits, all of them run in the event loop."""
        if self.loop is not None and not self.loop.is_closed():
            asyncio.set_event_loop(self.loop)
        if not any(part.co_flags & inspect.CO_COROUTINE for part in parts):
            for part in parts:
                value = eval(part, self.main.__dict__)
            return value
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(self.execute_in_loop(parts))
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if os.getpid() == self.pid and not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    async def execute_in_loop(self, parts: list[types.CodeType]) -> Any:
        for part in parts:
            value = eval(part, self.main.__dict__)
            if part.co_flags & inspect.CO_COROUTINE:
                value = await value
        return value

    def settle(self) -> None:
        """After the code: flush its streams, and restore the descriptors, streams and signal handler that we need."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # a stream that the code has replaced
                continue
        self.channel.repair()
        self.open_streams()
        try:
            signal.signal(signal.SIGINT, self.on_interrupt)
        except (ValueError, OSError):
            pass

    def report(self, error: BaseException) -> None:
        """The error as the code's author should see it: without our frames."""
        try:
            shown = format_error(error)
        except BaseException as second:
            shown = f"{type(error).__name__} (its traceback could not be made: {type(second).__name__})\n"
        try:
            value = str(error)
        except BaseException:
            value = "<its str() failed>"
        event = {"event": "error", "name": type(error).__name__, "value": clip(value), "traceback": clip(shown)}
        self.send(event)


def clip(text: str) -> str:
    if len(text) <= PLAIN_CHARS:
        return text
    half = PLAIN_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def strip(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without our frames, and without frames that they called, unless those called the code again."""
    whole = []
    while trace is not None:
        whole.append(trace)
        trace = trace.tb_next
    names = [each.tb_frame.f_code.co_filename for each in whole]
    last = max((index for index, name in enumerate(names) if name.startswith("<run ")), default=-1)
    end = next((index for index in range(last + 1, len(names)) if names[index] == HERE), len(names))
    kept = None
    for index in range(end - 1, -1, -1):
        if names[index] != HERE:
            whole[index].tb_next = kept
            kept = whole[index]
    return kept


def format_error(error: BaseException) -> str:
    seen = set()
    queue: list[BaseException | None] = [error]
    while queue:
        each = queue.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = strip(each.__traceback__)
        queue += [each.__cause__, each.__context__]
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def end_fork(error: BaseException | None) -> None:
    """A child that the code forked has come to the end of the code: it must not go on as a second interpreter."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            status = 1
            sys.stderr.write(format_error(error))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def main() -> None:
    channel = Channel()
    folder = os.path.dirname(os.path.abspath(HERE))
    charts = types.ModuleType("corral_charts")
    with open(os.path.join(folder, "charts.py"), encoding="utf-8") as file:
        exec(compile(file.read(), HERE, "exec"), charts.__dict__)  # under our name: its frames are ours as well
    first = channel.read()
    if first is None:
        return
    channel.mark = b"\x1e" + str(first["mark"]).encode("ascii") + b":"
    interpreter = Interpreter(channel, charts)
    interpreter.prepare()
    charts.install(interpreter.display, close=True)
    shutil.rmtree(folder, ignore_errors=True)
    interpreter.send({"event": "ready", "version": sys.version.split()[0]})
    while True:
        request = channel.read()
        if request is None:
            return
        if "ping" in request:
            interpreter.send({"event": "pong", "ping": request["ping"]})
        elif "run" in request:
            interpreter.run(request)


if __name__ == "__main__":
    main()
