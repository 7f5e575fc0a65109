"""Information about the engine, for `corral doctor` and the benchmarks. Reads only."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.backends.embedded.backend import EmbeddedBackend
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.seam import mapped
from corral.engine import cgroup
from corral.engine.client import LauncherClient
from corral.engine.plan import plan_child, plan_program, plan_sandbox, render
from corral.engine.recipe import CODE_GID, CODE_UID, UID_RANGE_SIZE, Identity
from corral.engine.seccomp.bpf import compile_filter
from corral.engine.seccomp.install import native_arch
from corral.engine.seccomp.numbers import numbers
from corral.engine.seccomp.policy import POLICY, UNKNOWN
from corral.engine.state import dead_folders, read_state
from corral.inside.trees import find_below
from corral.spec import Spec

_EXAMPLE_ID = "00000000-0000-0000-0000-000000000000"
_EXAMPLE_FIRST_UID = 1_000_000


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The launcher's findings on this machine."""

    root: bool
    storage: str
    hard_disk: bool
    own_devices: bool
    limited: tuple[str, ...]
    trees: str
    seccomp: str
    unified: str | None
    unified_controllers: tuple[str, ...]
    v1_controllers: tuple[str, ...]
    uid_locks: bool = True
    """As root: True if ranges of user ids are claimed by locks that only root can take."""
    transparent: bool = True
    """True if connections of a sandbox can be redirected to its window."""


def examine(data_folder: Path) -> EngineReport:
    """Start a launcher, ask it, and end it.

    Raises:
        BackendUnavailableError: the engine can't run here.
    """
    launcher = LauncherClient(data_folder)
    try:
        with mapped(op="doctor"):
            hello: dict[str, Any] = launcher.ask({"op": "hello"})
    finally:
        launcher.shutdown()
    hierarchy = cgroup.detect()
    return EngineReport(
        root=bool(hello["root"]),
        storage=str(hello["storage"]),
        hard_disk=bool(hello["hard_disk"]),
        own_devices=bool(hello["own_devices"]),
        limited=tuple(hello["limited"]),
        trees=str(hello["trees"]),
        seccomp=describe_filter(),
        unified=str(hierarchy.unified) if hierarchy.unified else None,
        unified_controllers=tuple(sorted(hierarchy.unified_controllers)),
        v1_controllers=tuple(sorted(hierarchy.v1)),
        uid_locks=bool(hello["uid_locks"]),
        transparent=bool(hello["transparent"]),
    )


def describe_filter() -> str:
    """The syscall filter in a few words."""
    arch = native_arch()
    known = numbers(arch)
    denied = sum(POLICY.get(name, UNKNOWN).denies_always for name in known)
    return f"{arch}, {len(known) - denied} of {len(known)} syscalls, {len(compile_filter(arch)) // 8} instructions"


async def describe_plan(backend: EmbeddedBackend, spec: Spec) -> str:
    """The steps to create such a sandbox, and to start each program in it."""
    ground = await backend.grounds.prepare(spec)
    recipe = backend.make_recipe(spec, _EXAMPLE_ID, ground)
    root = os.geteuid() == 0
    first = _EXAMPLE_FIRST_UID // UID_RANGE_SIZE * UID_RANGE_SIZE if root else os.geteuid()
    identity = Identity(rootless=not root, outer_uid=first, outer_gid=first if root else os.getegid())
    soft = "memory" not in cgroup.detect().limited
    child = plan_child(recipe.limits, soft_limits=soft)
    program = [*child, *plan_program(identity, uid=CODE_UID, gid=CODE_GID)]
    return (
        f"# the sandbox, by its first process\n{render(plan_sandbox(recipe, identity))}\n\n"
        f"# each program, between fork and execve\n{render(program)}\n"
    )


def measure_folder(path: Path) -> int:
    """The disk use of a tree, without what can't be read."""
    total, stack = 0, [str(path)]
    while stack:  # not by `os.walk`, which recurses in some versions: the code inside may nest folders deeply
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def measure_data(data_folder: Path) -> dict[str, int]:
    """The disk use of each part of a data folder."""
    if not data_folder.is_dir():
        return {}
    return {entry.name: measure_folder(entry) for entry in sorted(data_folder.iterdir()) if entry.is_dir()}


def measure_leftovers(data_folder: Path) -> int:
    """The disk use of sandboxes without an owner, except stopped ones."""
    data = open_data(data_folder, op="doctor")
    if not data.sandboxes.is_dir():
        return 0
    total = measure_folder(data.trash)
    for folder, lock_fd in dead_folders(data):
        if not (read_state(folder) or {}).get("stopped"):
            total += measure_folder(folder)
        os.close(lock_fd)
    return total


@dataclass(frozen=True, slots=True)
class Traces:
    """How much this process and its data folder hold on this machine."""

    processes: int
    mounts: int
    cgroups: int
    folders: int
    descriptors: int


def count_traces(data_folder: Path) -> Traces:
    """Living descendants of this process, mounts it sees, and cgroups and folders of this data folder."""
    return Traces(
        processes=len(find_below([os.getpid()])),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()) + _loop_devices(data_folder),
        cgroups=_count_groups(data_folder),
        folders=sum(len(list((data_folder / name).glob("*"))) for name in ("sandboxes", "trash")),
        descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
    )


def _loop_devices(data_folder: Path) -> int:
    count = 0
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            count += file.read_text().startswith(f"{data_folder.resolve()}/")
    return count


def _count_groups(data_folder: Path) -> int:
    instance = data_folder / "instance"
    if not instance.is_file():
        return 0
    mark = f"corral-{open_data(data_folder, op='doctor').instance()}-"
    return sum(group.name.startswith(mark) for group in cgroup.detect().list_groups())
