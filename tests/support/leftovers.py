"""What a sandbox could leave behind on the host, found in the kernel's own lists and not by asking Corral.

Standard library only: tests also run the text of this file in front of a script of their own, as an ordinary user.
"""

import contextlib
import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

PATIENCE_SECONDS = 60.0
"""A guard against hanging, not a promise: network namespaces and loop devices go a moment after their last user."""
_PR_SET_CHILD_SUBREAPER = 36
_LASTING = {"base", "disks", "packages", "instance"}
"""What a data folder keeps for the next sandbox."""


def adopt_orphans(*, on: bool = True) -> None:
    """Orphans among our descendants become our children, so that none of them escapes being counted."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def list_descendants(ancestor: int, *, without: Collection[int] = ()) -> dict[int, str]:
    """Living processes below a process, with their names; not those in `without`, nor below them. Zombies are dead."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # ended while we looked
            name, fields = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents[int(entry.name)] = (int(fields[1]), name)
    return {pid: name for pid, (_, name) in parents.items() if _descends(pid, ancestor, parents, without)}


def _descends(pid: int, ancestor: int, parents: dict[int, tuple[int, str]], without: Collection[int]) -> bool:
    while pid in parents and pid not in without:
        pid = parents[pid][0]
        if pid == ancestor:
            return True
    return False


def list_children(parent: int) -> dict[int, str]:
    """Living children of a process, with their names."""
    below = list_descendants(parent)
    text = " ".join(file.read_text(encoding="ascii") for file in Path(f"/proc/{parent}/task").glob("*/children"))
    return {pid: name for pid, name in below.items() if str(pid) in text.split()}


def reap_orphans(*, spare: set[int]) -> None:
    """Reap orphaned zombies that this process adopted; `spare` are children that other code waits for."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in spare:
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) == os.getpid():
            os.waitpid(int(entry.name), os.WNOHANG)


def list_groups(mark: str) -> set[str]:
    """Control groups whose name begins with `mark`, in every hierarchy."""
    found: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in ("cgroup", "cgroup2"):
            for folder, names, _ in os.walk(before.split()[4]):
                found.update(f"{folder}/{name}" for name in names if name.startswith(mark))
    return found


def list_loops(data_folder: Path) -> set[str]:
    """Loop devices on files of a data folder."""
    found: set[str] = set()
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if file.read_text(encoding="utf-8", errors="replace").startswith(f"{data_folder}/"):
                found.add(file.parts[3])
        except OSError:
            continue  # let go of while we looked
    return found


def list_mounts() -> set[str]:
    """What is mounted in our own mount namespace."""
    return set(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines())


def list_files(data_folder: Path) -> set[str]:
    """Everything in a data folder but what it keeps on purpose; half-made things among that count."""
    found: set[str] = set()
    for folder, names, files in os.walk(data_folder):
        for name in (*names, *files):
            path = os.path.relpath(os.path.join(folder, name), data_folder)  # noqa: PTH118 - odd names, as bytes come
            top, _, rest = path.partition("/")
            unfinished = top in _LASTING and (rest.startswith(".new") or re.search(r"\.img\.\d+$", rest))
            if (top not in _LASTING and rest) or unfinished:
                found.add(path)
    return found


def instance_mark(data_folder: Path) -> str:
    """How names of control groups of a data folder begin."""
    try:
        return f"corral-{(data_folder / 'instance').read_text(encoding='utf-8').strip()}-"
    except FileNotFoundError:
        return "corral-never-used-"


def take_stock(
    data_folder: Path, *, ancestor: int | None = None, without: Collection[int] = ()
) -> dict[str, list[str]]:
    """Everything countable that belongs to a data folder, or to descendants of `ancestor` but those of `without`."""
    processes = list_descendants(ancestor if ancestor is not None else os.getpid(), without=without)
    return {
        # By name and number: a helper that was replaced by its like is not one more.
        "processes": [
            f"{name} {index}" for name, count in Counter(processes.values()).items() for index in range(count)
        ],
        "mounts": sorted(list_mounts()),
        "groups": sorted(list_groups(instance_mark(data_folder))),
        "loops": sorted(list_loops(data_folder)),
        "files": sorted(list_files(data_folder)),
    }


def count_descriptors(pid: int | str = "self") -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def list_descriptors() -> set[tuple[int, str]]:
    """The descriptors that this process has open, with what they lead to."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile, as that of the listing itself
            found.add((int(descriptor.name), str(descriptor.readlink())))
    return found


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fails if the block leaves a descriptor open.

    Threads of earlier tests may open and close some meanwhile: what they close does not count, and what they have
    open for a moment is waited for.
    """
    before = list_descriptors()
    try:
        yield
    finally:
        assert wait_until(lambda: not list_descriptors() - before), list_descriptors() - before


def resident_bytes(pid: int | str = "self") -> int:
    """How much memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watch_differences(expected: dict[str, list[str]], take: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    """What is there and was not before, once it has had time to go."""
    for more in _patiently():
        now = take()
        more_than_before = {kind: sorted(set(now[kind]) - set(expected[kind])) for kind in expected}
        left = {kind: names for kind, names in more_than_before.items() if names}
        if not left or not more:
            return left
    raise AssertionError("unreachable")


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether it came true in the end."""
    return any(condition() for _ in _patiently())


def _patiently() -> Iterator[bool]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield True
        time.sleep(0.02)
    yield False
