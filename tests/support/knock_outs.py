"""Defences of the engine, each with the change to the sources that switches it off, and the probes that must notice."""

from dataclasses import dataclass
from typing import Literal

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
    Edit("inside/tars/writing.py", "import tarfile\n", "import pwd\nimport tarfile\n"),
    Edit("inside/tars/writing.py", "            self._add_file(path, member)\n", "            pwd.getpwall()\n"),
)
INIT = "engine/init.py"
POLICY = "engine/seccomp/policy.py"

KNOCK_OUTS = (
    KnockOut(
        "settings of git stay inside",
        (Edit("base/transfer.py", "self._git_settings = git_settings\n", "self._git_settings = True\n"),),
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
        (
            Edit(
                "engine/keeper.py",
                "DiskBudget(min(MAX_BUDGET_BYTES, box.recipe.limits.disk_bytes))",
                "DiskBudget(2**40)",
            ),
        ),
        ("print-more-than-the-quota-into-records",),
        says="of the host's disk for a quota of",
    ),
    KnockOut(
        "holes of every size on the way out",
        (Edit("base/transfer.py", "_BLOCK_BYTES = 4096\n", "_BLOCK_BYTES = 65536\n"),),
        ("leave-files-with-holes-for-a-download",),
        says="MiB landed",
    ),
    KnockOut(
        "a bound for what changes while it is packed",
        (Edit("inside/tars/writing.py", "if self._changing > self._max_changing:", "if False:"),),
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
            Edit("engine/trees.py", "        else:\n            self._signal_all(number)\n", ""),
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
        (Edit("inside/processes.py", 'stat[_STATE] == b"Z" and int(stat[_THREADS]) <= 1', 'stat[_STATE] == b"Z"'),),
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
        (Edit("engine/counting.py", "for folder in _table_folders(pid))", 'for folder in (f"/proc/{pid}",))'),),
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
        (Edit("sessions/interpreter/process.py", "if reading.idle or not owned:", "if reading.state:"),),
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
        (Edit("engine/plan.py", "in (0, 1, 3, 4, 5, 6, 7, 10))", "in range(41))"),),
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
            Edit(POLICY, "Match(3, (0,)), Match(3, (0,), high=True)), PRETEND),", "), ALLOW),"),
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
                "return execute(program.argv, program.env)",
                "return execute(program.argv, {**os.environ, **program.env})",
            ),
        ),
        ("read-secrets-of-the-hosts-environment",),
    ),
)
