"""The tests, tested: with a defence switched off, the probe that it stops goes red.

A defence is switched off in a copy of the sources, by changing one line of it; the product has no switch for that. The
line is looked for exactly, so that a knock-out that no longer fits fails instead of passing by accident.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from corral.testing.hostile import ALL
from support.user import ROOT, open_ordinary_user

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
    pytest.mark.timeout(180),  # some mutants make the host wait for what never comes
]

Mode = Literal["root", "user"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change in the copy: `old` must be there at least `times` times, and is replaced wherever it is."""

    file: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class KnockOut:
    """A defence, how it is switched off, and which probes must notice."""

    defence: str
    edits: tuple[Edit, ...]
    red: tuple[str, ...]
    modes: tuple[Mode, ...] = ("root", "user")
    says: str = ""
    """A part of the evidence."""


NO_FILTER = Edit("engine/perform.py", "    stage.seccomp.install()\n", "    pass\n")
NO_NAMESPACE_LIMITS = Edit("engine/perform.py", "in (*limits.items(), *step.network):", "in step.network:")
NAMES_LOOKED_UP = (
    Edit("tars/writing.py", "import tarfile\n", "import pwd\nimport tarfile\n"),
    Edit("tars/writing.py", "            self._add_file(path, member)\n", "            pwd.getpwall()\n"),
)
INIT = "engine/init.py"
POLICY = "engine/seccomp/policy.py"

KNOCK_OUTS = (
    KnockOut(
        "settings of git stay inside",
        (Edit("transfer.py", "self._git_settings = git_settings\n", "self._git_settings = True\n"),),
        ("leave-settings-of-git-in-a-folder-that-comes-back",),
    ),
    KnockOut(
        "the seccomp filter",
        (NO_FILTER,),
        ("set-up-io-uring", "call-through-the-32-bit-table", "trace-init-and-others", "type-into-the-terminal"),
    ),
    KnockOut("both walls before user namespaces", (NO_FILTER, NO_NAMESPACE_LIMITS), ("make-a-user-namespace",)),
    KnockOut(
        "no_new_privs",
        (NO_FILTER, Edit("engine/perform.py", "syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)", "pass")),
        ("run-without-the-safety-catches",),
        says="no_new_privs is not set",
    ),
    KnockOut(
        "the masks over /proc",
        (Edit("engine/plan.py", "MaskProc(MASKED_FILES, MASKED_FOLDERS, ", "MaskProc((), (), "),),
        ("read-kernel-files-of-proc", "look-into-hardware-folders-of-proc"),
    ),
    KnockOut(
        "the read-only /proc/sys",
        (Edit("engine/plan.py", 'READ_ONLY_FOLDERS = ("sys",)', "READ_ONLY_FOLDERS = ()"),),
        ("set-kernel-parameters-as-root-inside",),
        modes=("root",),
    ),
    KnockOut(
        "the network namespace",
        (
            Edit("engine/box.py", "    | syscalls.CLONE_NEWNET\n", ""),
            Edit("engine/plan.py", "        Loopback(),\n", ""),
            Edit("engine/plan.py", "tuple(NETWORK_LIMITS.items())", "()"),
        ),
        ("connect-to-the-hosts-loopback", "connect-to-the-hosts-abstract-sockets", "connect-to-the-neighbours-port"),
    ),
    KnockOut(
        "the network namespace, seen by a probe of no route",
        (
            Edit("engine/box.py", "    | syscalls.CLONE_NEWNET\n", ""),
            Edit("engine/plan.py", "        Loopback(),\n", ""),
            Edit("engine/plan.py", "tuple(NETWORK_LIMITS.items())", "()"),
        ),
        ("ask-the-clouds-metadata-service", "send-to-everybody", "tunnel-through-name-resolution"),
        says="nothing was sent",
    ),
    KnockOut(
        "the IPC namespace",
        (Edit("engine/box.py", "    | syscalls.CLONE_NEWIPC\n", ""),),
        ("share-system-v-memory",),
        modes=("root",),  # in an IPC namespace that the test makes: a segment would stay on the host
    ),
    KnockOut(
        "the name of its own",
        (Edit("engine/plan.py", "        Hostname(recipe.hostname),\n", ""),),
        ("learn-the-hosts-name",),
        modes=("root",),  # in a UTS namespace of the test's, whose name is known
    ),
    KnockOut(
        "closing descriptors",
        (
            Edit(
                "engine/perform.py",
                "    syscalls.close_range(3, cloexec=True)\n",
                "    os.set_inheritable(os.open('/', os.O_RDONLY), True)  # forgotten by somebody, closed by nobody\n",
            ),
        ),
        ("use-a-descriptor-that-was-left-open",),
    ),
    KnockOut(
        "the limits of processes",
        (
            Edit("engine/plan.py", '        ("NPROC", limits.processes),\n', ""),
            Edit("engine/cgroup.py", "limits.processes + _OWN_PROCESSES", "3000", times=2),
        ),
        ("fork-bomb", "thread-bomb"),
    ),
    KnockOut(
        "the limit of memory",
        (Edit("engine/cgroup.py", "limits.memory_bytes,", "4 << 30,"),),
        ("memory-bomb", "page-table-bomb"),
        modes=("root",),
    ),
    KnockOut(
        "the limit of a file's size",
        (Edit("engine/plan.py", '        ("FSIZE", limits.disk_bytes),\n', ""),),
        ("make-a-file-of-a-terabyte",),
    ),
    KnockOut(
        "the size of /dev/shm",
        (Edit("engine/perform.py", ",size={step.size_bytes},nr_inodes={step.inodes}", ""),),
        ("fill-dev-shm-with-empty-files",),
    ),
    KnockOut(
        "the sampling of the disk",
        (Edit("engine/sampling.py", "        return over\n", "        return False\n"),),
        ("fill-the-disk",),
        modes=("user",),
    ),
    KnockOut(
        "a budget for all records of a sandbox",
        (Edit("engine/keeper.py", "DiskBudget(min(MAX_BUDGET_BYTES, box.recipe.limits.disk_bytes))", "DiskBudget(1 << 40)"),),
        ("print-more-than-the-quota-into-records",),
        says="of the host's disk for a quota of",
    ),
    KnockOut(
        "holes of every size on the way out",
        (Edit("transfer.py", "_BLOCK_BYTES = 4096\n", "_BLOCK_BYTES = 65536\n"),),
        ("leave-files-with-holes-for-a-download",),
        says="MiB landed",
    ),
    KnockOut(
        "a bound for what changes while it is packed",
        (Edit("tars/writing.py", "if self._changing > self._max_changing:", "if False:"),),
        ("make-a-folder-endless-while-it-is-downloaded",),
        says="MiB landed",
    ),
    KnockOut(
        "killing the whole tree",
        (
            Edit(
                "engine/trees.py",
                'self._write(f"call{number}/cgroup.kill", "1")',
                'os.kill(int(self._read(f"call{number}/cgroup.procs").split()[0]), signal.SIGKILL)',
            ),
        ),
        ("adopt-ones-own-orphans", "leave-nohup-children-behind"),
        modes=("root",),
    ),
    KnockOut(
        "signals for those whom the kernel's kill of a group passes over",
        (Edit("engine/trees.py", "        else:\n            self._signal_all(number)\n", ""),),
        ("go-on-without-ones-first-thread",),
        modes=("root",),
        says="outlived their call",
    ),
    KnockOut(
        "the look at all threads of what seems to be dead",
        (Edit("engine/processes.py", 'stat[_STATE] == b"Z" and int(stat[_THREADS]) <= 1', 'stat[_STATE] == b"Z"'),),
        ("go-on-without-ones-first-thread",),
        modes=("user",),
        says="outlived their call",
    ),
    KnockOut(
        "the memory of processes without their first threads",
        (Edit("engine/soft.py", "    if not sizes:\n", "    if False:\n"),),
        ("memory-bomb-of-processes-without-their-first-threads",),
        modes=("user",),
    ),
    KnockOut(
        "the descriptors of each thread",
        (Edit("engine/counting.py", "for folder in thread_folders(pid))", 'for folder in (f"/proc/{pid}",))'),),
        ("shrink-everybodys-pipes-from-hidden-threads",),
        modes=("user",),
    ),
    KnockOut(
        "a range of user ids each",
        (
            Edit(
                "engine/uidrange.py",
                "UidRange(FIRST_UID + slot * UID_RANGE_SIZE, lock, name)",
                "UidRange(FIRST_UID, lock, name)",
            ),
        ),
        ("share-a-user-id-with-the-neighbour",),
        modes=("root",),
    ),
    KnockOut(
        "asking whether a run has ended",
        (Edit("interpreter/process.py", "if reading.idle or not owned:", "if reading.state:"),),
        ("forge-the-end-of-a-run",),
        says="reported as completed",
    ),
    KnockOut(
        "a file agent that looks no names up",
        NAMES_LOOKED_UP,
        ("plant-a-name-service-for-the-file-agent-as-root-inside",),
        modes=("root",),
        says="looks names up",
    ),
    KnockOut(
        "a file agent that looks no names up, rootless",
        NAMES_LOOKED_UP,
        ("plant-a-name-service-for-the-file-agent",),
        modes=("user",),
        says="looks names up",
    ),
    KnockOut(
        "the closed data folder",
        (
            Edit("engine/datafolder.py", "0o700 if so_far == path else 0o755", "0o755"),
            Edit("engine/datafolder.py", "    if _is_closed(folder, path):\n", "    if True:\n"),
        ),
        ("find-what-others-of-the-host-have-planted",),
        says="can enter the data folder",
    ),
    KnockOut(
        "owners that no login has",
        (
            Edit("engine/base.py", "BASE_FIRST_UID + CODE_UID, BASE_FIRST_UID + CODE_GID", "CODE_UID, CODE_GID"),
            Edit("engine/box.py", "(BASE_FIRST_UID + CODE_UID, first", "(CODE_UID, first"),
        ),
        ("find-what-others-of-the-host-have-planted",),
        modes=("root",),
        says="belongs to uid 1000 of the host",
    ),
    KnockOut(
        "the small set of capabilities for root inside",
        (Edit("engine/plan.py", "_capability_mask(0, 1, 3, 4, 5, 6, 7, 10)", "_capability_mask(*range(41))"),),
        ("attack-the-kernel-as-root-inside",),
        modes=("root",),
        says="CAP_SYS_ADMIN",
    ),
    KnockOut(
        "the read-only /dev",
        (Edit("engine/plan.py", '        ReadOnly("root/dev"),\n', ""),),
        ("put-something-into-dev",),
        modes=("user",),
    ),
    KnockOut(
        "the refusal of asynchronous input and output",
        (Edit(POLICY, 'ENOSYS,\n        "one number for the whole', 'ALLOW,\n        "one number for the whole'),),
        ("take-all-asynchronous-input-and-output",),
    ),
    KnockOut(
        "the count of file locks",
        (Edit(INIT, 'self._end_all("locks")', "pass"),),
        ("pile-up-file-locks", "pile-up-file-locks-in-many-processes"),
    ),
    KnockOut(
        "the refusal of locks that can't be counted",
        (Edit(POLICY, "Case((Match(1, (36, 37, 38)),), EINVAL),", ""),),
        ("hide-file-locks-from-whoever-counts-them",),
        says="a lock of an open file",
    ),
    KnockOut(
        "the refusal of processes that share their descriptors",
        (Edit(POLICY, "Case((Match(0, (_CLONE_FILES,), _CLONE_FILES | _CLONE_THREAD),), EINVAL),", ""),),
        ("hide-file-locks-from-whoever-counts-them",),
        says="a process with our descriptors",
    ),
    KnockOut(
        "the refusal of socket filters and flow labels",
        (
            Edit(POLICY, "Case((Match(1, (_SOL_SOCKET,)), Match(2, _SO_ATTACH)), ENOPROTOOPT),", ""),
            Edit(POLICY, "Case((Match(1, (_SOL_IPV6,)), Match(2, (_IPV6_FLOWLABEL_MGR,))), ENOPROTOOPT),", ""),
        ),
        ("attach-filters-to-sockets", "lease-flow-labels"),
    ),
    KnockOut(
        "the limit of core dumps that stays",
        (
            Edit(POLICY, '"setrlimit": _SETRLIMIT,', '"setrlimit": Rule(ALLOW),'),
            Edit(POLICY, "Match(1, (_RLIMIT_CORE,)), Match(3, (0,)), Match(3, (0,), high=True)), PRETEND", "Match(1, (_RLIMIT_CORE,))), ALLOW"),
        ),
        ("have-the-host-look-at-a-crash",),
        says="with a limit of 0",
    ),
    KnockOut(
        "device nodes of its own",
        (Edit("engine/box.py", "            if shop.own_devices:\n", "            if False:\n"),),
        ("watch-and-lock-the-devices-of-the-host",),
        modes=("root",),
    ),
    KnockOut(
        "masks of its own",
        (Edit("engine/perform.py", 'syscalls.mount(f"{_MASKS}/0", ', 'syscalls.mount("/dev/null", '),),
        ("watch-and-lock-what-covers-proc",),
    ),
    KnockOut(
        "the look at what one user has but once",
        (Edit(INIT, "self._end_all(short)", "pass"),),
        (
            "put-descriptors-in-flight",
            "hide-descriptors-in-flight-in-sockets-in-flight",
            "shrink-everybodys-pipes",
        ),
        modes=("user",),
    ),
    KnockOut(
        "a small part of the user's inotify instances",
        (Edit("engine/perform.py", "int(file.read()) // plan.SHARE", "int(file.read())"),),
        ("use-up-inotify-instances",),
        modes=("user",),
    ),
    KnockOut(
        "limits for oneself only",
        (Edit(POLICY, '"prlimit64": _PRLIMIT,', '"prlimit64": Rule(ALLOW),'),),
        ("cripple-init-by-limits-and-priorities",),
        modes=("user",),
        says="prlimit",
    ),
    KnockOut(
        "limits for oneself only, against root inside",
        (Edit(POLICY, '"prlimit64": _PRLIMIT,', '"prlimit64": Rule(ALLOW),'),),
        ("cripple-init-as-root-inside",),
        modes=("root",),
        says="prlimit",
    ),
    KnockOut(
        "both halves of a pointer",
        (Edit(POLICY, "Match(2, (0,)), Match(2, (0,), high=True)", "Match(2, (0,)),"),),
        ("cripple-init-by-limits-and-priorities",),
        modes=("user",),
        says="odd pointer",
    ),
    KnockOut(
        "the cover over what others may not read",
        (Edit("engine/perform.py", "for path in stage.private:", "for path in ():"),),
        ("read-what-the-host-keeps-from-others",),
        modes=("root",),
    ),
    KnockOut(
        "made-up counters and boot id",
        (Edit("engine/plan.py", "tuple(MADE_UP_FILES.items())", "()"),),
        ("tell-one-boot-of-the-host-from-another", "read-the-kernels-counters"),
    ),
    KnockOut(
        "the empty environment",
        (
            Edit("engine/client.py", "env={}", "env=None"),
            Edit("engine/launcher.py", "    hide_arguments()\n", "    pass\n"),
            Edit(
                "engine/child.py",
                "argv, env = list(program.argv), program.env",
                "argv, env = list(program.argv), {**os.environ, **program.env}",
            ),
        ),
        ("read-secrets-of-the-hosts-environment",),
    ),
)


def switch_off(library: Path, edits: Sequence[Edit]) -> None:
    for edit in edits:
        path = library / "corral" / edit.file
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.old) >= edit.times, f"{edit.file} has no longer {edit.old!r}"
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def test_every_knock_out_fits_the_sources() -> None:
    """Cheap enough for every run: the knock-outs themselves are run by `make prove`."""
    names = {probe.name for probe in ALL}
    assert len(KNOCK_OUTS) >= 10
    for knock_out in KNOCK_OUTS:
        assert set(knock_out.red) <= names
        for edit in knock_out.edits:
            text = (ROOT / "src/corral" / edit.file).read_text(encoding="utf-8")
            assert text.count(edit.old) >= edit.times, f"{edit.file} has no longer {edit.old!r}: adapt the knock-out"


def attack_as_root(edits: Sequence[Edit], probes: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    library = folder / "library"
    shutil.copytree(ROOT / "src", library, ignore=shutil.ignore_patterns("__pycache__"))
    switch_off(library, edits)
    env = os.environ | {
        "PYTHONPATH": str(library),
        "CORRAL_DATA_DIR": str(folder / "data"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # Namespaces of the test's own, so that a knocked-out one does not let anything through to the real host.
    argv = [
        "unshare",
        "--ipc",
        "--uts",
        "sh",
        "-c",
        'echo knocked-out-host >/proc/sys/kernel/hostname; exec "$@"',
        "sh",
    ]
    argv += [sys.executable, "-m", "corral.testing.hostile", *probes]
    done = subprocess.run(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
    return read_rows(done)


def attack_as_user(edits: Sequence[Edit], probes: Sequence[str]) -> dict[str, dict[str, str]]:
    with open_ordinary_user() as user:
        switch_off(user.library, edits)
        argv = [str(user.python), "-m", "corral.testing.hostile", *probes]
        return read_rows(user.run_argv(argv, env={"CORRAL_DATA_DIR": str(user.home / "data")}, timeout=150))


def read_rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, f"the mutant did not even start: {done.stderr[-2000:]}"
    return {row["name"]: row for row in rows}


def attack(mode: Mode, edits: Sequence[Edit], probes: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    return attack_as_root(edits, probes, folder) if mode == "root" else attack_as_user(edits, probes)


MARKS = {"root": [pytest.mark.needs_root], "user": [pytest.mark.needs_user, pytest.mark.needs_userns]}


@pytest.mark.prove
@pytest.mark.parametrize(
    ("knock_out", "mode"),
    [
        pytest.param(knock_out, mode, marks=MARKS[mode], id=f"{knock_out.defence}, {mode}")
        for knock_out in KNOCK_OUTS
        for mode in knock_out.modes
    ],
)
def test_probe_goes_red_without(knock_out: KnockOut, mode: Mode, tmp_path: Path) -> None:
    rows = attack(mode, knock_out.edits, knock_out.red, tmp_path)
    for name in knock_out.red:
        assert rows[name]["verdict"] == "breached", f"{name} did not notice: {rows[name]['evidence']}"
        assert knock_out.says in rows[name]["evidence"]


@pytest.mark.prove
@pytest.mark.parametrize("wall", [NO_FILTER, NO_NAMESPACE_LIMITS], ids=["without the filter", "without the limits"])
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=marks) for mode, marks in MARKS.items()])
def test_one_wall_before_user_namespaces_is_enough(wall: Edit, mode: Mode, tmp_path: Path) -> None:
    rows = attack(mode, (wall,), ["make-a-user-namespace"], tmp_path)
    assert rows["make-a-user-namespace"]["verdict"] == "held", rows


@pytest.mark.prove
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_whoever_holds_many_watches_of_epoll_is_ended_once_they_are_short(tmp_path: Path) -> None:
    """Millions would be needed for a real shortage: here init believes in one from the beginning."""
    name, short = "use-up-epoll-watches", "return error.errno == errno.ENOSPC\n        return False"
    edit = Edit("engine/counting.py", short, short.replace("False", "True"))
    row = attack("user", (edit,), [name], tmp_path)[name]
    assert (row["verdict"], row["evidence"]) == ("held", "ended by the limit of watches")
