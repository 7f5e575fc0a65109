"""Control groups on made-up trees: what is found, what is written, what is counted, and what is removed."""

import errno
import os
from pathlib import Path

import pytest

from corral.engine import cgroup
from corral.engine.recipe import Limits

LIMITS = Limits(memory_bytes=64 * 2**20, processes=32, cpus=0.5, disk_bytes=2**30, inodes=1000)
OWN_PROCESSES = 8  # init, the file agent and its workers, beside what was promised to the code

V1_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
    "pids": ("pids.max", "pids.current"),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
    "cpuacct": ("cpuacct.usage",),
}
V2_FILES = {
    "memory": ("memory.max", "memory.swap.max", "memory.current", "memory.peak", "memory.events"),
    "pids": ("pids.max", "pids.current"),
    "cpu": ("cpu.max",),
    "io": ("io.max",),
}
V2_CORE = ("cgroup.procs", "cgroup.threads", "cgroup.kill", "cpu.stat", "cgroup.type")


class CgroupPath(type(Path())):  # type: ignore[misc]  # the concrete class of this platform
    """A folder that behaves like the kernel's: it has its files from the start, and no others can be created."""

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if self.exists() and exist_ok:
            return
        if not os.access(self.parent, os.W_OK) or (self.parent / "read-only").exists():
            raise PermissionError(errno.EACCES, "made-up tree")
        super().mkdir(mode)
        enabled = self.parent.read_old("cgroup.subtree_control").split()
        if (self.parent / "cgroup.controllers").exists():
            names = [*V2_CORE, *(name for controller in enabled for name in V2_FILES[controller])]
            self.create("cgroup.controllers", " ".join(enabled))
            self.create("cgroup.subtree_control", "")
        else:
            names = [entry.name for entry in self.parent.iterdir() if entry.is_file()]
        for name in names:
            self.create(name, "domain\n" if name == "cgroup.type" else "")

    def rmdir(self) -> None:
        entries = list(self.iterdir())
        if any(entry.is_dir() for entry in entries) or self.read_old("cgroup.procs").strip():
            raise OSError(errno.EBUSY, "made-up tree")
        for entry in entries:
            entry.unlink()
        super().rmdir()

    def write_text(self, data: str, *_: object, **__: object) -> int:
        if not self.exists():
            raise FileNotFoundError(errno.ENOENT, "made-up tree", str(self))
        if self.name == "cgroup.subtree_control":
            return self._enable(data.removeprefix("+"))
        if self.name == "cgroup.kill":
            for procs in self.parent.rglob("cgroup.procs"):
                procs.parent.create("cgroup.procs", "")
        return int(super().write_text(data))

    def _enable(self, controller: str) -> int:
        if controller not in self.parent.read_old("cgroup.controllers").split():
            raise FileNotFoundError(errno.ENOENT, "made-up tree")
        if self.parent.read_old("cgroup.procs").strip() and (self.parent / "cgroup.type").exists():
            raise OSError(errno.EBUSY, "no internal processes")
        for group in self.parent.iterdir():
            if group.is_dir():  # groups that are there already get its files at once
                group.create("cgroup.controllers", f"{group.read_old('cgroup.controllers')} {controller}".strip())
                for name in V2_FILES[controller]:
                    group.create(name, "")
        return int(super().write_text(f"{self.read_text()} {controller}".strip()))

    def read_old(self, name: str) -> str:
        file = self / name
        return str(file.read_text()) if file.exists() else ""

    def create(self, name: str, content: str) -> None:
        (Path(self) / name).write_text(content)


class Machine:
    """A made-up machine: what /proc/self/cgroup and mountinfo say, and the trees they name."""

    def __init__(self, folder: Path) -> None:
        self.folder = CgroupPath(folder)
        self._cgroup: list[str] = []
        self._mounts = ["20 1 0:5 / /proc rw - proc proc rw"]

    def mount_v2(self, own: str, *, controllers: str = "", enabled: str = "") -> CgroupPath:
        root = self._mount("unified", "cgroup2", "")
        for name, text in (("cgroup.controllers", controllers), ("cgroup.subtree_control", enabled)):
            root.create(name, text)
        for name in V2_CORE:
            if name != "cgroup.type":  # by this the root of the whole tree is known
                root.create(name, "")
        self._cgroup.append(f"0::{own}")
        return root

    def mount_v1(self, controllers: str, own: str) -> CgroupPath:
        root = self._mount(controllers, "cgroup", f",{controllers}")
        for name in ("cgroup.procs", *(file for controller in controllers.split(",") for file in V1_FILES[controller])):
            root.create(name, "")
        self._cgroup.append(f"{len(self._cgroup) + 1}:{controllers}:{own}")
        return root

    def make(self, root: CgroupPath, own: str, *, processes: str = "1\n") -> CgroupPath:
        group = root
        for part in own.strip("/").split("/"):
            group = group / part
            group.mkdir(exist_ok=True)
        group.create("cgroup.procs", processes)
        return group

    def detect(self) -> cgroup.Hierarchy:
        for name, lines in (("cgroup", self._cgroup), ("mountinfo", self._mounts)):
            self.folder.create(name, "".join(f"{line}\n" for line in lines))
        return cgroup.detect(self_cgroup=self.folder / "cgroup", mounts=self.folder / "mountinfo")

    def _mount(self, name: str, kind: str, options: str) -> CgroupPath:
        path = self.folder / name
        Path(path).mkdir()
        self._mounts.append(f"{30 + len(self._mounts)} 20 0:29 / {path} rw,relatime - {kind} {kind} rw{options}")
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(cgroup, "Path", CgroupPath)
    monkeypatch.chdir(tmp_path)  # mountinfo is written with relative paths: whatever TMPDIR is, they have no blanks
    return Machine(Path())


def find_made(root: CgroupPath) -> CgroupPath:
    """The one group of the sandbox, wherever below the root it was made."""
    (made,) = root.rglob("corral-x-1")
    return CgroupPath(made)


def test_pure_v2_as_root_limits_everything_from_a_group_around_its_own(machine: Machine) -> None:
    root = machine.mount_v2("/user.slice/session.scope", controllers="cpu io memory pids")
    machine.make(root, "/user.slice/session.scope")
    found = machine.detect()
    assert found.unified is not None
    assert found.unified.parent in (root, root / "user.slice")  # around our own group, which is full of processes
    assert found.limited == {"memory", "pids", "cpu"}
    assert found.v1 == {}


def test_v2_delegated_group_is_used_and_the_root_of_the_tree_left_alone(machine: Machine) -> None:
    root = machine.mount_v2("/corral.service", controllers="cpu memory pids", enabled="cpu memory pids")
    own = machine.make(root, "/corral.service", processes="")
    root.create("read-only", "")
    found = machine.detect()
    assert found.unified == own
    assert found.limited == {"memory", "pids", "cpu"}


def test_v2_group_with_processes_and_nothing_above_it_gives_trees_but_no_limits(machine: Machine) -> None:
    root = machine.mount_v2("/session.scope", controllers="memory pids", enabled="memory pids")
    own = machine.make(root, "/session.scope")
    root.create("read-only", "")
    found = machine.detect()
    assert found.unified in (own, own / "corral")
    assert found.limited == frozenset()


def test_v2_user_session_is_limited_through_the_slice_that_belongs_to_the_user(machine: Machine) -> None:
    root = machine.mount_v2("/u/app.slice/run.scope", controllers="memory pids", enabled="memory pids")
    root.create("read-only", "")
    for part in ("u", "u/app.slice"):
        Path(root / part).mkdir()
        for name in V2_CORE:
            (root / part).create(name, "domain\n" if name == "cgroup.type" else "")
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (root / part).create(name, "memory pids")
    machine.make(root, "/u/app.slice/run.scope")
    # A shell under systemd --user lives in a scope full of processes, inside a slice where the user may make groups.
    assert machine.detect().limited >= {"memory", "pids"}


def test_hybrid_takes_limits_from_v1_and_trees_from_a_bare_unified(machine: Machine) -> None:
    unified = machine.mount_v2("/")
    groups = {name: machine.mount_v1(name, "/") for name in ("memory", "pids", "cpu", "cpuacct")}
    found = machine.detect()
    assert found.unified in (unified, unified / "corral")
    assert found.unified_controllers == frozenset()
    assert found.v1 == groups
    assert found.limited == {"memory", "pids", "cpu"}


def test_v1_alone_is_used_below_our_own_group(machine: Machine) -> None:
    memory = machine.mount_v1("memory", "/jobs/7")
    machine.make(memory, "/jobs/7")
    both = machine.mount_v1("cpu,cpuacct", "/")
    found = machine.detect()
    assert found.unified is None
    assert found.v1 == {"memory": memory / "jobs/7", "cpu": both, "cpuacct": both}
    assert found.limited == {"memory", "cpu"}


def test_nothing_mounted_is_soft_and_no_error(machine: Machine) -> None:
    found = machine.detect()
    assert found == cgroup.Hierarchy(None, frozenset(), {})
    assert found.limited == frozenset()


def test_trees_where_nothing_can_be_made_count_for_nothing(machine: Machine) -> None:
    machine.mount_v2("/", controllers="memory pids").create("read-only", "")
    machine.mount_v1("cpu", "/").create("read-only", "")
    assert machine.detect().limited == frozenset()
    assert machine.detect().unified is None


def test_group_of_another_mount_namespace_counts_for_nothing(machine: Machine) -> None:
    machine.mount_v1("memory", "/../../elsewhere")
    machine.mount_v1("pids", "/not/here")
    assert machine.detect().limited == frozenset()


def test_looking_leaves_no_group_behind(machine: Machine) -> None:
    root = machine.mount_v2("/", controllers="memory pids cpu")
    memory = machine.mount_v1("cpuacct", "/")
    machine.detect()
    assert [entry for base in (root, memory) for entry in base.iterdir() if entry.is_dir()] == []


def test_v2_limits_are_written_and_swap_is_off(machine: Machine) -> None:
    root = machine.mount_v2("/", controllers="memory pids cpu")
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    try:
        made = find_made(root)
        assert group.paths == [str(made)]
        assert (made / "memory.max").read_text() == str(LIMITS.memory_bytes)
        assert (made / "memory.swap.max").read_text() == "0"
        assert (made / "pids.max").read_text() == str(LIMITS.processes + OWN_PROCESSES)
        assert (made / "cpu.max").read_text() == "50000 100000"
        # Init lives in this very group, the root of its cgroup namespace; its leaves are made below it.
        assert group.unified_fd is not None
    finally:
        group.close()


def test_v1_limits_are_written_to_each_controller(machine: Machine) -> None:
    roots = {name: machine.mount_v1(name, "/") for name in ("memory", "pids", "cpu", "cpuacct")}
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    assert sorted(group.paths) == sorted(str(root / "corral-x-1") for root in roots.values())
    assert (roots["memory"] / "corral-x-1/memory.limit_in_bytes").read_text() == str(LIMITS.memory_bytes)
    assert (roots["pids"] / "corral-x-1/pids.max").read_text() == str(LIMITS.processes + OWN_PROCESSES)
    assert (roots["cpu"] / "corral-x-1/cpu.cfs_quota_us").read_text() == "50000"
    group.attach(4711)
    assert {(root / "corral-x-1/cgroup.procs").read_text() for root in roots.values()} == {"4711"}


def test_v1_limit_that_can_not_be_written_is_an_error(machine: Machine) -> None:
    memory = machine.mount_v1("memory", "/")
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    (memory / "memory.limit_in_bytes").unlink()
    with pytest.raises(OSError, match="made-up tree"):
        group.make(LIMITS, owner=None)


def test_v2_limit_that_can_not_be_written_is_an_error(machine: Machine) -> None:
    machine.mount_v2("/", controllers="memory pids cpu")
    found = machine.detect()
    group = cgroup.Group.plan(found, "corral-x-1")
    group.make(LIMITS, owner=None)
    try:
        assert group.unified is not None
        (group.unified / "memory.max").unlink()
        # `limited` says that memory is bounded: a sandbox without that bound must not come to be.
        with pytest.raises(OSError, match="made-up tree"):
            group.set_limits(LIMITS)
    finally:
        group.close()


def test_v2_usage_is_what_the_kernel_counted(machine: Machine) -> None:
    root = machine.mount_v2("/", controllers="memory pids cpu")
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    try:
        made = find_made(root)
        for name, text in (
            ("cpu.stat", "usage_usec 2500000\nuser_usec 1\nnr_periods 0\n"),
            ("memory.current", "1000\n"),
            ("memory.peak", "3000\n"),
            ("memory.events", "low 0\nmax 7\noom 2\noom_kill 2\n"),
            ("pids.current", "5\n"),
        ):
            made.create(name, text)
        expected = {"cpu_seconds": 2.5, "memory_bytes": 1000, "peak_memory_bytes": 3000, "processes": 5}
        assert group.usage() == expected
        assert group.out_of_memory_kills() == 2
        assert group.out_of_memory_file() == made / "memory.events"
    finally:
        group.close()


def test_v1_usage_is_what_the_kernel_counted(machine: Machine) -> None:
    roots = {name: machine.mount_v1(name, "/") for name in ("memory", "pids", "cpuacct")}
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    for controller, name, text in (
        ("cpuacct", "cpuacct.usage", "2500000000\n"),
        ("memory", "memory.usage_in_bytes", "1000\n"),
        ("memory", "memory.max_usage_in_bytes", "3000\n"),
        ("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
        ("pids", "pids.current", "5\n"),
    ):
        (roots[controller] / "corral-x-1").create(name, text)
    expected = {"cpu_seconds": 2.5, "memory_bytes": 1000, "peak_memory_bytes": 3000, "processes": 5}
    assert group.usage() == expected
    assert group.out_of_memory_kills() == 4


def test_usage_nobody_counts_is_none_and_never_zero(machine: Machine) -> None:
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    assert set(group.usage().values()) == {None}
    assert group.out_of_memory_kills() == 0
    assert group.out_of_memory_file() is None
    assert group.paths == []


@pytest.mark.parametrize("text", ["", "max\n", "garbage", "usage_usec x\n", "a b c\n"])
def test_counters_that_can_not_be_read_are_none(machine: Machine, text: str) -> None:
    root = machine.mount_v2("/", controllers="memory pids")
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    try:
        for name in ("cpu.stat", "memory.current", "memory.events", "pids.current", "memory.peak"):
            find_made(root).create(name, text)
        assert set(group.usage().values()) == {None}
        assert group.out_of_memory_kills() == 0
    finally:
        group.close()


def test_remove_kills_what_is_inside_and_takes_leaves_along(machine: Machine) -> None:
    root = machine.mount_v2("/", controllers="memory pids cpu")
    group = cgroup.Group.plan(machine.detect(), "corral-x-1")
    group.make(LIMITS, owner=None)
    group.close()
    made = find_made(root)
    machine.make(made, "call1", processes="99\n")
    foreign = machine.make(root, "/somebody-elses", processes="98\n")
    assert cgroup.remove(group.paths) == []
    assert not made.exists()
    assert (foreign / "cgroup.procs").read_text() == "98\n"


def test_remove_says_what_it_could_not_remove(machine: Machine) -> None:
    memory = machine.mount_v1("memory", "/")
    busy = machine.make(memory, "/corral-x-1", processes="99\n")  # v1 has no cgroup.kill
    assert cgroup.remove([str(busy)]) == [str(busy)]


def test_remove_of_what_is_not_there_is_no_error(machine: Machine) -> None:
    assert cgroup.remove([str(machine.folder / "never-made")]) == []
