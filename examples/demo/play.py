"""The order of the demo, and how each part of it is shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from pathlib import Path

import corral
import snippet
from contest import hold_contest
from corral.backends.embedded import EmbeddedBackend, report
from corral.cli.display import Progress, columns, cut, paint, plain, show_seconds, show_size, table, unicode_wanted
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, CorralError
from corral.results import ExecResult
from corral.spec import Resources
from snippet import Snippet

_LIMITS = Resources(memory_bytes=256 << 20, processes=64, disk_bytes=256 << 20)
_NAMES = {
    "processes": "processes", "mounts": "mounts and loop devices", "cgroups": "cgroups", "folders": "sandbox folders",
}  # fmt: skip

progress = Progress()


async def play() -> int:
    """The whole demo; 0 when everything went as it should."""
    begun = time.monotonic()
    with _own_data_folder() as folder:
        backend = EmbeddedBackend(folder)
        before = await asyncio.to_thread(report.count_traces, folder)
        try:
            good = await _play(backend)
        finally:
            progress.clear()
            await backend.aclose()
        after = await asyncio.to_thread(report.count_traces, folder)
        good &= _show_proof(before, after)
    _say(paint(f"All of it took {show_seconds(time.monotonic() - begun)}.", "bold"), "")
    program = _find_program()
    _say(
        f"Next:  {program} shell                a terminal in a sandbox",
        f"       {program} doctor --prove       attack one with every hostile probe",
        f"       {program} forge init contest   a contest of your own to start from",
    )
    return 0 if good else 1


def _find_program() -> str:
    """How to call us from here."""
    beside = Path(".venv/bin/corral")
    return str(beside) if beside.exists() else "corral"


@contextlib.contextmanager
def _own_data_folder() -> Iterator[Path]:
    """A data folder without the user's sandboxes."""
    if configured := os.environ.get("CORRAL_DATA_DIR"):
        yield Path(configured).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="corral-demo-") as folder:
        yield Path(folder).resolve()  # TMPDIR may be a link, and a data folder has none in its path


async def _play(backend: EmbeddedBackend) -> bool:
    progress.show("starting the engine …")
    able = await backend.capabilities()
    _say(
        paint(f"Corral {corral.__version__}", "bold") + ": code that you don't trust, in its own sandbox",
        paint(f"{platform.system()} {platform.release()}, {able.isolation}, limits {able.limits}, network none", "dim"),
        "",
    )
    good = True
    _head("Four languages, each in a fresh sandbox")
    for each in snippet.LANGUAGES:
        good &= await _show_language(backend, each)
    _head("One sandbox: what is written stays for the next program")
    async with _open(backend) as box:
        for each in snippet.STATE:
            good &= await _show(box, each)
    _head("A hostile program, and what stops it")
    async with _open(backend, resources=_LIMITS) as box:
        for each in snippet.HOSTILE:
            good &= await _show(box, each, hostile=True)
        result = await box.run_code('print("still here")', timeout=20)
        _say(f"  {_tick(good=result.ok)} the sandbox itself goes on: {plain(result.stdout.strip())}", "")
        good &= result.ok
    _head(f"A program that never ends, with a timeout of {show_seconds(snippet.STUBBORN.timeout)}")
    async with _open(backend) as box:
        good &= await _show(box, snippet.STUBBORN, hostile=True)
    _head("A contest: five candidates, one objective, a sandbox for each")
    return good & await hold_contest(backend, tell=progress.show, say=_say)


@contextlib.asynccontextmanager
async def _open(backend: EmbeddedBackend, *, resources: Resources | None = None) -> AsyncIterator[AsyncSandbox]:
    begun = time.monotonic()
    async with AsyncSandbox(backend=backend, resources=resources) as box:
        opened = time.monotonic() - begun
        yield box
        begun = time.monotonic()
    _say(
        paint(f"  sandbox made in {show_seconds(opened)}, gone in {show_seconds(time.monotonic() - begun)}", "dim"), ""
    )


async def _show_language(backend: EmbeddedBackend, each: Snippet) -> bool:
    begun = time.monotonic()
    try:
        async with AsyncSandbox(backend=backend) as box:
            opened = time.monotonic() - begun
            result = await _run(box, each)
    except BackendUnavailableError as error:
        if error.op != "run_code":
            raise  # it is not the language that is missing
        if each.language == "typescript" and await _install_typescript(backend.data_folder):
            return await _show_language(backend, each)
        _say(f"  {paint(each.title, 'bold')}", f"  {_tick(good=None)} {plain(error.message)}")
        _say(*(paint(f"    {line}", "cyan") for line in _wrap(f"to have it: {error.hint}")), "")
        return True
    _say_result(each, result, f"sandbox made in {show_seconds(opened)}")
    return result.ok


async def _install_typescript(data_folder: Path) -> bool:
    """Corral's own small runtime, from npm, once and into the demo's own folder."""
    try:
        from corral.backends.embedded.typescript import setup
    except ImportError:
        return False
    if setup.installed(data_folder) is not None or shutil.which("npm") is None or shutil.which("node") is None:
        return False
    progress.show("no TypeScript here yet: corral setup typescript …")
    try:
        await asyncio.to_thread(setup.install, data_folder, on_progress=lambda text: progress.show(plain(str(text))))
    except (CorralError, OSError) as error:
        _say(
            *(paint(f"  {line}", "dim") for line in _wrap(f"corral setup typescript did not work: {plain(str(error))}"))
        )
        return False
    _say(paint("  (corral setup typescript: a small runtime from npm, in the demo's own folder)", "dim"), "")
    return True


async def _run(box: AsyncSandbox, each: Snippet) -> ExecResult:
    progress.show(f"{each.title} …")
    try:
        return await box.run_code(each.code, each.language, timeout=each.timeout)
    finally:
        progress.clear()


async def _show(box: AsyncSandbox, each: Snippet, *, hostile: bool = False) -> bool:
    result = await _run(box, each)
    limits = box.spec.resources
    stopped = each.stopped_by.format(memory=show_size(limits.memory), processes=limits.processes)
    _say_result(each, result, stopped=stopped)
    return not result.ok if hostile else result.ok


# How it looks.


def _say_result(each: Snippet, result: ExecResult, remark: str = "", *, stopped: str = "") -> None:
    bar = "│" if unicode_wanted() else "|"
    _say(f"  {paint(each.title, 'bold')}")
    _say(*(paint(f"  {bar} {cut(line, columns() - 5)}", "dim") for line in each.code.splitlines()))
    lines = [plain(line) for line in result.output.splitlines() if line.strip()]
    if not result.ok and any(line.startswith("Traceback") for line in lines):
        lines = [line for line in lines if not line.startswith((" ", "Traceback", "During handling"))]
    for line in lines[-4:]:
        _say(f"  {'→' if unicode_wanted() else '>'} {cut(line, columns() - 5)}")
    if not result.ok:
        _say(f"  {_tick(good=bool(stopped))} {_ending(result)}" + (":" if stopped else ""))
        _say(*(f"    {paint(line, 'green')}" for line in _wrap(stopped)))
    _say(paint(f"    {_cost(result)}{f' · {remark}' if remark else ''}", "dim"), "")


def _ending(result: ExecResult) -> str:
    if result.reason == "timeout":
        return f"ended after {show_seconds(result.usage.wall_seconds)} by the timeout, exit code {result.exit_code}"
    if result.reason == "oom":
        return "ended for want of memory"
    if result.reason == "signalled":
        return f"ended by signal {result.signal}"
    return f"refused, exit code {result.exit_code}"


def _cost(result: ExecResult) -> str:
    usage = result.usage
    parts = (
        show_seconds(usage.wall_seconds),
        f"CPU {show_seconds(usage.cpu_seconds)}",
        show_size(usage.peak_memory_bytes),
    )
    return " · ".join(parts)


def _show_proof(before: report.Traces, after: report.Traces) -> bool:
    _head("What is left behind")
    rows, clean = [], True
    for field in fields(before):
        if field.name not in _NAMES:
            continue
        first, last = getattr(before, field.name), getattr(after, field.name)
        clean &= last <= first
        rows.append([_tick(good=last <= first), _NAMES[field.name], str(first), str(last)])
    headers = ["", "", "before", "after"]
    _say(*table(rows, headers=headers, align=["left", "left", "right", "right"], indent=2), "")
    return clean


def _head(text: str) -> None:
    line = "─" if unicode_wanted() else "-"
    _say(paint(f"{text} ", "bold", "cyan") + paint(line * max(0, columns() - len(text) - 1), "dim"), "")


def _tick(*, good: bool | None) -> str:
    if good is None:
        return paint("·" if unicode_wanted() else "-", "dim")
    if good:
        return paint("✓" if unicode_wanted() else "+", "green", "bold")
    return paint("✗" if unicode_wanted() else "x", "red", "bold")


def _wrap(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, columns() - 6, break_on_hyphens=False)


def _say(*lines: str) -> None:
    progress.clear()
    for line in lines:
        print(line, flush=True)
