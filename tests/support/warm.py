"""Runs Python programs in children of a process that has the big packages imported already.

An agent framework takes seconds to import, and the programs of the docs and examples do it dozens of times. A program
is run as `python FILE` runs it, with its own folder, environment and output, and ends as that does: exit code,
traceback, threads and what was registered for the exit. Only `sys.modules` is fuller at its start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path

IMPORTED = ("ag2", "pydantic_ai", "pydantic_ai.models.function")
LAZY = ("daytona", "corral", "corral.adapters.ag2", "corral.adapters.pydantic_ai")
"""Packages that import what their names stand for when a name is asked for."""


def run_program(file: Path, *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a file to its end; what it printed, and its exit code, 128 more than the signal's number for a killed one."""
    parent = _start_parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        request = {"file": str(file), "cwd": str(cwd), "env": dict(env), "stdout": str(stdout), "stderr": str(stderr)}
        try:
            parent.stdin.write(json.dumps(request) + "\n")
            parent.stdin.flush()
            answer = parent.stdout.readline()
        except BaseException:
            # The test is out of time: the answer that will still come must not be taken for the next test's.
            _start_parent.cache_clear()
            raise
        assert answer, f"the warm process has ended: {parent.wait(timeout=10)}"
        return subprocess.CompletedProcess(
            ["python", str(file)], int(answer), stdout.read_text(encoding="utf-8"), stderr.read_text(encoding="utf-8")
        )


@cache
def _start_parent() -> subprocess.Popen[str]:
    parent = subprocess.Popen(
        [sys.executable, "-m", "support.warm"], cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(_end_parent, parent, os.getpid())
    return parent


def _end_parent(parent: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() == owner:  # a test's forked child ends in the same way, and the process is not its own
        with contextlib.suppress(subprocess.TimeoutExpired):
            parent.communicate(timeout=60)  # closes its standard input, which ends it


def serve() -> str | None:
    """Answer requests with exit codes. In a child, return the file to run."""
    _import_all()
    gc.collect()
    gc.freeze()  # the children need not look through it again
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _settle(request)
            return str(request["file"])
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(code if code >= 0 else 128 - code, flush=True)
    return None


def _import_all() -> None:
    for name in (*IMPORTED, *LAZY):
        try:
            module = importlib.import_module(name)
            for attribute in module.__all__ if name in LAZY else ():
                getattr(module, attribute)
        except (ImportError, AttributeError):
            pass  # then the program will say so


def _settle(request: dict[str, object]) -> None:
    """Become what a freshly started Python would be."""
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload] # a mapping of texts, by `run_program`
    for number, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - they live as long as the program
    sys.argv = [str(request["file"])]
    sys.path[0] = str(Path(str(request["file"])).parent)


def _run(file: str) -> int:
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as Python itself tells of whatever a program lets go
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__" and (file := serve()) is not None:
    code = _run(file)
    # What an interpreter does at its end, but for taking its modules apart: there are thousands, and the process ends.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
