"""The plan: what will be done to the kernel, as a list that can be read, printed and compared before it is done.

This module is pure. `perform.py` is the only one that carries steps out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from corral.engine.recipe import Bound, Identity, Limits, Recipe
from corral.network.inner import ADDRESS, ADDRESS_V6, DNS_PORT, PROXY_PORT

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""Name → the kernel's numbers for it."""
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# Files of /proc that reveal the host or reach into the kernel, and that no program needs.
MASKED_FILES = (
    "cmdline", "config.gz", "interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg",
    "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "modules", "mtrr", "pagetypeinfo", "partitions",
    "sched_debug", "schedstat", "slabinfo", "softirqs", "swaps", "sysrq-trigger", "timer_list", "vmallocinfo",
    "zoneinfo", "buddyinfo", "diskstats", "dma", "locks", "allocinfo", "cgroups", "consoles", "mdstat", "misc",
)  # fmt: skip
MASKED_FOLDERS = ("acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "pressure", "scsi", "sysvipc", "tty")
READ_ONLY_FOLDERS = ("sys",)
# Files of /proc that count events of the whole machine, or identify its boot, but that programs expect: what they read
# instead. Each sandbox gets a random boot id.
RANDOM_ID = "a random id"
_QUOTA_COUNTERS = (
    "allocated_dquots", "cache_hits", "drops", "free_dquots", "lookups", "reads", "syncs", "writes",
)  # fmt: skip
MADE_UP_FILES = {
    "sys/fs/aio-nr": "0",
    "sys/fs/dentry-state": "0\t0\t45\t0\t0\t0",
    "sys/fs/file-nr": "0\t0\t9223372036854775807",
    "sys/fs/inode-nr": "0\t0",
    "sys/fs/inode-state": "0\t0\t0\t0\t0\t0\t0",
    **{f"sys/fs/quota/{name}": "0" for name in _QUOTA_COUNTERS},
    "sys/kernel/pty/nr": "0",
    "sys/kernel/random/boot_id": RANDOM_ID,
}
# 0 makes the kernel refuse; seccomp refuses as well. Init itself creates a mount namespace for a restricted view.
USER_LIMITS = {
    "max_user_namespaces": 0,
    "max_pid_namespaces": 0,
    "max_net_namespaces": 0,
    "max_ipc_namespaces": 0,
    "max_uts_namespaces": 0,
    "max_cgroup_namespaces": 0,
    "max_time_namespaces": 0,
    "max_mnt_namespaces": 256,
    "max_inotify_instances": 128,
    "max_inotify_watches": 65536,
}
# Rootless, these are taken from the limits of the host's user, of which each sandbox gets the part 1/SHARE.
SHARED_LIMITS = {
    "max_inotify_instances": "fs/inotify/max_user_instances",
    "max_inotify_watches": "fs/inotify/max_user_watches",
}
SHARE = 16
# Connections in TIME_WAIT use kernel memory that no cgroup counts.
NETWORK_LIMITS = {"ipv4/tcp_max_tw_buckets": 4096}
COPIES = "copies"
"""In the sandbox's folder on the host: copies of folders of the host, by the number of their tree."""
TERMINALS = 64
"""The machine has 3,072 for all sandboxes together."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `corral doctor` and the golden tests show its text form."""

    def __str__(self) -> str:
        words = " ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != "")
        return f"{type(self).__name__} {words}".rstrip()


@dataclass(frozen=True, slots=True)
class OpenLayer(Step):
    """Open a host folder before anything covers it."""

    name: str
    path: str


class PrivateMounts(Step):
    """The host sees no mount of this namespace."""


class OwnCgroupView(Step):
    """The sandbox sees its own cgroup as the root."""


@dataclass(frozen=True, slots=True)
class Staging(Step):
    """A small tmpfs in which the new root is built. Layers get short names, the only ones that mountinfo shows."""

    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attach(Step):
    """Mount an opened layer under its short name."""

    name: str


@dataclass(frozen=True, slots=True)
class OpenSource(Step):
    """Open a volume or a folder of the host, through no link, to be mounted in the sandbox."""

    name: str
    path: str
    writable: bool


@dataclass(frozen=True, slots=True)
class MountPoint(Step):
    """A folder of the sandbox to mount on, created if it is missing; a link on its path is refused."""

    target: str


@dataclass(frozen=True, slots=True)
class Show(Step):
    """Show an attached source, or a folder below it that no link leads to, at a mount point."""

    name: str
    subpath: str
    target: str


@dataclass(frozen=True, slots=True)
class Tmpfs(Step):
    """A bounded file system in memory."""

    target: str
    mode: str
    size_bytes: int
    inodes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class MakeFolders(Step):
    """Folders in the staging area."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlay(Step):
    """Copy-on-write over layers; without `upper`, read-only."""

    target: str
    lowers: tuple[str, ...]
    upper: str


@dataclass(frozen=True, slots=True)
class Proc(Step):
    """A new /proc; processes of other users are hidden."""

    target: str


@dataclass(frozen=True, slots=True)
class LimitNamespaces(Step):
    """Limits of this user namespace and of this network namespace.

    `shared` limits are also the host's user's: of those a sandbox gets a sixteenth.
    """

    values: tuple[tuple[str, int], ...]
    shared: tuple[tuple[str, str], ...]
    network: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MaskProc(Step):
    """Cover files that reveal the host with our own files, and make /proc/sys read-only.

    Never with a device of the host or a file of the layers: others can open those, and locks on them would be shared.
    """

    files: tuple[str, ...]
    folders: tuple[str, ...]
    read_only: tuple[str, ...]
    made_up: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CoverPrivate(Step):
    """Cover files in these trees that other users of the host may not read: inside, owners are shifted."""

    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Devices(Step):
    """The harmless devices, a private devpts, and the usual links.

    `own` nodes are created by the launcher, in a separate file system for each sandbox. An ordinary user can't create
    any and shows those of the host, with which locks and watches are shared.
    """

    target: str
    names: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    terminals: int
    own: bool


@dataclass(frozen=True, slots=True)
class ReadOnly(Step):
    """Make this mount read-only."""

    target: str


class Pivot(Step):
    """The new root becomes /, and the host's tree is detached."""


class Loopback(Step):
    """127.0.0.1 works; no other interface exists."""


@dataclass(frozen=True, slots=True)
class Resolver(Step):
    """The socket of the sandbox's name server. The host side holds it, and answers."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Redirect(Step):
    """Listeners that get every connection which is not to loopback. The host side holds them, and decides.

    Where the kernel can't do that, the listeners are there, and programs have to use them as their proxy.
    """

    listeners: tuple[str, ...]
    port: int


@dataclass(frozen=True, slots=True)
class Hostname(Step):
    """The sandbox's host name."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteFiles(Step):
    """Small files the sandbox starts with."""

    paths: tuple[str, ...]


# What happens between fork and execve of each program.


@dataclass(frozen=True, slots=True)
class ResourceLimits(Step):
    """setrlimit, always after the user namespace exists, so that sandboxes do not share a count."""

    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OfferToOom(Step):
    """When memory runs out, the kernel kills a program rather than init."""

    score: int


@dataclass(frozen=True, slots=True)
class DropBounding(Step):
    """No program started from here can ever gain these capabilities."""

    capabilities: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BecomeUser(Step):
    """Real, effective and saved ids, and no extra groups."""

    uid: int
    gid: int
    set_groups: bool


@dataclass(frozen=True, slots=True)
class SetCapabilities(Step):
    """Permitted and effective become exactly this mask."""

    mask: int


class NoNewPrivileges(Step):
    """execve never raises privileges from here on."""


class Filter(Step):
    """The seccomp allow list."""


class CloseOthers(Step):
    """Only the three standard descriptors stay open."""


def plan_sandbox(recipe: Recipe, identity: Identity) -> list[Step]:
    """The steps by which init becomes the first process of a sandbox."""
    names, opening = _name_layers(recipe)
    earlier = tuple(layer_name(number) for number in range(len(recipe.layers)))
    opening += [OpenLayer(name, layer.folder + "/disk") for name, layer in zip(earlier, recipe.layers, strict=True)]
    overlays: list[Step] = []
    uppers: list[str] = []
    for index, tree in enumerate(recipe.trees):
        lowers = tuple(names[path] for path in lower_paths(recipe, index))
        upper = ""
        if tree.writable:
            upper = f"d/{index}"
            uppers += [f"{upper}/u", f"{upper}/w"]
            lowers = (*_find_in_layers(recipe, tree.target), *lowers)
        elif len(lowers) == 1:
            lowers = (*lowers, "e")  # an overlay needs two layers when it has no upper
        if tree.outside:
            overlays.append(MountPoint(tree.target))
        overlays.append(Overlay("root" + tree.target.rstrip("/"), lowers, upper))
    sources = [source_name(number) for number in range(len(recipe.mounts))]
    opening += [
        OpenSource(name, source_path(recipe, bound), bound.writable)
        for name, bound in zip(sources, recipe.mounts, strict=True)
    ]
    folders = ("root", "d", "e", *names.values(), *earlier, *sources)
    steps: list[Step] = [OwnCgroupView(), PrivateMounts(), *opening]
    if not recipe.ephemeral:
        steps.append(OpenLayer("d", recipe.folder + "/disk"))
    steps.append(Staging(folders))
    steps += [Attach(name) for name in (*names.values(), *earlier, *sources)]
    if recipe.ephemeral:
        limits = recipe.limits
        steps += [Tmpfs("d", "0755", limits.disk_bytes, limits.inodes, executable=True), MakeFolders(tuple(uppers))]
    else:
        steps.append(Attach("d"))
    steps += overlays
    steps += [
        Proc("root/proc"),
        LimitNamespaces(
            tuple(USER_LIMITS.items()),
            tuple(SHARED_LIMITS.items()) if identity.rootless else (),
            tuple(NETWORK_LIMITS.items()),
        ),
        MaskProc(MASKED_FILES, MASKED_FOLDERS, READ_ONLY_FOLDERS, tuple(MADE_UP_FILES.items())),
        *([] if identity.rootless else [CoverPrivate(shown_by_host(recipe))]),
        Devices("root/dev", tuple(DEVICES), tuple(DEVICE_LINKS.items()), TERMINALS, not identity.rootless),
        Tmpfs("root/dev/shm", "1777", recipe.limits.shared_memory_bytes, 4096, executable=True),
        ReadOnly("root/dev"),
        *_show_mounts(recipe),
        Pivot(),
        Loopback(),
        Resolver(ADDRESS, DNS_PORT),
        *plan_redirect(recipe),
        Hostname(recipe.hostname),
        DropBounding(tuple(bit for bit in range(64) if not BUILD_CAPABILITIES >> bit & 1)),
    ]
    if recipe.files:
        steps.append(WriteFiles(tuple(recipe.files)))
    return steps


def plan_redirect(recipe: Recipe) -> list[Step]:
    """The steps that a sandbox needs to reach anything; for a running one too, when its policy changes."""
    return [Redirect((ADDRESS, ADDRESS_V6), PROXY_PORT)] if recipe.redirect else []


def shown_by_host(recipe: Recipe) -> tuple[str, ...]:
    """Default trees: folders of the host that every sandbox shows, such as /usr."""
    trees = (tree for tree in recipe.trees if tree.target != "/" and not tree.outside)
    return tuple(tree.target for tree in trees if tree.lowers[-1] == tree.target)


def plan_child(limits: Limits, *, soft_limits: bool) -> list[Step]:
    """The first steps of a child of init, for any program."""
    rlimits = [
        ("CORE", 1),  # less than any dump has; and unlike with 0, the kernel starts no program of the host for one
        ("NOFILE", limits.open_files),
        ("NPROC", limits.processes),
        ("FSIZE", limits.disk_bytes),
        ("MSGQUEUE", 0),
        ("MEMLOCK", 8 * 1024 * 1024),
        ("SIGPENDING", 1024),
    ]
    if soft_limits:
        # No cgroup bounds memory: at least no single process can pass the sandbox's limit.
        rlimits.append(("DATA", limits.memory_bytes))
    return [OfferToOom(500), ResourceLimits(tuple(rlimits))]


def plan_program(identity: Identity, *, uid: int, gid: int) -> list[Step]:
    """The steps of that child before it becomes the program, as the program's user."""
    capabilities = BUILD_CAPABILITIES if uid == 0 else 0
    return [
        DropBounding(tuple(bit for bit in range(64) if (BUILD_CAPABILITIES & ~capabilities) >> bit & 1)),
        BecomeUser(uid, gid, not identity.rootless),
        SetCapabilities(capabilities),
        NoNewPrivileges(),
        CloseOthers(),
        Filter(),
    ]


# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service: what an image build or apt needs, and
# nothing that reaches beyond the sandbox's own user namespace.
BUILD_CAPABILITIES = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 10))


def _name_layers(recipe: Recipe) -> tuple[dict[str, str], list[Step]]:
    names: dict[str, str] = {}
    opening: list[Step] = []
    for index, tree in enumerate(recipe.trees):
        for path in lower_paths(recipe, index):
            if path not in names:
                names[path] = name = f"l{len(names)}"
                opening.append(OpenSource(name, path, writable=False) if tree.outside else OpenLayer(name, path))
    return names, opening


def lower_paths(recipe: Recipe, index: int) -> tuple[str, ...]:
    """The folders of the host below the writes to a tree."""
    tree = recipe.trees[index]
    return (f"{recipe.folder}/{COPIES}/{index}",) if tree.copied else tree.lowers


def layer_name(number: int) -> str:
    """The short name of a layer, counted from the uppermost."""
    return f"s{number}"


def source_name(number: int) -> str:
    """The short name of a volume or a folder of the host."""
    return f"v{number}"


def source_path(recipe: Recipe, bound: Bound) -> str:
    """Where the files of a mount are on the host; for a volume in an image, the launcher mounts that instead."""
    if not bound.volume:
        return bound.source
    data_folder = os.path.dirname(os.path.dirname(recipe.folder))
    return f"{data_folder}/volumes/{bound.source}/data"


def _show_mounts(recipe: Recipe) -> list[Step]:
    """The mount point of each mount, and then the mount."""
    steps: list[Step] = []
    for number, bound in enumerate(recipe.mounts):
        steps += [MountPoint(bound.target), Show(source_name(number), bound.subpath, bound.target)]
    return steps


def _find_in_layers(recipe: Recipe, target: str) -> list[str]:
    """The folders with earlier writes to one tree, uppermost first."""
    layers = enumerate(recipe.layers)
    return [f"{layer_name(n)}/{layer.trees[target]}/u" for n, layer in layers if target in layer.trees]


def render(steps: list[Step]) -> str:
    """The plan as text, one step a line."""
    return "\n".join(str(step) for step in steps)
