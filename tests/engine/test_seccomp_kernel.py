"""The filter in a real kernel: what it stops, and that ordinary programs don't notice it."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux only")

# Runs in a child of its own, since a filter can't be taken off. Each probe runs in a grandchild: some change, or kill,
# whoever makes them. Prints what each got: 0, an errno, or minus the signal that ended it.
CHILD = """
import ctypes, json, mmap, os, sys
from corral.engine.seccomp.install import Prepared, native_arch
from corral.engine.seccomp.numbers import numbers

libc = ctypes.CDLL(None, use_errno=True)

def call(name, *args):
    number = numbers(native_arch())[name] if isinstance(name, str) else name
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args))
    return 0 if result != -1 else ctypes.get_errno()

def int80():
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b8140000 00cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return 0

def confine():
    prepared = Prepared()
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    prepared.install()

def probe(what):
    child = os.fork()
    if not child:
        os._exit(int80() if what == "int80" else call(*what))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BAD_FD = -1
X32_GETPID = 0x4000_0000 | 39


class Probe(NamedTuple):
    """A call, what the filter answers, and (where every kernel agrees on it) what happens without the filter."""

    title: str
    call: tuple[str | int, *tuple[int, ...]]
    filtered: int
    unfiltered: int | None = None


PROBES = (
    Probe("ptrace", ("ptrace", 0, 0, 0, 0), errno.EPERM, 0),
    Probe("sync", ("sync",), errno.EPERM),
    Probe("TIOCSTI", ("ioctl", 0, 0x5412, 0), errno.EPERM, errno.ENOTTY),
    Probe("TIOCSTI with a high bit", ("ioctl", 0, 0x1_0000_5412, 0), errno.EPERM, errno.ENOTTY),
    Probe("a filter of one's own", ("seccomp", 99, 0, 0), errno.ENOSYS, errno.EINVAL),
    Probe("a handle of a file", ("name_to_handle_at", -100, 0, 0, 0, 0), errno.EPERM, errno.EFAULT),
    Probe("a personality that runs data", ("personality", 0x400000), errno.EPERM),
    Probe("io_uring", ("io_uring_setup", 1, 0), errno.EPERM),
    Probe("unshare", ("unshare", 0x1000_0000), errno.EPERM),
    Probe("clone into a namespace", ("clone", 0x1000_0011, 0, 0, 0, 0), errno.EPERM),
    Probe("clone3", ("clone3", 0, 0), errno.ENOSYS),
    Probe("setns", ("setns", BAD_FD, 0), errno.EPERM),
    Probe("mount", ("mount", 0, 0, 0, 0, 0), errno.EPERM),
    Probe("fsopen", ("fsopen", 0, 0), errno.EPERM),
    Probe("open_tree", ("open_tree", BAD_FD, 0, 0), errno.EPERM),
    Probe("statmount", ("statmount", 0, 0, 0, 0), errno.ENOSYS),
    Probe("listmount", ("listmount", 0, 0, 0, 0), errno.ENOSYS),
    Probe("chroot", ("chroot", 0), errno.EPERM),
    Probe("bpf", ("bpf", 0, 0, 0), errno.EPERM),
    Probe("perf", ("perf_event_open", 0, 0, 0, 0, 0), errno.EPERM),
    Probe("userfaultfd", ("userfaultfd", 0), errno.EPERM),
    Probe("keyctl", ("keyctl", 0, -3, 0, 0, 0), errno.EPERM),
    Probe("memfd_secret", ("memfd_secret", 0), errno.EPERM),
    Probe("mbind", ("mbind", 0, 0, 0, 0, 0, 0), errno.EPERM),
    Probe("process_vm_readv", ("process_vm_readv", 1, 0, 0, 0, 0, 0), errno.EPERM),
    Probe("AF_VSOCK", ("socket", 40, 1, 0), errno.EAFNOSUPPORT),
    Probe("AF_ALG", ("socket", 38, 5, 0), errno.EAFNOSUPPORT),
    Probe("AF_PACKET", ("socket", 17, 3, 0), errno.EAFNOSUPPORT),
    Probe("netlink XFRM", ("socket", 16, 3, 6), errno.EPROTONOSUPPORT),
    Probe("netlink NETFILTER", ("socket", 16, 3, 12), errno.EPROTONOSUPPORT),
    Probe("SCTP", ("socket", 2, 1, 132), errno.EPROTONOSUPPORT),
    Probe("a raw socket", ("socket", 2, 3, 1), errno.EPERM),
    Probe("a device node", ("mknodat", BAD_FD, 0, 0o020666, 0x103), errno.EPERM),
    Probe("huge pages", ("mmap", 0, 2 << 20, 3, 0x40022, BAD_FD, 0), errno.ENOMEM),
    Probe("asynchronous input and output", ("io_setup", 65536, 0), errno.ENOSYS, errno.EFAULT),
    Probe("a lock that belongs to no process", ("fcntl", 0, 37, 0), errno.EINVAL, errno.EFAULT),
    Probe("a lock of a process", ("fcntl", 0, 6, 0), errno.EFAULT, errno.EFAULT),
    Probe("a large pipe", ("fcntl", 0, 1031, 1 << 20), errno.EPERM, errno.EBADF),
    Probe("a process with the same descriptors", ("clone", 0x411, 0, 0, 0, 0), errno.EINVAL, 0),
    Probe("a socket filter", ("setsockopt", 0, 1, 26, 0, 0), errno.ENOPROTOOPT, errno.ENOTSOCK),
    Probe("a flow label", ("setsockopt", 0, 41, 32, 0, 0), errno.ENOPROTOOPT, errno.ENOTSOCK),
    Probe("new limits of another process", ("prlimit64", 1, 7, 8, 0), errno.EPERM),
    Probe("the same, by a pointer whose low half is zero", ("prlimit64", 1, 7, 1 << 32, 0), errno.EPERM),
    Probe("limits of oneself", ("prlimit64", 0, 7, 0, 0), 0, 0),
    Probe("an x32 number", (X32_GETPID,), errno.ENOSYS),
    Probe("an unknown number", (9999,), errno.ENOSYS, errno.ENOSYS),
    Probe("an allowed call", ("getpid",), 0, 0),
    Probe("a UNIX socket", ("socket", 1, 1, 0), 0, 0),
    Probe("a TCP socket", ("socket", 2, 1, 6), 0, 0),
    Probe("netlink ROUTE", ("socket", 16, 3, 0), 0, 0),
    Probe("a fork", ("clone", 17, 0, 0, 0, 0), 0, 0),
)


def run_child(code: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python with the tested package, and nothing that the filter could get from this process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-c", CHILD + code, *args]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd=cwd, timeout=100)


def run_probes(*, confined: bool, calls: Sequence[object]) -> list[int]:
    start = "confine()" if confined else ""
    done = run_child(
        f"{start}\nprint(json.dumps([probe(what) for what in json.loads(sys.argv[1])]))", json.dumps(calls)
    )
    assert done.returncode == 0, done.stderr
    results: list[int] = json.loads(done.stdout)
    return results


@pytest.fixture(scope="module")
def with_filter() -> dict[str, int]:
    calls = [probe.call for probe in PROBES]
    return dict(zip((probe.title for probe in PROBES), run_probes(confined=True, calls=calls), strict=True))


@pytest.fixture(scope="module")
def without_filter() -> dict[str, int]:
    probes = [probe for probe in PROBES if probe.unfiltered is not None]
    results = run_probes(confined=False, calls=[probe.call for probe in probes])
    return dict(zip((probe.title for probe in probes), results, strict=True))


@pytest.mark.parametrize("probe", PROBES, ids=[probe.title for probe in PROBES])
def test_kernel_answers_as_the_policy_says(with_filter: dict[str, int], probe: Probe) -> None:
    assert with_filter[probe.title] == probe.filtered


def test_probes_see_the_difference(without_filter: dict[str, int]) -> None:
    """The knock-out: the same calls, with no filter on."""
    assert without_filter == {probe.title: probe.unfiltered for probe in PROBES if probe.unfiltered is not None}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="int 0x80 is x86's")
def test_the_32_bit_table_kills() -> None:
    assert run_probes(confined=True, calls=["int80"]) == [-signal.SIGSYS]


def test_filter_without_no_new_privs_is_refused() -> None:
    code = """
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may do without
try:
    Prepared().install()
except OSError as error:
    print(type(error).__name__, error.errno)
"""
    assert run_child(code).stdout.split() == ["SeccompError", str(errno.EACCES)]


def test_filter_outlives_execve(tmp_path: Path) -> None:
    code = "import os, sys\ntry: os.mkfifo('f'); os.mknod('d', 0o020666, 0x103)\nexcept PermissionError: sys.exit(42)"
    assert run_confined([sys.executable, "-c", code], tmp_path).returncode == 42


def test_prepared_filter_serves_many_children_and_does_not_bind_their_parent() -> None:
    code = """
def find_state():
    with open("/proc/self/status") as status:
        return [line for line in status if line.startswith("Seccomp")]

def bind_child():
    child = os.fork()
    if not child:
        prepared.install()
        os._exit(call("unshare", 0))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

prepared, before = Prepared(), find_state()
libc.prctl(38, 1, 0, 0, 0)
print(json.dumps([bind_child(), bind_child(), find_state() == before]))
"""
    assert json.loads(run_child(code).stdout) == [errno.EPERM, errno.EPERM, True]


# --- ordinary programs --------------------------------------------------------------------------------------------

PYTHON = """
import asyncio, multiprocessing, socket, sqlite3, subprocess, sys, tempfile, threading
assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True).stdout == b"42\\n"
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
async def talk():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    await r.read(); w.close(); server.close()
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0
asyncio.run(talk())
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]
sqlite3.connect("db").execute("create table t (x)")
assert socket.if_nameindex() is not None
print("ok")
"""
NODE = """
const { execSync } = require("child_process"), { Worker } = require("worker_threads"), net = require("net");
if (execSync("echo sub").toString() !== "sub\\n") process.exit(1);
new Worker("require('fs').promises.readFile('/proc/self/stat')", { eval: true }).on("exit", () => {
  const server = net.createServer((s) => s.end()).listen(0, "127.0.0.1", () =>
    net.connect(server.address().port, "127.0.0.1").resume().on("close", () => { server.close(); console.log("ok"); }));
});
"""
BASH = "set -e; mkfifo p; (echo a >p &); read x <p; cat <(echo $x) | sort; ls -la / >/dev/null; sync; echo ok"
GIT = """
set -e; git init -q a; cd a; echo x >f; git add f; git -c user.name=a -c user.email=a@b commit -qm first
git gc -q; git clone -q . ../b; git -C ../b log --oneline | grep -q first; echo ok
"""
GCC = """
set -e; printf '#include <pthread.h>\nvoid *f(void *p){return p;}
int main(){pthread_t t; return pthread_create(&t,0,f,0) || pthread_join(t,0);}' >a.c
gcc -pthread a.c -o a; ./a; echo ok
"""
JAVA = """
set -e; printf 'public class A { public static void main(String[] a) throws Exception {
Thread t = new Thread(() -> System.out.println("ok")); t.start(); t.join();
new ProcessBuilder("true").start().waitFor();
java.net.NetworkInterface.getNetworkInterfaces(); } }' >A.java
javac A.java; java -cp . A
"""
# What its maintainer scripts call asks for NETLINK_AUDIT.
DPKG = """
set -e; mkdir -p p/DEBIAN p/opt; printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n' \
>p/DEBIAN/control; echo x >p/opt/f; chown 33:33 p/opt/f; chmod 4755 p/opt/f
dpkg-deb -b p p.deb >/dev/null; mkdir -p r/var/lib/dpkg/info r/var/lib/dpkg/updates; touch r/var/lib/dpkg/status
dpkg --root=r --force-script-chrootless --log=/dev/null -i p.deb >/dev/null; test "$(stat -c %a:%u r/opt/f)" = 4755:33
mkdir -p e/etc; touch e/etc/passwd e/etc/group e/etc/shadow; useradd --prefix "$PWD/e" bob; grep -q bob e/etc/passwd
su nobody -s /bin/sh -c 'echo ok'
"""
PROGRAMS = [
    pytest.param([sys.executable, "-c", PYTHON], id="python"),
    pytest.param(["node", "-e", NODE], id="node", marks=pytest.mark.needs_node),
    pytest.param(["bash", "-c", BASH], id="bash"),
    pytest.param(["bash", "-c", GIT], id="git", marks=pytest.mark.needs_git),
    # Not asked of every machine, so there is no marker: tried where they are.
    *(
        pytest.param(["bash", "-c", script], id=program, marks=marks)
        for program, script, marks in (("gcc", GCC, ()), ("javac", JAVA, ()), ("dpkg", DPKG, pytest.mark.needs_root))
        if shutil.which(program)
    ),
]


def run_confined(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_child("confine()\nos.execvp(sys.argv[1], sys.argv[1:])", *argv, cwd=cwd)


@pytest.mark.parametrize("argv", PROGRAMS)
def test_ordinary_program_runs(argv: list[str], tmp_path: Path) -> None:
    done = run_confined(argv, tmp_path)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["ok"]), done.stderr
