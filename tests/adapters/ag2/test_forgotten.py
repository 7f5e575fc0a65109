"""Programs that make sandboxes with AG2's classes and forget them, raise, are cancelled or killed: none is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daytona import Daytona, DaytonaConfig

from adapters.ag2.conftest import Living
from support.leftovers import instance_mark, list_files, list_groups, list_loops, wait_until
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_userns

HANG_GUARD_SECONDS = 100
PATIENCE = 10

BEGIN = """
import asyncio, gc, os, signal, sys
from corral.adapters.ag2 import *
from corral.adapters.ag2 import CodeBlock

async def make():
    if KIND == "executor":
        found = SandboxCodeExecutor()
    elif KIND == "DaytonaCodeExecutor":
        found = DaytonaCodeExecutor()
    elif KIND == "DaytonaSandbox":
        from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams
        found = DaytonaSandbox(client=AsyncDaytona(), params=CreateSandboxFromSnapshotParams(auto_stop_interval=0))
    else:
        found = globals()[KIND]()
    return found

async def use(found):
    if hasattr(found, "execute_code_blocks"):
        return found.execute_code_blocks([CodeBlock(code="echo used", language="sh")]).output
    if hasattr(found, "run"):
        return (await found.run("echo used", "bash")).output
    if hasattr(found, "open"):
        async with found.open() as sandbox:
            return (await sandbox.exec(["echo", "used"])).output
    return (await found.exec(["echo", "used"])).output

def say():
    print("done", flush=True)
"""

PROGRAMS = {
    "forgets": """
found = asyncio.run(make())
assert asyncio.run(use(found)) == "used\\n"
say()
""",
    "drops": """
async def main():
    found = await make()
    assert await use(found) == "used\\n"
    del found
    gc.collect()
    say()
asyncio.run(main())
""",
    "raises": """
async def main():
    found = await make()
    assert await use(found) == "used\\n"
    say()
    raise ValueError("a bug")
asyncio.run(main())
""",
    "is cancelled": """
async def main():
    found = await make()
    assert await use(found) == "used\\n"
    task = asyncio.ensure_future(asyncio.sleep(0) if KIND.endswith("ecutor") else use(found))
    await asyncio.sleep(0)
    task.cancel()
    say()
asyncio.run(main())
""",
    "cancels the making": """
async def main():
    found = await make()
    if not KIND.endswith("ecutor"):
        task = asyncio.ensure_future(use(found))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    say()
asyncio.run(main())
""",
    "has two event loops": """
found = asyncio.run(make())
for _ in range(2):
    assert asyncio.run(use(found)) == "used\\n"
if hasattr(found, "aclose"):
    asyncio.run(found.aclose())
say()
""",
}

KILLED = """
found = asyncio.run(make())
assert asyncio.run(use(found)) == "used\\n"
say()
signal.pause()
"""

EMBEDDED = ["executor", "LocalEnvironment"]
SERVED = ["DaytonaCodeExecutor", "DaytonaEnvironment", "DaytonaSandbox"]


def argv(kind: str, program: str) -> list[str]:
    return [sys.executable, "-c", f"KIND = {kind!r}\n{BEGIN}{program}"]


def check(kind: str, program: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        argv(kind, PROGRAMS[program]), env=os.environ | env, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS
    )
    assert done.stdout == "done\n", done.stderr
    assert ("a bug" if program == "raises" else "") in done.stderr


def what_is_left(folder: Path) -> list[object]:
    return [found for found in (list_groups(instance_mark(folder)), list_loops(folder), list_files(folder)) if found]


def assert_nothing_is_left(folder: Path) -> None:
    for _ in range(PATIENCE):
        if wait_until(lambda: not what_is_left(folder)):
            return
    assert what_is_left(folder) == []


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", EMBEDDED)
def test_on_this_machine(kind: str, program: str, tmp_path: Path) -> None:
    check(kind, program, {"CORRAL_DATA_DIR": str(tmp_path)})
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_killed_on_this_machine(kind: str, tmp_path: Path) -> None:
    env = os.environ | {"CORRAL_DATA_DIR": str(tmp_path)}
    with subprocess.Popen(argv(kind, KILLED), env=env, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        program.send_signal(signal.SIGKILL)
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", SERVED)
def test_at_a_service(kind: str, program: str, service: ServedProcess, living: Living) -> None:
    before = sorted(living())
    check(kind, program, {})
    for _ in range(PATIENCE):
        if wait_until(lambda: sorted(living()) == before):
            break
    assert sorted(living()) == before


@pytest.mark.parametrize("kind", SERVED)
def test_killed_at_a_service(kind: str, service: ServedProcess) -> None:
    """Nobody is there to delete it: the service stops it when it was unused for minutes, and deletes it then."""
    client = Daytona(DaytonaConfig(api_url=service.url, api_key=service.key))
    before = {box.id for box in client.list()}
    with subprocess.Popen(argv(kind, KILLED), stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        program.send_signal(signal.SIGKILL)
    (left,) = [client.get(box.id) for box in client.list() if box.id not in before]
    try:
        assert left.auto_stop_interval is not None
        assert 0 < left.auto_stop_interval <= 60
        assert left.auto_delete_interval == 0
    finally:
        client.delete(left)
