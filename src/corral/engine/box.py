"""The host side of one sandbox: created by the launcher, held by it or by a keeper, and removed completely."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from corral.engine import base, cgroup, mounts, redirect, sweep, syscalls, wire
from corral.engine.client import check, receive_all_within, receive_within
from corral.engine.errors import GoneError, SetupError, UnsupportedError
from corral.engine.init import Init
from corral.engine.layers import LayerStore
from corral.engine.perform import DEVICE_LAYER, Stage, bring_up_loopback, make_devices, open_layer, perform
from corral.engine.plan import COPIES, OpenLayer, layer_name, plan_sandbox, shown_by_host
from corral.engine.private import find_private
from corral.engine.recipe import BASE_FIRST_UID, CODE_UID, UID_RANGE_SIZE, Identity, Layer, Recipe
from corral.engine.sampling import DiskWatch
from corral.engine.seccomp.install import Prepared
from corral.engine.state import DataFolder, read_state, write_state
from corral.engine.storage import FolderStorage, LoopStorage, Storage, mount_layer
from corral.engine.uidrange import UidRange, claim_range, lock_folder, make_shift
from corral.engine.volumes import VolumeStore
from corral.engine.window import Sockets, Window, choose_uid, receive_sockets
from corral.inside.nolinks import on_error, opened
from corral.network.inner import ADDRESS, PROXY_PORT

_SETUP_SECONDS = 20.0
_INIT_SECONDS = 5.0
_LAYER_DESCRIPTORS = 128
_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)


@dataclass(slots=True)
class Workshop:
    """What the launcher knows about the machine, for every sandbox."""

    data: DataFolder
    root: bool
    hierarchy: cgroup.Hierarchy
    storage: Storage
    seccomp: Prepared
    idmapped: bool = True
    """True if lowers can be shifted into a user namespace (tried with the first sandbox)."""
    own_devices: bool = False
    """True if device nodes can be created for each sandbox."""


@dataclass(slots=True)
class Box:
    """A living sandbox, seen from the host."""

    recipe: Recipe
    folder: Path
    lock_fd: int
    pid: int
    pid_fd: int
    host: socket.socket
    group: cgroup.Group
    uids: UidRange | None
    disk_watch: DiskWatch | None
    window: Window | None = None
    """None if whoever asked for the sandbox gave no settings of a network."""
    disk_fd: int | None = None
    """The file system of a loop image, to freeze and to enlarge it."""
    keep_files: bool = False
    """True if its files outlive it: it is being stopped, or was started and has no owner yet."""
    paused: bool = False
    volume_locks: list[int] = field(default_factory=list)
    """Held while it runs, so that none of its volumes is deleted."""
    waiting: list[socket.socket] = field(default_factory=list)
    """Clients that asked for its end and wait for the answer."""

    def kill(self) -> None:
        """End every process in it: the kernel kills a PID namespace with its init."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pid_fd, signal.SIGKILL)

    def clear(self, data: DataFolder) -> None:
        """Remove what is left once init has ended."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if self.window is not None:
            self.window.end_gate()
        cgroup.remove(self.group.paths)
        if not self.keep_files:
            sweep.discard(data, self.folder)
        if self.uids is not None:
            self.uids.unsign()
        self.let_go()
        if self.recipe.layers and not self.keep_files:
            LayerStore(data).collect()

    def rest(self) -> None:
        """End every process in it, and keep its files. Written down first: from then on no crash can lose them."""
        write_state(self.folder, {**(read_state(self.folder) or {}), "stopped": True})
        self.keep_files = True
        self.kill()

    def ask_init(self, message: wire.Message) -> wire.Message:
        """Send init a request and wait a little for its answer. Raises: GoneError, and the errors of `check`."""
        wire.send(self.host, message)
        return check(receive_within(self.host, _INIT_SECONDS))

    def open_window(self) -> None:
        """Add what a sandbox needs to reach anything, if it was created without.

        Raises:
            UnsupportedError: this kernel can't.
            GoneError: init does not answer.
        """
        if self.window is None:
            raise UnsupportedError("the sandbox was created without a window")
        if not self.window.has_listeners:
            wire.send(self.host, {"op": "redirect"})
            answer, descriptors = receive_all_within(self.host, _INIT_SECONDS)
            with on_error(wire.close_all, descriptors):
                check(answer)
            sockets, transparent = _take_window(answer, descriptors)
            self.window.add(sockets, transparent=transparent)
        self.recipe = dataclasses.replace(self.recipe, redirect=True)

    def let_go(self) -> None:
        """Close the descriptors of a sandbox that another process holds now, or that has ended."""
        if self.disk_fd is not None:
            os.close(self.disk_fd)
            self.disk_fd = None
        if self.disk_watch is not None:
            self.disk_watch.close()
        if self.window is not None:
            self.window.let_go()
        self.group.close()
        self.host.close()
        for descriptor in (self.pid_fd, self.lock_fd, *self.volume_locks):
            os.close(descriptor)
        if self.uids is not None:
            self.uids.close()

    def usage(self) -> dict[str, Any]:
        """What the kernel counted."""
        usage: dict[str, Any] = self.group.usage()
        if "memory" in self.group.limited:
            usage["oom_kills"] = self.group.out_of_memory_kills()
        if self.disk_watch is not None:
            usage["disk_bytes"] = self.disk_watch.used_bytes
        return usage


@dataclass(frozen=True, slots=True)
class Resting:
    """A stopped sandbox that is about to be started: its folder, locked by this process."""

    folder: Path
    lock_fd: int
    state: dict[str, Any]


def make_box(
    shop: Workshop,
    recipe: Recipe,
    owner: socket.socket,
    *,
    settings_fd: int | None = None,
    resting: Resting | None = None,
) -> Box:
    """Create a sandbox, or start a stopped one. On failure everything created is removed.

    `settings_fd` has the settings of its network, and is closed here or with the sandbox.

    Raises:
        SetupError: the kernel refused a step.
        UnsupportedError: this machine can't do it.
        RefusedError: one of its layers or volumes is missing, or a volume is in use.
    """
    with contextlib.ExitStack() as undo:
        if settings_fd is not None:
            undo.callback(os.close, settings_fd)
        if resting is not None:
            undo.callback(os.close, resting.lock_fd)
        volume_locks = VolumeStore(shop.data).claim(recipe.mounts)
        undo.callback(wire.close_all, volume_locks)
        at_rest = _uid_at_rest(resting)
        uids = claim_range(shop.data.path, preferred=at_rest) if shop.root else None
        if uids is not None:
            undo.callback(uids.close)
            at_rest = uids.first if at_rest is None else at_rest
        identity = Identity(
            rootless=not shop.root,
            outer_uid=uids.first if uids else os.geteuid(),
            outer_gid=uids.first if uids else os.getegid(),
        )
        group = cgroup.Group.plan(shop.hierarchy, f"corral-{shop.data.instance()}-{recipe.sandbox_id}")
        state = {
            **(resting.state if resting else {}),
            "id": recipe.sandbox_id,
            "cgroups": group.paths,
            "made": time.time(),
            "founded": (resting.state if resting else {}).get("founded", time.time()),
            "maker": os.getpid(),
            "recipe": {**dataclasses.replace(recipe, copies="").to_json(), "layers": []},
            "layers": [layer.name for layer in recipe.layers],
            "first_uid": at_rest,
        }
        folder, lock_fd = _found(shop, recipe, state, resting)
        if resting is None:
            undo.callback(os.close, lock_fd)
            undo.callback(sweep.discard, shop.data, folder)
            if recipe.copies:
                os.rename(recipe.copies, folder / COPIES)
        storage = None if recipe.ephemeral else shop.storage
        on_disk = identity if at_rest is None else Identity(identity.rootless, at_rest, at_rest)
        disk_fd = storage.prepare(recipe, on_disk) if storage else None
        held = {} if disk_fd is None else {"d": disk_fd}
        undo.callback(lambda: wire.close_all(list(held.values())))
        if disk_fd is not None and at_rest is not None and at_rest != identity.outer_uid:
            _shift(disk_fd, at_rest, identity.outer_uid)
        undo.callback(group.close)
        undo.callback(cgroup.remove, group.paths)
        owner_ids = (identity.outer_uid, identity.outer_gid) if uids else None
        group.make(recipe.limits, owner=owner_ids)
        disk_root = None
        if disk_fd is not None and isinstance(storage, LoopStorage):
            disk_root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=disk_fd)
            undo.callback(os.close, disk_root)
        host, inner = wire.make_pair()
        undo.callback(host.close)
        with inner:
            pid = _start_init(shop, recipe, identity, group, inner, owner)
        pid_fd = os.pidfd_open(pid)
        undo.callback(os.close, pid_fd)
        undo.callback(_kill_and_reap, pid)
        sockets, transparent = _guide_setup(shop, recipe, identity, group, pid, host, held)
        undo.pop_all()
    watch = None
    if isinstance(storage, FolderStorage):
        watch = DiskWatch(str(folder / "disk"), recipe.limits.disk_bytes, recipe.limits.inodes)
    window = None
    if settings_fd is not None:
        gate_uid = choose_uid(uids.first) if uids else None
        window = Window(folder, pid_fd, sockets, settings_fd, transparent=transparent, gate_uid=gate_uid)
    else:
        for sock in sockets.values():
            sock.close()
    return Box(
        recipe, folder, lock_fd, pid, pid_fd, host, group, uids, watch,
        window=window, disk_fd=disk_root, keep_files=resting is not None,
        volume_locks=volume_locks,
    )  # fmt: skip


def _found(shop: Workshop, recipe: Recipe, state: dict[str, Any], resting: Resting | None) -> tuple[Path, int]:
    """The sandbox's folder with its lock; its state names the layers before they can be discarded."""
    if resting is not None:
        write_state(resting.folder, state)
        return resting.folder, resting.lock_fd
    if not recipe.layers:
        return shop.data.found(recipe.sandbox_id, state)
    store = LayerStore(shop.data)
    with store.locked():
        store.layers([layer.name for layer in recipe.layers])
        return shop.data.found(recipe.sandbox_id, state)


def _uid_at_rest(resting: Resting | None) -> int | None:
    """The first uid of a stopped sandbox's files; None if it has no files, or there is only one user."""
    if resting is None or not any((resting.folder / disk).exists() for disk in ("disk", "disk.img")):
        return None
    first = resting.state.get("first_uid")
    return first if isinstance(first, int) else None


def _shift(mount_fd: int, at_rest: int, first: int) -> None:
    """Show files that belong to one range of ids as those of another."""
    with opened(make_shift((at_rest, first, UID_RANGE_SIZE))) as userns:
        try:
            syscalls.mount_setattr(mount_fd, attr_set=syscalls.MOUNT_ATTR_IDMAP, userns_fd=userns)
        except OSError as error:
            hint = "sharing snapshots between sandboxes needs Linux 5.19"
            raise UnsupportedError("this kernel does not support id-mapped mounts", hint=hint) from error


def _kill_and_reap(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _start_init(
    shop: Workshop,
    recipe: Recipe,
    identity: Identity,
    group: cgroup.Group,
    inner: socket.socket,
    owner: socket.socket,
) -> int:
    """Clone init into its namespaces and its cgroup."""
    if not identity.rootless:
        # Per-user kernel limits are charged to the creator of the user namespace: use the sandbox's own id.
        os.setresuid(-1, identity.outer_uid, -1)
    try:
        pid = syscalls.clone(_NAMESPACES, cgroup_fd=group.unified_fd)
    except OSError as error:
        raise UnsupportedError(f"this kernel refuses namespaces: {error.strerror}", hint=NAMESPACE_HINT) from error
    finally:
        # Not in the child, which runs this too: its ids are those of the new namespace.
        if os.getpid() != 1 and not identity.rootless:
            os.setresuid(-1, 0, -1)
    if pid == 0:
        _be_init(shop, recipe, identity, inner, owner)
    return pid


def can_make_devices() -> bool:
    """True if this process may create device nodes that work: tried, not guessed."""
    try:
        os.close(make_devices(os.geteuid()))
    except OSError:
        return False
    return True


def can_redirect() -> bool:
    """True if connections of a sandbox can be redirected to its window: tried in a namespace of its own."""
    try:
        pid = syscalls.clone(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET)
    except OSError:
        return False
    if pid == 0:
        with contextlib.suppress(BaseException):
            bring_up_loopback()
            redirect.install(redirect.listen(ADDRESS, PROXY_PORT))
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


NAMESPACE_HINT = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces>0; on "
    "Ubuntu 23.10 or later also kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile), or run as root"
)


def _be_init(
    shop: Workshop, recipe: Recipe, identity: Identity, inner: socket.socket, owner: socket.socket
) -> NoReturn:
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.close_all_but((0, 1, 2, inner.fileno(), owner.fileno()))
        received = wire.receive(inner, max_descriptors=_LAYER_DESCRIPTORS)
        if received is None:
            os._exit(1)
        message, descriptors = received
        names: list[str] = message["fds"]
        given = dict(zip(names, descriptors, strict=True))
        if not identity.rootless:
            os.setresgid(0, 0, 0)
            os.setgroups([])
            os.setresuid(0, 0, 0)
        group_fd, oom_fd = given.pop("group", None), given.pop("oom", None)
        stage = Stage(recipe, identity, shop.seccomp, given, private=tuple(message["private"]))
        perform(plan_sandbox(recipe, identity), stage)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of ids has cleared it
        syscalls.set_process_name("corral-init")
        init = Init(
            stage,
            host=inner,
            owner=owner,
            group_fd=group_fd,
            oom_fd=oom_fd,
            memory_limited=bool(message["memory_limited"]),
        )
        stage.send_window(inner, {"ready": True})
        init.run()
    except SetupError as error:
        wire.send(inner, {"error": str(error), "step": error.step, "errno": error.errno})
    except BaseException as error:  # noqa: BLE001 - see below
        # The only way out of here is _exit: this process must never return into the launcher's loop.
        with contextlib.suppress(OSError):
            wire.send(inner, {"error": repr(error), "step": "init", "errno": getattr(error, "errno", 0) or 0})
    os._exit(1)


def _guide_setup(
    shop: Workshop,
    recipe: Recipe,
    identity: Identity,
    group: cgroup.Group,
    pid: int,
    host: socket.socket,
    descriptors: dict[str, int],
) -> tuple[Sockets, bool]:
    """Give the waiting child its ids, its groups and its layers, and wait until it is ready.

    Returns the sockets of its window, and whether connections come to them by themselves. `descriptors` holds the
    disk, if there is one; all of them are sent and closed.
    """
    try:
        _write_maps(pid, identity)
        group.attach(pid)
        if not identity.rootless:
            descriptors.update(_open_layers(shop, recipe, identity, pid))
            descriptors.update(VolumeStore(shop.data).open_sources(recipe, identity))
            if shop.own_devices:
                descriptors[DEVICE_LAYER] = make_devices(identity.outer_uid)
        if group.unified_fd is not None:
            descriptors["group"] = os.dup(group.unified_fd)
        oom_file = group.out_of_memory_file()
        if oom_file is not None:
            descriptors["oom"] = os.open(oom_file, os.O_RDONLY | os.O_CLOEXEC)
        names = list(descriptors)
        memory_limited = "memory" in group.limited
        private = [] if identity.rootless else _find_private(shop, recipe)
        message = {"fds": names, "memory_limited": memory_limited, "private": private}
        wire.send(host, message, tuple(descriptors.values()))
    except OSError as error:
        raise SetupError(f"{error.strerror or error}", step="prepare", errno=error.errno or 0) from error
    finally:
        wire.close_all(list(descriptors.values()))
        descriptors.clear()
    try:
        answer, received = receive_all_within(host, _SETUP_SECONDS)
    except GoneError as error:
        raise SetupError(f"init did not finish its set-up: {error}", step="init") from error
    if "ready" not in answer:
        wire.close_all(received)
        asked_for = answer.get("step") in mounts.HINTS
        raise SetupError(
            str(answer.get("error")) if asked_for else f"the kernel refused a step: {answer.get('error')}",
            step=str(answer.get("step")),
            errno=int(answer.get("errno", 0)),
            hint=_setup_hint(answer),
        )
    try:
        return _take_window(answer, received)
    except UnsupportedError:
        if recipe.redirect:
            raise
        return {}, False  # an old kernel: lookups are refused, not answered


def _take_window(answer: wire.Message, descriptors: list[int]) -> tuple[Sockets, bool]:
    """The sockets of a window and whether connections come to them by themselves. Raises: as `receive_sockets`."""
    return receive_sockets(answer.get("window"), descriptors), answer.get("transparent") is True


def _find_private(shop: Workshop, recipe: Recipe) -> list[str]:
    """What other users of the host may not read, in the folders that every sandbox shows."""
    kept_in = lock_folder() or shop.data.path
    return [f"{tree}/{path}" for tree in shown_by_host(recipe) for path in find_private(tree, kept_in)]


def _setup_hint(answer: wire.Message) -> str:
    step = str(answer.get("step", ""))
    if step in mounts.HINTS:
        return mounts.HINTS[step]
    if step.startswith(("PrivateMounts", "OwnCgroupView")):
        return NAMESPACE_HINT
    if step.startswith("Proc "):
        return "a container that masks parts of /proc can't hold a sandbox: start it with /proc unmasked"
    if step.startswith("Overlay"):
        return (
            "the data folder's file system can't hold an overlay: set CORRAL_DATA_DIR to a folder on ext4, xfs or btrfs"
        )
    return "`corral doctor` says what this machine can do"


def _write_maps(pid: int, identity: Identity) -> None:
    proc = Path(f"/proc/{pid}")
    try:
        if identity.rootless:
            (proc / "setgroups").write_text("deny")
        (proc / "uid_map").write_text(identity.uid_map)
        (proc / "gid_map").write_text(identity.gid_map)
    except PermissionError as error:
        raise UnsupportedError("user ids can't be mapped in a new namespace", hint=NAMESPACE_HINT) from error


def _open_layers(shop: Workshop, recipe: Recipe, identity: Identity, pid: int) -> dict[str, int]:
    """The lowers as detached mounts, shifted so that files of the host's root belong to root inside."""
    layers: dict[str, int] = {}
    earlier = {layer_name(number): layer for number, layer in enumerate(recipe.layers)}
    bases = shop.data.path / base.FOLDER
    with contextlib.ExitStack() as stack:
        userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, userns)
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(lambda: wire.close_all(list(layers.values())))
        for step in plan_sandbox(recipe, identity):
            if not isinstance(step, OpenLayer) or step.name == "d":
                continue
            if step.name in earlier:
                layers[step.name] = _open_earlier(earlier[step.name], identity)
                continue
            shift = userns
            if shop.idmapped and Path(step.path).parent == bases:
                shift = make_shift(*_extents_of_base(identity.outer_uid))
                stack.callback(os.close, shift)
            layers[step.name] = _open_shifted(shop, step.path, shift)
        undo.pop_all()
    return layers


def _extents_of_base(first: int) -> tuple[tuple[int, int, int], ...]:
    """Root's files belong to root inside; the code's files belong to an id without a login on this machine."""
    return (0, first, 1), (BASE_FIRST_UID + CODE_UID, first + CODE_UID, 1)


def _open_shifted(shop: Workshop, path: str, userns: int) -> int:
    if shop.idmapped:
        try:
            return open_layer(path, userns_fd=userns)
        except FileNotFoundError:
            raise
        except OSError:
            shop.idmapped = False  # an old kernel or file system: ids look foreign inside, nothing is less safe
    return open_layer(path)


def _open_earlier(layer: Layer, identity: Identity) -> int:
    """A mount of an earlier layer, with the ids of this sandbox."""
    if layer.first_uid is None:
        raise UnsupportedError("the snapshot was created by an ordinary user; root can't use it")
    mount_fd = mount_layer(layer)
    with on_error(os.close, mount_fd):
        if layer.first_uid != identity.outer_uid:
            _shift(mount_fd, layer.first_uid, identity.outer_uid)
    return mount_fd
