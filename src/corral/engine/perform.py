"""The one file that carries plans out. Each step type has one function; the table at the end pairs them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import socket
import stat
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from corral.engine import mounts, plan, redirect, syscalls, wire
from corral.engine.errors import SetupError
from corral.engine.recipe import CODE_GID, CODE_UID, Identity, Recipe
from corral.engine.seccomp.install import Prepared
from corral.inside.nolinks import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, on_error, openat2, opened

DEVICE_LAYER = "dev"
"""The name under which the launcher passes the device nodes."""
_MASKS = "m"
_NO_LINKS = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH
_ROOM_FOR_US = 1024
_LOCKED_DOWN = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_STAGING = "/tmp"  # exists on every Linux; covered by our own tmpfs in our own mount namespace


@dataclass(slots=True)
class Stage:
    """The context in which steps are performed."""

    recipe: Recipe
    identity: Identity
    seccomp: Prepared
    layers: dict[str, int] = field(default_factory=dict)
    """Detached mounts by short name. As root the launcher fills it; otherwise OpenLayer does."""
    private: tuple[str, ...] = ()
    """Paths inside of files that other users of the host may not read; found by the launcher."""
    locks_fd: int | None = None
    """The list of file locks in this PID namespace, opened before it was covered."""
    window: dict[str, socket.socket] = field(default_factory=dict)
    """Sockets for the host side, by name: `dns`, `tcp4`, `tcp6`. Init sends them."""
    listeners: list[socket.socket] = field(default_factory=list)
    """Those of them that init keeps, to see whether a connection waits there."""
    transparent: bool = False
    """True if connections come to the listeners by themselves."""
    plans: dict[tuple[int, int], list[plan.Step]] = field(default_factory=dict)
    """Plans of programs by uid and gid, kept because each program needs the same one."""

    def send_window(self, host: socket.socket, message: wire.Message) -> None:
        """Send the host side a message, and the sockets of the window with it. Raises: OSError."""
        about = {"window": list(self.window), "transparent": self.transparent}
        try:
            wire.send(host, {**message, **about}, tuple(sock.fileno() for sock in self.window.values()))
        finally:
            for name, sock in self.window.items():
                if name.startswith("tcp"):
                    self.listeners.append(sock)
                else:
                    sock.close()
            self.window.clear()

    @property
    def has_unjudged(self) -> bool:
        """True if a connection of a program waits to be looked at outside."""
        if not self.listeners:
            return False
        waiting = select.poll()  # `select` can't look at descriptors above 1,023, and init may have more
        for listener in self.listeners:
            waiting.register(listener, select.POLLIN)
        return bool(waiting.poll(0))


def perform(steps: list[plan.Step], stage: Stage) -> None:
    """Carry out a plan; raises `SetupError` that names the step the kernel refused."""
    for step in steps:
        try:
            _PERFORMERS[type(step)](step, stage)
        except OSError as error:
            raise SetupError(f"{step}: {error.strerror}", step=str(step), errno=error.errno or 0) from error


def open_layer(path: str, *, userns_fd: int | None = None, writable: bool = False) -> int:
    """A detached mount of a host folder, shifted into a user namespace when one is given."""
    tree = syscalls.open_tree(path)
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    if not writable:
        attributes |= syscalls.MOUNT_ATTR_RDONLY
    if userns_fd is not None:
        attributes |= syscalls.MOUNT_ATTR_IDMAP
    with on_error(os.close, tree):
        syscalls.mount_setattr(tree, attr_set=attributes, userns_fd=userns_fd or 0)
    return tree


def _open_layer(step: plan.OpenLayer, stage: Stage) -> None:
    if step.name not in stage.layers:
        stage.layers[step.name] = open_layer(step.path, writable=step.name == "d")


def _private_mounts(step: plan.PrivateMounts, stage: Stage) -> None:
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)


def _own_cgroup_view(step: plan.OwnCgroupView, stage: Stage) -> None:
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def _staging(step: plan.Staging, stage: Stage) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", _STAGING, "tmpfs", flags, "mode=0755,size=1m,nr_inodes=4k")
    os.chdir(_STAGING)
    for folder in step.folders:
        os.mkdir(folder, 0o755)


def _attach(step: plan.Attach, stage: Stage) -> None:
    descriptor = stage.layers.pop(step.name)
    syscalls.move_mount(descriptor, step.name)
    os.close(descriptor)


def _tmpfs(step: plan.Tmpfs, stage: Stage) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    if not step.executable:
        flags |= syscalls.MS_NOEXEC
    syscalls.mount(
        "tmpfs", step.target, "tmpfs", flags, f"mode={step.mode},size={step.size_bytes},nr_inodes={step.inodes}"
    )


def _make_folders(step: plan.MakeFolders, stage: Stage) -> None:
    for path in step.paths:
        os.makedirs(path, 0o755, exist_ok=True)


def _overlay(step: plan.Overlay, stage: Stage) -> None:
    # Relative names: mountinfo shows exactly this text inside. `volatile` avoids a sync of the whole host file system
    # at each unmount; a running sandbox promises no durability.
    options = f"lowerdir={':'.join(step.lowers)},userxattr"
    if step.upper:
        options += f",upperdir={step.upper}/u,workdir={step.upper}/w,volatile"
    syscalls.mount("overlay", step.target, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def _proc(step: plan.Proc, stage: Stage) -> None:
    syscalls.mount("proc", step.target, "proc", _LOCKED_DOWN, "hidepid=2")
    with contextlib.suppress(FileNotFoundError):  # a kernel without file locks
        stage.locks_fd = os.open(f"{step.target}/locks", os.O_RDONLY | os.O_CLOEXEC)


def _limit_namespaces(step: plan.LimitNamespaces, stage: Stage) -> None:
    limits = dict(step.values)
    for name, whole in step.shared:
        with open(f"root/proc/sys/{whole}") as file:
            limits[name] = min(limits[name], max(1, int(file.read()) // plan.SHARE))
    for name, value in (*limits.items(), *step.network):
        try:
            with open(f"root/proc/sys/{'net' if '/' in name else 'user'}/{name}", "w") as file:
                file.write(str(value))
        except FileNotFoundError:
            continue  # a kernel without this kind of namespace has nothing to limit


def _mask_proc(step: plan.MaskProc, stage: Stage) -> None:
    os.mkdir(_MASKS)
    syscalls.mount("tmpfs", _MASKS, "tmpfs", _LOCKED_DOWN, "mode=0755,size=64k,nr_inodes=64")
    texts = {name: str(uuid.uuid4()) if text == plan.RANDOM_ID else text for name, text in step.made_up}
    for number, text in enumerate(("", *texts.values())):
        with open(os.open(f"{_MASKS}/{number}", os.O_CREAT | os.O_WRONLY, 0o444), "w") as file:
            file.write(text + "\n" if text else "")
    os.mkdir(f"{_MASKS}/folder", 0o555)
    _remount_read_only(_MASKS, _LOCKED_DOWN)  # and so is each file of it, wherever it is shown
    for name in step.files:
        if os.path.exists(f"root/proc/{name}"):
            syscalls.mount(f"{_MASKS}/0", f"root/proc/{name}", "", syscalls.MS_BIND)
    for name in step.folders:
        if os.path.isdir(f"root/proc/{name}"):
            flags = syscalls.MS_RDONLY | _LOCKED_DOWN
            syscalls.mount("tmpfs", f"root/proc/{name}", "tmpfs", flags, "mode=0555,size=4k,nr_inodes=2")
    for name in step.read_only:
        path = f"root/proc/{name}"
        syscalls.mount(path, path, "", syscalls.MS_BIND | syscalls.MS_REC)
        _remount_read_only(path, _LOCKED_DOWN)
    for number, name in enumerate(texts, 1):
        if os.path.exists(f"root/proc/{name}"):
            syscalls.mount(f"{_MASKS}/{number}", f"root/proc/{name}", "", syscalls.MS_BIND)


def _cover_private(step: plan.CoverPrivate, stage: Stage) -> None:
    with opened(os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        for path in stage.private:
            try:
                # If files written earlier put a link on this path, the original is hidden as well.
                found = openat2(root, os.fsencode(path).lstrip(b"/"), os.O_PATH, resolve=_NO_LINKS)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                raise
            with opened(found):
                cover = "folder" if stat.S_ISDIR(os.fstat(found).st_mode) else "0"
                syscalls.mount(f"{_MASKS}/{cover}", f"root/proc/self/fd/{found}", "", syscalls.MS_BIND)


def make_devices(owner: int) -> int:
    """A file system with a sandbox's own device nodes, as a descriptor; `owner` is root inside.

    Raises:
        OSError: this process may not create any. Only the host's root may, and not in every container.
    """
    options = {"mode": "0755", "size": "65536", "nr_inodes": "64", "uid": str(owner), "gid": str(owner)}
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
    mount_fd = syscalls.make_filesystem_mount("tmpfs", "tmpfs", options=options, attributes=attributes)
    with on_error(os.close, mount_fd):
        for name, numbers in plan.DEVICES.items():
            os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(*numbers), dir_fd=mount_fd)
            os.chmod(name, 0o666, dir_fd=mount_fd)  # regardless of the umask
            os.chown(name, owner, owner, dir_fd=mount_fd)
        os.close(os.open("null", os.O_RDWR | os.O_CLOEXEC, dir_fd=mount_fd))  # some containers refuse only this
    return mount_fd


def _devices(step: plan.Devices, stage: Stage) -> None:
    nodes = stage.layers.pop(DEVICE_LAYER, None) if step.own else None
    if nodes is not None:
        syscalls.move_mount(nodes, step.target)
        os.close(nodes)
    else:
        flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
        syscalls.mount("tmpfs", step.target, "tmpfs", flags, "mode=0755,size=65536,nr_inodes=64")
        for name in step.names:
            path = f"{step.target}/{name}"
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            syscalls.mount(f"/dev/{name}", path, "", syscalls.MS_BIND)
    for name, goal in step.links:
        os.symlink(goal, f"{step.target}/{name}")
    os.mkdir(f"{step.target}/pts", 0o755)
    os.mkdir(f"{step.target}/shm", 0o1777)
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    options = f"newinstance,ptmxmode=0666,mode=0620,max={step.terminals}"
    syscalls.mount("devpts", f"{step.target}/pts", "devpts", flags, options)


def _read_only(step: plan.ReadOnly, stage: Stage) -> None:
    _remount_read_only(step.target, syscalls.MS_NOSUID | syscalls.MS_NOEXEC)


def _remount_read_only(path: str, flags: int) -> None:
    syscalls.mount("", path, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)


def _pivot(step: plan.Pivot, stage: Stage) -> None:
    os.chdir("root")
    # pivot_root(".", ".") stacks the old root on the new one; detaching "." then lets go of the whole host tree.
    syscalls.pivot_root(".", ".")
    syscalls.umount(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _loopback(step: plan.Loopback, stage: Stage) -> None:
    bring_up_loopback()


def bring_up_loopback() -> None:
    """127.0.0.1 works in this process's network namespace. Raises: OSError."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(sock, get_flags, request))
        fcntl.ioctl(sock, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def _resolver(step: plan.Resolver, stage: Stage) -> None:
    stage.window["dns"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stage.window["dns"].bind((step.address, step.port))


def _redirect(step: plan.Redirect, stage: Stage) -> None:
    listeners: list[socket.socket] = []
    for address in step.listeners:
        try:
            listener = redirect.listen(address, step.port)
        except OSError:
            if not listeners:
                raise
            continue  # a kernel without IPv6 has nothing to redirect there
        listeners.append(listener)
        stage.window["tcp6" if ":" in address else "tcp4"] = listener
    with contextlib.suppress(OSError):
        redirect.install(*listeners)
        stage.transparent = True


def _hostname(step: plan.Hostname, stage: Stage) -> None:
    socket.sethostname(step.name)


def _write_files(step: plan.WriteFiles, stage: Stage) -> None:
    for path in step.paths:
        missing = []
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            os.mkdir(folder, 0o755)
            os.chown(folder, CODE_UID, CODE_GID, follow_symlinks=False)  # in a volume, another sandbox may replace it
        if path.endswith("/"):
            continue
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(stage.recipe.files[path])
        os.chown(path, CODE_UID, CODE_GID)


def _offer_to_oom(step: plan.OfferToOom, stage: Stage) -> None:
    # While a process is not dumpable, this file belongs to the host's root. Being dumpable for a moment is safe: only a
    # process with every capability that this one still has can look into it.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    try:
        with opened(os.open("/proc/self/oom_score_adj", os.O_WRONLY)) as descriptor:
            os.write(descriptor, str(step.score).encode())
    finally:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def _resource_limits(step: plan.ResourceLimits, stage: Stage) -> None:
    for name, value in step.values:
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        if name == "NOFILE" and hard != resource.RLIM_INFINITY:
            # So that our own limit stays the higher one if the user id is shared: see `wire`.
            hard = max(hard - _ROOM_FOR_US, hard // 2)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _drop_bounding(step: plan.DropBounding, stage: Stage) -> None:
    for capability in step.capabilities:
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break  # past the last capability of this kernel
            raise


def _become_user(step: plan.BecomeUser, stage: Stage) -> None:
    if step.set_groups:
        os.setgroups([])
    if step.uid == 0 and not stage.identity.rootless:
        return
    os.setresgid(step.gid, step.gid, step.gid)
    os.setresuid(step.uid, step.uid, step.uid)


def _set_capabilities(step: plan.SetCapabilities, stage: Stage) -> None:
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(step.mask)


def _no_new_privileges(step: plan.NoNewPrivileges, stage: Stage) -> None:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _filter(step: plan.Filter, stage: Stage) -> None:
    stage.seccomp.install()


def _close_others(step: plan.CloseOthers, stage: Stage) -> None:
    syscalls.close_range(3, cloexec=True)


_PERFORMERS: dict[type[plan.Step], Callable[[Any, Stage], None]] = {
    plan.OpenLayer: _open_layer,
    plan.PrivateMounts: _private_mounts,
    plan.OwnCgroupView: _own_cgroup_view,
    plan.Staging: _staging,
    plan.Attach: _attach,
    plan.OpenSource: mounts.open_step,
    plan.MountPoint: mounts.make_mount_point,
    plan.Show: mounts.show,
    plan.Tmpfs: _tmpfs,
    plan.MakeFolders: _make_folders,
    plan.Overlay: _overlay,
    plan.Proc: _proc,
    plan.LimitNamespaces: _limit_namespaces,
    plan.MaskProc: _mask_proc,
    plan.CoverPrivate: _cover_private,
    plan.Devices: _devices,
    plan.ReadOnly: _read_only,
    plan.Pivot: _pivot,
    plan.Loopback: _loopback,
    plan.Resolver: _resolver,
    plan.Redirect: _redirect,
    plan.Hostname: _hostname,
    plan.WriteFiles: _write_files,
    plan.OfferToOom: _offer_to_oom,
    plan.ResourceLimits: _resource_limits,
    plan.DropBounding: _drop_bounding,
    plan.BecomeUser: _become_user,
    plan.SetCapabilities: _set_capabilities,
    plan.NoNewPrivileges: _no_new_privileges,
    plan.Filter: _filter,
    plan.CloseOthers: _close_others,
}
