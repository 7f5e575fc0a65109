"""Control groups on any machine: v2, v1, both side by side, or neither.

cgroup2 is used to find and kill process trees even if it has no controllers (the hybrid layout). Limits go to v2 if the
controllers are there, else to v1. Limits that no cgroup enforces are reported as `soft`.

Every group is a folder below the group this process is in (or below the root of the tree, when root), and its path is
written into the sandbox's state before it is created, so that a later sweep finds exactly our groups.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from corral.engine.recipe import Limits

_SELF = "corral-self"
_NEST = "corral"
"""In a group around our own, all our groups are in this one. It hands its controllers down itself, and so keeps systemd
from taking them back: at each daemon-reload it withdraws controllers that its own units did not ask for."""
_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_V2_CONTROLLERS = ("memory", "pids", "cpu")
_HANDED_DOWN = (*_V2_CONTROLLERS, "io")
"""`io` limits nothing here, but with it, page cache written by a loop device is charged to the group that caused it."""
CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be created on this machine."""

    unified: Path | None
    unified_controllers: frozenset[str]
    v1: dict[str, Path] = field(default_factory=dict)

    @property
    def limited(self) -> frozenset[str]:
        """What the kernel limits: memory, pids, cpu."""
        return (self.unified_controllers | frozenset(self.v1)) & frozenset(("memory", "pids", "cpu"))

    def list_groups(self) -> list[Path]:
        """All groups that exist there, of all sandboxes and of other programs."""
        bases = {base for base in (self.unified, *self.v1.values()) if base is not None and base.is_dir()}
        return [entry for base in bases for entry in base.iterdir()]


def detect(*, self_cgroup: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")) -> Hierarchy:
    """Find out by trying: a controller counts only if a group can be created and has its files."""
    own = _own_paths(self_cgroup.read_text())
    unified_root, v1_roots = _mounted(mounts.read_text())
    unified: Path | None = None
    controllers: frozenset[str] = frozenset()
    if unified_root is not None and "" in own:
        for position, group in enumerate(_from_inside_out(unified_root, own[""])):
            base = group if position == 0 and not _is_root_group(group) else group / _NEST
            if base.name == _NEST:
                _make_nest(base)
            made = _try_unified(base)
            _drop_nest(base)
            if made is None:
                continue
            if unified is None or made > controllers:
                unified, controllers = base, made
            if controllers >= set(_V2_CONTROLLERS):
                break
    v1: dict[str, Path] = {}
    for controller in _V1_CONTROLLERS:
        if controller in controllers or controller not in v1_roots or controller not in own:
            continue
        base = v1_roots[controller] / own[controller].lstrip("/")
        if _can_make_group(base):
            v1[controller] = base
    return Hierarchy(unified, controllers, v1)


@dataclass(slots=True)
class Group:
    """The groups of one sandbox."""

    unified: Path | None
    v1: dict[str, Path]
    limited: frozenset[str]
    unified_fd: int | None = None
    """The cgroup2 folder, open: init starts in it, and creates a leaf below it for each call."""

    @property
    def paths(self) -> list[str]:
        """Every folder, for the state file."""
        return [str(p) for p in (self.unified, *self.v1.values()) if p is not None]

    @classmethod
    def plan(cls, hierarchy: Hierarchy, name: str) -> Group:
        """The groups that will be created."""
        unified = hierarchy.unified / name if hierarchy.unified else None
        return cls(unified, {c: base / name for c, base in hierarchy.v1.items()}, hierarchy.limited)

    def make(self, limits: Limits, *, owner: tuple[int, int] | None) -> None:
        """Create the folders and write the limits; `owner` may create leaves below, but not change the limits."""
        for path in self.v1.values():
            path.mkdir(exist_ok=True)
        if self.unified is not None:
            self._make_unified(self.unified, owner)
        self.set_limits(limits)

    def _make_unified(self, path: Path, owner: tuple[int, int] | None) -> None:
        """Init stays in this very folder, and its leaves get no controllers.

        So the folder can be the root of init's cgroup namespace, which on systemd's machines (nsdelegate) is the border
        that no process may cross.
        """
        for attempt in range(10):
            if path.parent.name == _NEST:
                _make_nest(path.parent)
            try:
                path.mkdir()
                break
            except FileNotFoundError:  # another process has just removed the empty nest
                if attempt == 9:
                    raise
        if owner is not None:
            for entry in (path, path / "cgroup.procs", path / "cgroup.threads"):
                os.chown(entry, *owner)
        self.unified_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def set_limits(self, limits: Limits) -> None:
        """Write the limits; may be repeated while the sandbox runs."""
        quota = max(1000, int(limits.cpus * CPU_PERIOD_US))
        if self.unified is not None:
            here = self.limited - frozenset(self.v1)
            _write(self.unified / "memory.max", limits.memory_bytes, must="memory" in here)
            _write(self.unified / "memory.swap.max", 0)
            _write(self.unified / "pids.max", limits.processes + _OWN_PROCESSES, must="pids" in here)
            _write(self.unified / "cpu.max", f"{quota} {CPU_PERIOD_US}", must="cpu" in here)
        if "memory" in self.v1:
            # Before and after: the one with swap may never be the smaller of the two.
            _write(self.v1["memory"] / "memory.memsw.limit_in_bytes", limits.memory_bytes)
            _write(self.v1["memory"] / "memory.limit_in_bytes", limits.memory_bytes, must=True)
            _write(self.v1["memory"] / "memory.memsw.limit_in_bytes", limits.memory_bytes)
            _write(self.v1["memory"] / "memory.kmem.tcp.limit_in_bytes", limits.memory_bytes // 4)
        if "pids" in self.v1:
            _write(self.v1["pids"] / "pids.max", limits.processes + _OWN_PROCESSES, must=True)
        if "cpu" in self.v1:
            _write(self.v1["cpu"] / "cpu.cfs_period_us", CPU_PERIOD_US)
            _write(self.v1["cpu"] / "cpu.cfs_quota_us", quota, must=True)

    def attach(self, pid: int) -> None:
        """Put a process into the v1 groups (it started in the v2 one)."""
        for path in dict.fromkeys(self.v1.values()):
            (path / "cgroup.procs").write_text(str(pid))

    def usage(self) -> dict[str, float | int | None]:
        """CPU seconds, current and peak memory, processes: from the kernel, None if not counted."""
        cpu = _flat(self.unified and self.unified / "cpu.stat").get("usage_usec")
        cpu_seconds = cpu / 1e6 if cpu is not None else None
        if "cpuacct" in self.v1:
            nanoseconds = _number(self.v1["cpuacct"] / "cpuacct.usage")
            cpu_seconds = nanoseconds / 1e9 if nanoseconds is not None else cpu_seconds
        return {
            "cpu_seconds": cpu_seconds,
            "memory_bytes": _number(self._file("memory", "memory.current", v1="memory.usage_in_bytes")),
            "peak_memory_bytes": _number(self._file("memory", "memory.peak", v1="memory.max_usage_in_bytes")),
            "processes": _number(self._file("pids", "pids.current", v1="pids.current")),
        }

    def _file(self, controller: str, name: str, *, v1: str) -> Path | None:
        """A controller's file, in the hierarchy that has the controller."""
        if controller in self.v1:
            return self.v1[controller] / v1
        return self.unified / name if self.unified is not None else None

    def out_of_memory_kills(self) -> int:
        """How often the kernel's OOM killer has killed a process of this sandbox."""
        return _flat(self.out_of_memory_file()).get("oom_kill", 0)

    def out_of_memory_file(self) -> Path | None:
        """The file in which init may read that count; None if not found."""
        path = self._file("memory", "memory.events", v1="memory.oom_control")
        return path if path is not None and path.exists() else None

    def close(self) -> None:
        """Close the descriptor."""
        if self.unified_fd is not None:
            os.close(self.unified_fd)
            self.unified_fd = None


_OWN_PROCESSES = 8
"""Room for init, the file agent and its workers beside the processes promised to the code."""


def remove(paths: list[str]) -> list[str]:
    """Kill all processes in these groups and remove them; returns groups that could not be removed."""
    left = []
    for path in paths:
        folder = Path(path)
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
        if not _remove_group(folder):
            left.append(path)
        _drop_nest(folder.parent)
    return left


def _remove_group(folder: Path, *, patience: float = 2.0) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            for child in _children(folder):
                _remove_group(child, patience=0.5)
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.002)  # killed processes leave their group a moment after they have ended
        else:
            return True


def _children(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]


def _own_paths(text: str) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _mounted(text: str) -> tuple[Path | None, dict[str, Path]]:
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words = after.split()
        if len(words) < 3:
            continue
        kind, _, options = words[:3]
        target = Path(before.split()[4])
        if kind == "cgroup2":
            unified = target
        elif kind == "cgroup":
            for option in options.split(","):
                if option in _V1_CONTROLLERS:
                    v1[option] = target
    return unified, v1


def _from_inside_out(root: Path, own: str) -> list[Path]:
    """Our own group, then its parents: a session's own group has processes, the slice around it often has none."""
    group = root / own.lstrip("/")
    if group.name == _SELF:
        group = group.parent  # an earlier look has moved us aside
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _try_unified(base: Path) -> frozenset[str] | None:
    """The controllers of a group below `base`; None if no group can be created or no process can live in it."""
    if not _can_make_group(base):
        return None
    available = set((base / "cgroup.controllers").read_text().split()) & set(_HANDED_DOWN)
    if available - _handed_down(base) and _is_delegated(base):
        _step_aside(base)
    if not _holds_processes(base):
        _hand_down(base, available)
    return frozenset(_handed_down(base) & set(_V2_CONTROLLERS))


def _handed_down(group: Path) -> set[str]:
    return set((group / "cgroup.subtree_control").read_text().split())


def _hand_down(group: Path, controllers: Collection[str]) -> None:
    for controller in set(controllers) - _handed_down(group):
        with contextlib.suppress(OSError):  # not allowed, which `_handed_down` then shows
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _holds_processes(base: Path) -> bool:
    """True if handing controllers down would make the group unusable.

    Below a group that has processes itself, `memory` is refused, but `cpu` and `pids` are not: they turn it into a
    "domain threaded" one, and no process can then be put into any group below it (EOPNOTSUPP). Only the root is exempt.
    """
    if _is_root_group(base):
        return False
    return bool((base / "cgroup.procs").read_text().strip())


def _is_root_group(base: Path) -> bool:
    """True for the root of the whole tree (not of a cgroup namespace), which has no type."""
    return not (base / "cgroup.type").exists()


def _make_nest(nest: Path) -> None:
    """Create it if it is missing, with every controller that the root has."""
    with contextlib.suppress(OSError):
        nest.mkdir(exist_ok=True)
        for group in (nest.parent, nest):
            if _holds_processes(group):
                return
            _hand_down(group, _HANDED_DOWN)


def _drop_nest(nest: Path) -> None:
    if nest.name == _NEST:
        with contextlib.suppress(OSError):  # it contains another group
            nest.rmdir()


def _is_delegated(base: Path) -> bool:
    """systemd marks delegated groups (`Delegate=yes`); a user's own manager does not, but can be asked."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(base, name) == b"1"
    uid = os.geteuid()
    if uid == 0 or f"user@{uid}.service" not in base.parts or not base.name.endswith((".scope", ".service")):
        return False
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{uid}", "PATH": "/usr/bin:/bin"}
    command = ["systemctl", "--user", "show", "--property=Delegate", "--value", "--", base.name]
    try:
        answer = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == b"yes"


def _step_aside(base: Path) -> None:
    """Controllers can only be handed down by a group without processes: move those here, ours, into a leaf."""
    leaf = base / _SELF
    with contextlib.suppress(OSError):
        leaf.mkdir(exist_ok=True)
        for _ in range(10):  # again, for those forked meanwhile
            pids = (base / "cgroup.procs").read_text().split()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)


def _can_make_group(base: Path) -> bool:
    probe = base / f"corral-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return os.access(probe / "cgroup.procs", os.W_OK) and _kind(probe) == "domain"
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()


def _kind(group: Path) -> str:
    """`domain` if processes can live in it; groups of v1 have no type."""
    try:
        return (group / "cgroup.type").read_text().strip()
    except FileNotFoundError:
        return "domain"


def _write(path: Path, value: int | str, *, must: bool = False) -> None:
    try:
        path.write_text(str(value))
    except OSError:
        if must:
            raise


def _number(path: Path | None) -> int | None:
    try:
        return None if path is None else int(path.read_text())
    except (OSError, ValueError):
        return None


def _flat(path: Path | None) -> dict[str, int]:
    try:
        lines = [] if path is None else path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
