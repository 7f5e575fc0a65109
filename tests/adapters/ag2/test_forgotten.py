"""Programs that create sandboxes with AG2's classes and forget them, raise, are cancelled or killed leave none."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.ag2.conftest import Living
from support.dockerd import Daemon
from support.leftovers import instance_mark, list_files, list_groups, list_loops, wait_until
from support.serving import ServedProcess, make_client

pytestmark = pytest.mark.needs_userns

HANG_GUARD_SECONDS = 100

BEGIN = """
import asyncio, gc, os, signal, sys
from corral.adapters.ag2 import CodeBlock
import corral.adapters.ag2 as ag2

async def make():
    if KIND == "executor":
        found = ag2.SandboxCodeExecutor()
    elif KIND == "DaytonaCodeExecutor":
        found = ag2.DaytonaCodeExecutor()
    elif KIND == "DaytonaSandbox":
        from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams
        found = ag2.DaytonaSandbox(client=AsyncDaytona(), params=CreateSandboxFromSnapshotParams(auto_stop_interval=0))
    elif KIND == "DockerEnvironment":
        found = ag2.DockerEnvironment(image=os.environ["IMAGE"])
    else:
        found = getattr(ag2, KIND)()
    return found

async def use(found):
    if hasattr(found, "execute_code_blocks"):
        return found.execute_code_blocks([CodeBlock(code="printf used", language="sh")]).output
    if hasattr(found, "run"):
        return (await found.run("printf used", "bash")).output
    if hasattr(found, "open"):
        async with found.open() as sandbox:
            return (await sandbox.exec(["printf", "used"])).output
    return (await found.exec(["printf", "used"])).output

def say():
    print("done", flush=True)

getattr(ag2, "SandboxCodeExecutor" if KIND == "executor" else KIND)  # read once, for all of the children
if KIND.startswith("Daytona"):
    from daytona import AsyncDaytona, Daytona
"""

EACH = """
for name, text in PROGRAMS.items():
    if os.fork() == 0:
        sys.stdout = open(os.path.join(FOLDER, name + ".out"), "w")
        sys.stderr = open(os.path.join(FOLDER, name + ".err"), "w")
        exec(text)
        sys.exit()  # as every program ends: the threads, then what is to be done at the exit
for _ in PROGRAMS:
    os.wait()
"""
"""Each program in a process of its own, all at once: what takes long is to read the modules."""

PROGRAMS = {
    "forgets": """
found = asyncio.run(make())
assert asyncio.run(use(found)) == "used"
say()
""",
    "drops": """
async def main():
    found = await make()
    assert await use(found) == "used"
    del found
    gc.collect()
    say()
asyncio.run(main())
""",
    "raises": """
async def main():
    found = await make()
    assert await use(found) == "used"
    say()
    raise ValueError("a bug")
asyncio.run(main())
""",
    "is cancelled": """
async def main():
    found = await make()
    assert await use(found) == "used"
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
    assert asyncio.run(use(found)) == "used"
if hasattr(found, "aclose"):
    asyncio.run(found.aclose())
say()
""",
}

KILLED = """
found = asyncio.run(make())
assert asyncio.run(use(found)) == "used"
say()
signal.pause()
"""

EMBEDDED = ["executor", "LocalEnvironment"]
SERVED = ["DaytonaCodeExecutor", "DaytonaEnvironment", "DaytonaSandbox"]


def argv(kind: str, program: str) -> list[str]:
    return [sys.executable, "-c", f"KIND = {kind!r}\n{BEGIN}{program}"]


def check_all(kind: str, folder: Path, env: dict[str, str]) -> None:
    program = f"PROGRAMS = {PROGRAMS!r}\nFOLDER = {str(folder)!r}\n{EACH}"
    subprocess.run(argv(kind, program), env=os.environ | env, timeout=HANG_GUARD_SECONDS, check=True)
    for name in PROGRAMS:
        errors = (folder / f"{name}.err").read_text()
        assert (folder / f"{name}.out").read_text() == "done\n", f"{name}: {errors}"
        assert ("a bug" if name == "raises" else "") in errors


def what_is_left(folder: Path) -> list[object]:
    return [found for found in (list_groups(instance_mark(folder)), list_loops(folder), list_files(folder)) if found]


def assert_nothing_is_left(folder: Path) -> None:
    wait_until(lambda: not what_is_left(folder))
    assert what_is_left(folder) == []


@pytest.mark.parametrize("kind", ["executor", pytest.param("LocalEnvironment", marks=pytest.mark.check)])
def test_on_this_machine(kind: str, tmp_path: Path) -> None:
    data, told = tmp_path / "data", tmp_path / "told"
    told.mkdir()
    check_all(kind, told, {"CORRAL_DATA_DIR": str(data)})
    assert_nothing_is_left(data)


@pytest.mark.check
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", EMBEDDED)
def test_killed_on_this_machine(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    env = os.environ | {"CORRAL_DATA_DIR": str(tmp_path)}
    with subprocess.Popen(argv(kind, KILLED), env=env, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        program.send_signal(number)
    assert_nothing_is_left(tmp_path)


@pytest.mark.check
@pytest.mark.parametrize("kind", SERVED)
def test_at_a_service(kind: str, service: ServedProcess, living: Living, tmp_path: Path) -> None:
    before = sorted(living())
    check_all(kind, tmp_path, {})
    wait_until(lambda: sorted(living()) == before)
    assert sorted(living()) == before


@pytest.mark.needs_docker
@pytest.mark.timeout(240)
def test_in_containers(daemon: Daemon, tmp_path: Path) -> None:
    before = daemon.count()
    env = {"CORRAL_DOCKER_HOST": daemon.host, "IMAGE": daemon.image}
    check_all("DockerEnvironment", tmp_path, env)
    with subprocess.Popen(argv("DockerEnvironment", KILLED), env=os.environ | env, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        program.send_signal(signal.SIGKILL)
    wait_until(lambda: daemon.count() == before)
    assert daemon.count() == before


@pytest.mark.check
def test_interrupted_at_a_service(service: ServedProcess, living: Living) -> None:
    """Ctrl-C, in the middle of a call."""
    before = sorted(living())
    text = """
found = asyncio.run(make())
async def main():
    async with found.open() as sandbox:
        await sandbox.exec(["true"])
        say()
        await sandbox.exec(["sleep", "60"])
asyncio.run(main())
"""
    with subprocess.Popen(
        argv("DaytonaEnvironment", text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "done\n"
        program.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in program.communicate(timeout=HANG_GUARD_SECONDS)[1]
    wait_until(lambda: sorted(living()) == before)
    assert sorted(living()) == before


@pytest.mark.check
@pytest.mark.parametrize("kind", SERVED)
def test_killed_at_a_service(kind: str, service: ServedProcess) -> None:
    """Its program is gone: the service stops it after some minutes without use, and deletes it then."""
    client = make_client(service)
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
