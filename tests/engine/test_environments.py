"""Programs that use environments and then forget them, raise, are cancelled, are killed, or run two event loops.

None leaves a sandbox: no process, no cgroup, no folder of one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leftovers import (
    adopt_orphans,
    instance_mark,
    list_descendants,
    list_files,
    list_groups,
    list_loops,
    reap_orphans,
    wait_until,
)
from support.user import OrdinaryUser

HANG_GUARD_SECONDS = 100

BEGIN = """
import asyncio, gc, os, signal, sys, threading
from corral import Environment, Variable

async def use(env, context=None, **options):
    async with env.open(context, **options) as box:
        await box.start("setsid sleep 1000 & sleep 1000")
        return (await box.exec("echo $TENANT")).stdout

env = Environment(env={"TENANT": Variable(default="nobody")})
"""

FIRST_PASS = {"forgets", "raises", "is cancelled while one is made", "runs two event loops"}
"""Those that `make test` runs; the others end in much the same way."""
PROGRAMS = {
    "forgets": """
asyncio.run(use(env))
print("done")
""",
    "forgets a block that it is in": """
async def main():
    await env.open().__aenter__()
    print("done")
asyncio.run(main())
""",
    "drops the environment and goes on": """
asyncio.run(use(env))
del env
gc.collect()
print("done")
""",
    "raises": """
async def main():
    async with env, env.open() as box:
        await use(env)
        print("done", flush=True)
        raise ValueError("a bug")
asyncio.run(main())
""",
    "raises and forgets": """
asyncio.run(use(env))
print("done", flush=True)
raise ValueError("a bug")
""",
    "is cancelled while one is made": """
async def main():
    task = asyncio.ensure_future(use(env))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print("done")
asyncio.run(main())
""",
    "runs two event loops": """
assert asyncio.run(use(env)) == asyncio.run(use(env)) == "nobody\\n"
assert asyncio.run(use(env, {"TENANT": "acme"})) == "acme\\n"
assert len(env.sandbox_ids) == 2
print("done")
""",
    "uses threads and plain code": """
threads = [threading.Thread(target=asyncio.run, args=(use(env),)) for _ in range(4)]
for thread in threads: thread.start()
with env.open_sync() as box:
    box.exec("true", check=True)
for thread in threads: thread.join()
assert len(env.sandbox_ids) == 1
print("done")
""",
    "closes twice": """
async def main():
    await asyncio.gather(use(env, key="1"), use(env, key="2"))
    await env.aclose()
    await env.aclose()
    assert env.sandbox_ids == ()
    print("done")
asyncio.run(main())
""",
    "is interrupted": """
async def main():
    await use(env)
    print("done", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(1000)
asyncio.run(main())
""",
}

# A forked child ends, and its parent's sandbox is there. Closing in the child ends only what is the child's.
FORKS = """
asyncio.run(use(env))
(mine,) = env.sandbox_ids
child = os.fork()
if child == 0:
    assert env.sandbox_ids == ()
    with env.open_sync() as box:
        assert box.id != mine
        box.exec("true", check=True)
    env.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert asyncio.run(use(env)) == "nobody\\n"
assert env.sandbox_ids == (mine,)
print("done")
"""

KILLED = """
asyncio.run(use(env))
print("done", flush=True)
signal.pause()
"""


@pytest.fixture
def adopting() -> Iterator[None]:
    """Whatever is orphaned below the tests stays below them, and is counted."""
    adopt_orphans()
    yield
    adopt_orphans(on=False)


def what_is_left(folder: Path, before: frozenset[int]) -> dict[str, list[str]]:
    reap_orphans(spare=set(before))
    newcomers = [name for pid, name in list_descendants(os.getpid()).items() if pid not in before]
    groups, loops = list_groups(instance_mark(folder)), list_loops(folder)
    stock = {"processes": newcomers, "groups": groups, "loops": loops, "files": list_files(folder)}
    return {kind: sorted(found) for kind, found in stock.items() if found}


def assert_nothing_is_left(folder: Path, before: frozenset[int]) -> None:
    wait_until(lambda: not what_is_left(folder, before))
    assert what_is_left(folder, before) == {}


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        env=os.environ | {"CORRAL_DATA_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_SECONDS,
    )


@pytest.mark.usefixtures("adopting")
@pytest.mark.parametrize(
    "program",
    [
        *(pytest.param(name, marks=() if name in FIRST_PASS else pytest.mark.check) for name in PROGRAMS),
        "forks",
    ],
)
def test_program_leaves_no_sandbox_when_it(program: str, tmp_path: Path) -> None:
    before = frozenset(list_descendants(os.getpid()))
    done = run(PROGRAMS.get(program, FORKS), tmp_path)
    assert done.stdout == "done\n", done.stderr
    if "raises" in program:
        assert "a bug" in done.stderr
    elif program != "is interrupted":
        assert done.stderr == ""
    assert_nothing_is_left(tmp_path, before)


@pytest.mark.usefixtures("adopting")
def test_killed_program_leaves_no_sandbox(tmp_path: Path) -> None:
    before = frozenset(list_descendants(os.getpid()))
    argv = [sys.executable, "-c", BEGIN + KILLED]
    env = os.environ | {"CORRAL_DATA_DIR": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"done\n"
        program.send_signal(signal.SIGKILL)
    assert_nothing_is_left(tmp_path, before)


@pytest.mark.check
@pytest.mark.needs_root
@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("program", ["forgets", "is cancelled while one is made", "runs two event loops"])
def test_program_of_an_ordinary_user_leaves_no_process_when_it(program: str, ordinary_user: OrdinaryUser) -> None:
    """The fixture fails if processes of that user are left."""
    done = ordinary_user.run(BEGIN + PROGRAMS[program], timeout=HANG_GUARD_SECONDS)
    assert done.stdout == "done\n", done.stderr
    assert done.stderr == ""
