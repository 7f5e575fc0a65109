"""Nothing is left: after closing, and after a kill at any moment once the next start has cleared up."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend, keepers
from corral.spec import Spec
from support import leftovers
from support.leftovers import (
    adopt_orphans,
    instance_mark,
    list_descendants,
    list_groups,
    reap_orphans,
    take_stock,
    wait_until,
    watch_differences,
)
from support.user import OrdinaryUser

ROUNDS = 20
KILLS = 10
HANG_GUARD_SECONDS = 100
COUNTERS = Path(leftovers.__file__).read_text(encoding="utf-8")

OPEN_AND_CLOSE = """
import asyncio, gc, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec

async def use(backend, number):
    async with await backend.create(Spec(ephemeral=number % 5 == 4)) as box:
        await box.files.write("f", b"x" * 1000)
        if number % 3 == 0:
            await box.exec("cat f; setsid sleep 1000 &")
            await box.start("sleep 1000")
        if number % 7 == 0:
            other = await backend.connect(await box.detach())
            await other.kill()

async def main(folder, rounds):
    backend = EmbeddedBackend(folder)
    for number in range(3):
        await use(backend, number)
    launcher = backend._launcher.ask({"op": "hello"})["pid"]
    before = take_stock(folder), count_descriptors()
    for number in range(rounds):
        await use(backend, number)
    gc.collect()
    assert backend._launcher.ask({"op": "hello"})["pid"] == launcher
    print(watch_differences(before[0], lambda: take_stock(folder)))
    print("descriptors:", max(0, count_descriptors() - before[1]))
    await backend.aclose()
    print(watch_differences({"processes": [], "groups": [], "loops": [], "files": []}, lambda: take_stock(folder)))

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""
NOTHING = "{}\ndescriptors: 0\n{}\n"

# Uses everything it can, over and over, so that a kill finds it at any step.
BUSY = """
import asyncio, itertools, os, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Lifetime, Spec

async def use(backend, number):
    async with await backend.create(Spec(ephemeral=number % 4 == 3, lifetime=Lifetime(seconds=60))) as box:
        await box.files.write("f", b"x" * 1000)
        await box.start("setsid sleep 1000 & sleep 1000")
        await box.exec("cat f")
        if number % 3 == 2:
            await box.detach(lifetime_seconds=0.2)

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    print("begun", flush=True)
    for number in itertools.count():
        await asyncio.gather(use(backend, number), use(backend, number + 1))

asyncio.run(main())
"""
NEXT_START = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec

async def main():
    backend = EmbeddedBackend(sys.argv[1])
    async with await backend.create(Spec()) as box:
        assert (await box.exec("echo on")).stdout == "on\\n"
    await backend.aclose()

asyncio.run(main())
"""


@pytest.fixture
def adopting() -> Iterator[None]:
    """Whatever is orphaned below the tests stays below them, and is counted."""
    adopt_orphans()
    yield
    adopt_orphans(on=False)


def run_here(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=HANG_GUARD_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_opening_and_closing_leaves_nothing(tmp_path: Path) -> None:
    assert run_here(COUNTERS + OPEN_AND_CLOSE, str(tmp_path / "data"), str(ROUNDS)) == NOTHING


@pytest.mark.needs_root
@pytest.mark.check
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_opening_and_closing_leaves_nothing_of_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    args = [str(ordinary_user.home / "data"), str(ROUNDS)]
    done = ordinary_user.run(COUNTERS + OPEN_AND_CLOSE, args=args, timeout=HANG_GUARD_SECONDS)
    assert done.stdout == NOTHING, done.stderr


def kill_at_random(argv: list[str], *, chance: random.Random, longest_seconds: float = 0.7) -> None:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            parent.wait(chance.uniform(0, longest_seconds))
        assert parent.poll() is None, "it ended by itself"
        parent.kill()


def list_newcomers(before: frozenset[int]) -> dict[int, str]:
    """Our descendants, but for those of other tests, such as a launcher that idles or a server."""
    return {pid: name for pid, name in list_descendants(os.getpid()).items() if pid not in before}


def what_is_left(folder: Path, *, before: frozenset[int] = frozenset()) -> dict[str, list[str]]:
    """`before` are processes of other tests, such as a launcher that idles."""
    reap_orphans(spare=set())
    empty: dict[str, list[str]] = {"processes": [], "groups": [], "loops": [], "files": []}

    def look() -> dict[str, list[str]]:
        return {**take_stock(folder), "processes": list(list_newcomers(before).values())}

    return watch_differences(empty, look)


@pytest.mark.check
@pytest.mark.usefixtures("adopting")
def test_parent_killed_at_random_moments_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    chance = random.Random()
    mounts = leftovers.list_mounts()
    before = frozenset(list_descendants(os.getpid()))
    for number in range(KILLS):
        folder = tmp_path / str(number % 3)  # a fresh folder is killed while it is being furnished
        kill_at_random([sys.executable, "-c", BUSY, str(folder)], chance=chance)
        assert wait_until(lambda: not list_newcomers(before)), f"without an owner: {list_newcomers(before)}"
        run_here(NEXT_START, str(folder))
        assert what_is_left(folder, before=before) == {}
    assert leftovers.list_mounts() <= mounts


@pytest.mark.check
@pytest.mark.needs_root
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_parent_of_an_ordinary_user_killed_at_random_moments_leaves_nothing(ordinary_user: OrdinaryUser) -> None:
    chance = random.Random()
    folder = ordinary_user.home / "data"
    script = ordinary_user.home.parent / "busy.py"
    script.write_text(BUSY, encoding="utf-8")
    environment = [
        "env",
        "-i",
        f"HOME={ordinary_user.home}",
        f"PYTHONPATH={ordinary_user.library}",
        "PATH=/usr/bin:/bin",
    ]
    become = ["setpriv", f"--reuid={ordinary_user.uid}", f"--regid={ordinary_user.uid}", "--clear-groups"]
    for _ in range(KILLS // 2):  # each waits for the user's last process to go
        kill_at_random([*become, *environment, str(ordinary_user.python), str(script), str(folder)], chance=chance)
        assert wait_until(lambda: not ordinary_user.list_processes()), "processes without an owner"
        done = ordinary_user.run(NEXT_START, args=[str(folder)])
        assert done.returncode == 0, done.stderr
        assert wait_until(lambda: not leftovers.list_files(folder)), leftovers.list_files(folder)


@pytest.mark.usefixtures("adopting")
@pytest.mark.parametrize("victim", ["corral-launcher", "corral-init", "corral-keeper"])
def test_each_of_our_processes_can_be_killed_and_leaves_nothing(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "data"
    before = frozenset(list_descendants(os.getpid()))
    script = BUSY.replace("lifetime_seconds=0.2", "lifetime_seconds=1")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert wait_until(lambda: victim in list_newcomers(before).values())
        for pid, name in list_newcomers(before).items():
            if name == victim:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            parent.wait(0.3)
        parent.kill()
    assert wait_until(lambda: not list_newcomers(before))
    run_here(NEXT_START, str(folder))
    assert what_is_left(folder, before=before) == {}


@pytest.mark.usefixtures("adopting")
def test_launcher_killed_together_with_its_parent_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    before = frozenset(list_descendants(os.getpid()))
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert wait_until(lambda: "sleep" in list_newcomers(before).values())
        for pid, name in list_newcomers(before).items():
            if name in ("corral-launcher", "corral-keeper") or pid == parent.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not list_newcomers(before))
    keepers.sweep_now(folder)
    assert what_is_left(folder, before=before) == {}


# What is not ours.


@pytest.fixture
def foreign_groups(tmp_path: Path) -> Iterator[list[Path]]:
    """Groups of others beside ours: of another program, of another data folder, and one whose name begins like ours."""
    roots = {line.split()[4] for line in leftovers.list_mounts() if line.partition(" - ")[2].startswith("cgroup")}
    groups = []
    for root in sorted(roots):
        if root.endswith(("memory", "pids", "unified", "cgroup")):
            for name in (f"somebody-elses-{os.getpid()}", "corral-0badcafe-11111111-2222", f"corral{os.getpid()}"):
                with contextlib.suppress(OSError):
                    Path(root, name).mkdir()
                    groups.append(Path(root, name))
    yield groups
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


@pytest.mark.needs_root
def test_what_belongs_to_others_stays(tmp_path: Path, foreign_groups: list[Path]) -> None:
    assert foreign_groups
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        (foreign_groups[-1] / "cgroup.procs").write_text(str(sleeper.pid))
        neighbour = tmp_path / "neighbour"
        run_here(NEXT_START, str(neighbour))
        (tmp_path / "mine").mkdir(mode=0o700)
        precious = [neighbour / "sandboxes/not-a-sandbox/precious", tmp_path / "mine/notes/precious"]
        for file in precious:
            file.parent.mkdir(parents=True)
            file.write_text("x")
        for _ in range(2):
            run_here(NEXT_START, str(tmp_path / "mine"))
            keepers.sweep_now(tmp_path / "mine")
        assert all(file.exists() for file in precious)
        assert all(group.is_dir() for group in foreign_groups)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.check
@pytest.mark.needs_root
async def test_sweeping_never_ends_a_neighbour_that_is_just_being_made(tmp_path: Path) -> None:
    """Two programs share a data folder, as two calls of the command line do: one starts while the other creates."""
    backend = EmbeddedBackend(tmp_path / "data")
    await (await backend.create(Spec())).aclose()
    stop = asyncio.Event()

    async def sweep_on_and_on() -> None:
        while not stop.is_set():
            await asyncio.to_thread(keepers.sweep_now, backend.data_folder)

    sweeping = [asyncio.ensure_future(sweep_on_and_on()) for _ in range(3)]
    try:
        for _ in range(30):
            async with await backend.create(Spec()) as box:
                assert (await box.exec("echo on")).stdout == "on\n"
    finally:
        stop.set()
        await asyncio.gather(*sweeping)
        await backend.aclose()


@pytest.mark.needs_root
async def test_probe_groups_of_a_killed_start_are_swept(tmp_path: Path) -> None:
    """Whether groups can be made is found out by making one; a kill in between must not leave it for ever."""
    folder = tmp_path / "data"
    run_here(NEXT_START, str(folder))
    backend = EmbeddedBackend(folder)
    async with await backend.create(Spec()):
        (group, *_) = list_groups(instance_mark(folder))
    await backend.aclose()
    stale = Path(group).parent / "corral-probe-4194304"  # a pid that can't be
    stale.mkdir()
    try:
        keepers.sweep_now(folder)
        assert not stale.exists()
    finally:
        with contextlib.suppress(OSError):
            stale.rmdir()


def test_sweep_does_not_mistake_a_group_for_a_stale_one_while_its_sandbox_is_founded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a sandbox exists before its group, so listing groups first and folders second never errs."""
    from corral.engine import cgroup, sweep
    from corral.engine.state import DataFolder

    groups = tmp_path / "groups"  # plain folders, so that it says something where groups can't be made, too
    removed: list[str] = []
    monkeypatch.setattr(cgroup, "detect", lambda: cgroup.Hierarchy(groups, frozenset(), {}))
    monkeypatch.setattr(cgroup, "remove", removed.extend)
    made: list[Path] = []
    held: list[int] = []

    class Racing(DataFolder):
        def ids(self) -> list[str]:
            known = super().ids()
            # Right after the list was taken, a neighbour founds a sandbox and makes its group.
            name = f"late{len(made)}"
            held.append(self.found(name, {"cgroups": []})[1])
            made.append(groups / f"corral-{self.instance()}-{name}")
            made[-1].mkdir()
            return known

    data = Racing(tmp_path / "data")
    data.prepare()
    stale = groups / f"corral-{data.instance()}-gone"
    stale.mkdir(parents=True)
    try:
        sweep.discard_dead(data)
        sweep.empty_trash(data)
        assert made
        assert removed == [str(stale)]
    finally:
        for descriptor in held:
            os.close(descriptor)
