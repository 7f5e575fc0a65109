"""Probes for the host's files: reading, writing and finding files that do not belong to the sandbox."""

from __future__ import annotations

import functools

from corral.testing.hostile.probe import Probe

_probe = functools.partial(Probe, area="files")
_OWN_ROOT = "each sandbox has its own root by pivot_root, with the host's tree detached"
_NO_HOST_PATH = "no path of the host is visible but the read-only base"
_NO_CAPS = "no capability, and the seccomp list"

READ_SHADOW = _probe(
    "read-the-hosts-password-hashes", "host_leak", "/etc is written new, never copied from the host", """
for path in ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/proc/self/root/etc/shadow", "/proc/1/root/etc/shadow"):
    if any(line.partition(b":")[2].startswith(b"$") for line in peek(path).splitlines()):
        breached(f"{path} holds a hash")
held("no file with a hash in it")
""")  # fmt: skip

READ_CANARY = _probe("read-a-file-of-the-host-by-any-path", "host_leak", _OWN_ROOT, """
roots = ["", "/proc/self/root", "/proc/self/cwd/../../../../../..", "/.." * 12, "/proc/thread-self/root"]
for pid in pids():
    roots += [f"/proc/{pid}/root", f"/proc/{pid}/cwd" + "/.." * 10]
found = [text for path in T["canary_paths"] for root in roots if (text := peek(root + path))]
print(*found)
if found:
    breached(f"{len(found)} of the host's files could be read")
held(f"{len(roots)} ways tried for {len(T['canary_paths'])} files")
""")  # fmt: skip

WRITE_CANARY = _probe("open-a-file-of-the-host-for-writing", "escape", _OWN_ROOT, """
cases = []
for path in T["canary_paths"]:
    for root in ("", "/proc/1/root", "/proc/self/root/../..", "/proc/1/cwd/../../../.."):
        cases += [(root + path, os.O_WRONLY), (root + path + ".new", os.O_WRONLY | os.O_CREAT)]
try_each(os.open, cases, NOT_THERE)
""")  # fmt: skip

LIST_HOMES = _probe("list-the-homes-of-the-host", "host_leak", _NO_HOST_PATH, """
strange = sorted(set(os.listdir("/home")) - {"daytona"})
usual = (".bashrc", ".profile", ".cache", "corral")
for home in ("/root", "/mnt", "/media", "/srv", "/opt"):
    can(lambda: strange.extend(f"{home}/{name}" for name in os.listdir(home) if name not in usual))
for name in (".ssh", ".aws", ".config/gcloud", ".kube", ".docker", ".netrc", ".git-credentials", ".bash_history"):
    for home in ("/root", "/home/daytona", os.path.expanduser("~")):
        if os.path.lexists(f"{home}/{name}"):
            strange.append(f"{home}/{name}")
breached(f"found {strange[:10]}") if strange else held("only the sandbox's own home")
""")  # fmt: skip

FIND_DATA_FOLDER = _probe("reach-the-engines-own-folders", "lateral", _OWN_ROOT, """
paths = (*T["host_folders"], "/d", "/l0", "/e", "/u", "/w", "/proc/1/cwd/d", "/tmp/d/0/u")
try_each(os.listdir, paths, NOT_THERE)
""")  # fmt: skip

PROC_ROOT = _probe(
    "walk-out-through-magic-links", "escape", "init is not dumpable; every process has the same root", """
here = os.stat("/")
looked = 0
for pid in pids():
    for link in ("root", "cwd", "exe"):
        path = f"/proc/{pid}/{link}"
        try:
            goal, found = os.readlink(path), os.stat(path)
        except OSError:
            continue
        looked += 1
        if link == "root" and (found.st_dev, found.st_ino) != (here.st_dev, here.st_ino):
            breached(f"{path} is another root")
        if goal.startswith("(unreachable)"):
            breached(f"{path} leads outside: {goal}")
held(f"{looked} links, all inside")
""")  # fmt: skip

MAP_FILES = _probe(
    "open-what-other-processes-have-mapped", "host_leak", "ptrace access is refused: init is not dumpable", """
def attempt(path):
    if os.path.islink(path):
        return os.readlink(path)
    return (os.listdir(path) if os.path.isdir(path) else read(path, 64)) or None
names = ("mem", "maps", "environ", "auxv", "map_files", "fd", "root", "cwd", "ns/mnt", "stack", "syscall", "pagemap")
try_each(attempt, [f"/proc/1/{name}" for name in names], NOT_THERE)
""")  # fmt: skip

LEAKED_DESCRIPTORS = _probe("use-a-descriptor-that-was-left-open", "escape", "close_range from 3 on before execve", """
listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
left = [int(name) for name in os.listdir(listing) if int(name) != listing]
script = os.path.realpath(sys.argv[0]) if sys.argv else ""
log = []
for number in left:
    try:
        goal = os.readlink(f"/proc/self/fd/{number}")
        kind = os.fstat(number).st_mode
    except OSError:
        continue  # the listing's own
    if number > 2 and os.path.realpath(goal) != script:
        breached(f"descriptor {number} was left open: {goal}")
    if number <= 2 and (stat.S_ISDIR(kind) or stat.S_ISBLK(kind) or stat.S_ISREG(kind)):
        breached(f"descriptor {number} is a file or folder: {goal}")
    if number <= 2 and stat.S_ISCHR(kind) and goal not in ("/dev/null",) and not goal.startswith("/dev/pts/"):
        breached(f"descriptor {number} is a device: {goal}")
    log.append(f"{number}={goal.split(':')[0]}")
held(" ".join(log))
""")  # fmt: skip

OTHERS_DESCRIPTORS = _probe(
    "take-descriptors-of-other-processes", "escape", "ptrace access is refused; pidfd_getfd is not on the list", """
found = []
for pid in pids():
    if pid == os.getpid():
        continue
    try:
        found += [f"{pid}:{os.readlink(f'/proc/{pid}/fd/{name}')}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        pass
strange = [entry for entry in found if "socket:" in entry or "anon_inode" in entry]
if strange:
    breached(f"visible control sockets: {strange[:5]}")
handle = kernel("pidfd_open", 1, 0)
try:
    breached(f"took descriptor {kernel('pidfd_getfd', handle, 3, 0)} of PID 1")
except OSError as error:
    held(f"nothing visible; pidfd_getfd {name_of(error.errno)}")
""")  # fmt: skip

REMOUNT = _probe("mount-remount-or-unmount", "escape", _NO_CAPS, """
REMOUNT, BIND, NOSUID = 32, 4096, 2
try_each(kernel, {
    "bind": ("mount", b"/", b"/tmp", b"", BIND, None),
    "remount root": ("mount", b"", b"/", b"", REMOUNT | BIND, None),
    "remount sysctl": ("mount", b"", b"/proc/sys", b"", REMOUNT | BIND | NOSUID, None),
    "tmpfs": ("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None),
    "proc": ("mount", b"proc", b"/tmp", b"proc", 0, None),
    "unmask": ("umount2", b"/proc/kcore", 2),
    "umount proc": ("umount2", b"/proc", 2),
    "umount root": ("umount2", b"/", 2),
    "pivot_root": ("pivot_root", b"/tmp", b"/tmp"),
    "open_tree": ("open_tree", -100, b"/", 1),
    "move_mount": ("move_mount", -1, b"", -100, b"/tmp", 4),
    "fsopen": ("fsopen", b"tmpfs", 0),
    "fspick": ("fspick", -100, b"/", 0),
    "mount_setattr": ("mount_setattr", -100, b"/", 0, None, 0),
})
""")  # fmt: skip

CHROOT = _probe("escape-by-chroot", "escape", _NO_CAPS, """
def attempt():
    os.makedirs("/tmp/jail", exist_ok=True)
    outside = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(outside)
    for _ in range(20):
        os.chdir("..")
    os.chroot(".")
    return os.listdir("/")
try_all({"chroot": attempt})
""")  # fmt: skip

DEVICE_NODES = _probe("make-device-nodes", "escape", "seccomp on mknod, nodev on every mount, no capability", """
def attempt(folder, kind, major, minor):
    path = f"{folder}/node-{major}-{minor}"
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    try:
        return os.open(path, os.O_RDONLY)
    finally:
        os.unlink(path)
devices = {"memory": (stat.S_IFCHR, 1, 1), "kmsg": (stat.S_IFCHR, 1, 11), "sda": (stat.S_IFBLK, 8, 0),
           "virtio disk": (stat.S_IFBLK, 254, 0), "loop": (stat.S_IFBLK, 7, 0), "whiteout": (stat.S_IFCHR, 0, 0)}
try_each(attempt, {f"{name} in {folder}": (folder, *device)
                   for name, device in devices.items() for folder in ("/tmp", "/dev/shm", ".")})
""")  # fmt: skip

RAW_DEVICES = _probe(
    "open-devices-of-the-host", "escape", "each sandbox has its own /dev with six harmless devices", """
harmless = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
strange = sorted(set(os.listdir("/dev")) - harmless)
if strange:
    breached(f"/dev holds {strange[:10]}")
names = ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "loop-control", "kvm", "fuse", "net/tun",
         "mapper/control", "vsock", "vhost-net", "snapshot", "userfaultfd", "console", "tty0", "uinput", "hpet", "rtc0")
try_each(lambda name: os.open(f"/dev/{name}", os.O_RDONLY), names, NOT_THERE)
""")  # fmt: skip

NEW_DEVICES = _probe("put-something-into-dev", "info", "/dev is read-only", """
try_all({"create": lambda: os.open("/dev/corral-new", os.O_CREAT | os.O_WRONLY),
         "link": lambda: os.symlink("/", "/dev/corral-link") or 1, "remove": lambda: os.unlink("/dev/null") or 1},
        (errno.EROFS, *REFUSED))
""")  # fmt: skip

FILE_HANDLES = _probe(
    "open-files-by-inode-number", "escape", "open_by_handle_at and name_to_handle_at are not on the list", """
handle = ctypes.create_string_buffer(struct.pack("=Ii", 8, 1) + struct.pack("=II", 2, 0) + bytes(120))
root = os.open("/", os.O_RDONLY)
try_each(kernel, {"root inode": ("open_by_handle_at", root, handle, os.O_RDONLY),
                  "no file": ("open_by_handle_at", -1, None, 0),
                  "name": ("name_to_handle_at", -100, b"/usr", None, None, 0)})
""")  # fmt: skip

SYSTEM_FILES = _probe("open-system-programs-for-writing", "escape", "copy-on-write over a read-only layer", """
names = ("/usr/bin/env", "/usr/bin/python3", "/bin/sh", "/usr/lib/os-release", "/opt/corral/python/bin/python3")
try_each(lambda name: os.open(name, os.O_WRONLY), names,
         (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ETXTBSY, errno.EOVERFLOW))
""")  # fmt: skip

HARD_LINKS = _probe(
    "reach-lower-files-by-hard-links", "escape",
    "each sandbox has its own overlay, and hard links to files of other users are refused", """
def attempt(source):
    target = f"/tmp/link-{os.path.basename(source)}"
    try:
        os.link(source, target)
        return os.open(target, os.O_WRONLY)
    finally:
        if os.path.lexists(target):
            os.unlink(target)
try_each(attempt, ("/usr/bin/env", "/usr/lib/os-release", "/proc/self/exe"),
         (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EROFS, errno.EOVERFLOW, errno.ENOENT))
""")  # fmt: skip

SETUID = _probe("gain-privileges-by-a-setuid-file", "escape", "no_new_privs, and nosuid on every mount", """
import shutil, subprocess
open_mounts = [line.split()[4] for line in read("/proc/self/mountinfo", 1 << 20).decode().splitlines()
               if "nosuid" not in line.split()[5] and not line.split()[4].startswith(("/dev/", "/proc/"))]
if open_mounts:
    breached(f"mounted without nosuid: {open_mounts}")
shutil.copyfile("/usr/bin/id", "/tmp/id")
os.chmod("/tmp/id", 0o6755)
before = subprocess.run(["/usr/bin/id"], capture_output=True, text=True).stdout
after = subprocess.run(["/tmp/id"], capture_output=True, text=True).stdout
os.unlink("/tmp/id")
if before != after:
    breached(f"{before} became {after}")
held(before.strip())
""")  # fmt: skip

OVERLAY_ATTRIBUTES = _probe(
    "forge-the-overlays-own-marks", "escape", "the kernel does not let programs inside set overlay attributes", """
os.makedirs("/tmp/forged", exist_ok=True)
def attempt(name, value):
    os.setxattr("/tmp/forged", name, value)
    if name.startswith("user.overlay") and name in os.listxattr("/tmp/forged"):
        # The kernel escapes the name, so it has no effect unless the folder now shows another one.
        return "redirected" if os.listdir("/tmp/forged") else None
cases = (("user.overlay.redirect", b"/usr/bin"), ("user.overlay.opaque", b"y"), ("user.overlay.metacopy", b""),
         ("trusted.overlay.redirect", b"/usr/bin"), ("security.capability", bytes(20)))
try_each(attempt, cases, (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL, errno.EIO))
""")  # fmt: skip

HOST_SOCKETS = _probe("find-sockets-of-daemons", "escape", _NO_HOST_PATH, """
names = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
         "/run/systemd/private", "/run/podman/podman.sock", "/run/snapd.socket", "/run/udev/control",
         "/tmp/.X11-unix/X0")
found = [name for name in names if os.path.lexists(name)]
def look_at(path):
    if stat.S_ISSOCK(os.lstat(path).st_mode):
        found.append(path)
for folder in ("/run", "/var/run", "/tmp", "/var/lib"):
    for root, folders, files in os.walk(folder):
        for name in files:
            can(look_at, f"{root}/{name}")
        if root.count("/") > 4:
            folders.clear()
breached(f"sockets: {found}") if found else held("no socket of a daemon")
""")  # fmt: skip

PRIVATE_FILES = _probe(
    "read-what-the-host-keeps-from-others", "host_leak", "masks, because owners are shifted inside", """
seen = 0
for tree in ("/usr", "/bin", "/sbin", "/lib", "/lib64"):
    if os.path.islink(tree):
        continue
    for folder, folders, names in os.walk(tree):
        for name in folders:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            if stat.S_ISDIR(about.st_mode) and about.st_mode & 5 != 5 and os.access(path, os.R_OK):
                breached(f"{path}, of mode {stat.S_IMODE(about.st_mode):o}, has {len(os.listdir(path))} entries")
        for name in names:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            seen += 1
            if stat.S_ISREG(about.st_mode) and not about.st_mode & 4 and os.access(path, os.R_OK):
                breached(f"{path}, of mode {stat.S_IMODE(about.st_mode):o}, begins with {read(path, 8)!r}")
held(f"{seen} files; root inside can read only those that every user of the host can read")
""", user="root", timeout=40)  # fmt: skip

AS_ROOT = _probe(
    "attack-files-as-root-inside", "escape", "root inside is an ordinary user outside, with few capabilities", """
if os.getuid():
    held(f"no root inside: uid {os.getuid()}")
attempts = {
    "mount": lambda: kernel("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, None),
    "remount": lambda: kernel("mount", b"", b"/proc/sys", b"", 32 | 4096, None),
    "umount": lambda: kernel("umount2", b"/proc/kcore", 2),
    "chroot": lambda: os.chroot("/tmp") or 1,
    "mknod": lambda: os.mknod("/root/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)) or 1,
    "handle": lambda: kernel("open_by_handle_at", os.open("/", os.O_RDONLY), None, 0),
    "sysctl": lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "sysctl of the namespace": lambda: os.open("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY),
    "PID 1": lambda: os.listdir("/proc/1/fd"),
    "memory of PID 1": lambda: os.open("/proc/1/mem", os.O_RDONLY),
    "dev": lambda: os.open("/dev/new", os.O_CREAT | os.O_WRONLY),
}
for path in T["canary_paths"]:
    attempts[path] = lambda p=path: os.open(p, os.O_RDONLY)
try_all(attempts, NOT_THERE)
""", user="root")  # fmt: skip
