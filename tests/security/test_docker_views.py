"""Views on Docker are enforced by the kernel: every known way around them is tried, against a real daemon."""

import asyncio
import contextlib
import platform
import time
from collections.abc import AsyncIterator

import pytest

from corral.backends.docker import DockerBackend
from corral.backends.docker.container import KEY_LABEL
from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, CapabilityError, InvalidCommandError, WorkdirError
from corral.image import Image
from corral.spec import make_spec
from corral.tools.shell import ShellTool
from corral.tools.view import View, Viewer
from support.detours import DETOURS, HOME
from support.detours import SECRET as PASSWORD
from support.dockerd import Daemon

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(240)]

KEPT = f"{HOME}/kept"
FILE = f"{KEPT}/precious"
SECRET = f"{HOME}/secret"


@pytest.fixture(scope="module")
async def backend(daemon: Daemon) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(host=daemon.host, image=daemon.image)
    yield backend
    await backend.aclose()


@pytest.fixture(scope="module")
async def shared(backend: DockerBackend) -> AsyncSandbox:
    """One container for all: each test looks whether it is as it was."""
    return await backend.create(make_spec(exec_timeout=60))


@pytest.fixture
async def box(shared: AsyncSandbox) -> AsyncSandbox:
    script = f"rm -rf {HOME}/* /tmp/*; mkdir -p {KEPT} {SECRET}; printf old > {FILE}; printf hush > {SECRET}/key"
    await shared.exec(script, check=True)
    return shared


CALL = "python3 -c 'import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True); {}'"

WAYS_TO_WRITE = {
    "shell": f"echo new > {FILE}",
    "append": f"echo new >> {FILE}",
    "sh -c": f"sh -c 'echo new > {FILE}'",
    "env": f"env rm -f {FILE}",
    "find -exec": f"find {KEPT} -type f -exec rm -f {{}} ';'; false",
    "find -delete": f"find {KEPT} -type f -delete",
    "new file": f"touch {KEPT}/another",
    "rename": f"mv -f {FILE} {KEPT}/moved",
    "rename out of it": f"mv -f {FILE} /tmp/moved",
    "rename into it": f"touch /tmp/other && mv -f /tmp/other {FILE}",
    "rename the folder": f"mv {KEPT} {HOME}/gone",
    "rename the folder above": "mv /home/daytona /home/gone",
    "remove": f"rm -rf {KEPT}; false",
    "mode": f"chmod 777 {FILE}",
    "times": f"touch {FILE}",
    "truncate": f"truncate -s 0 {FILE}",
    "hard link": f"ln {FILE} /tmp/hard && echo new > /tmp/hard",
    "hard link in it": f"ln {FILE} {KEPT}/hard",
    "by another path": "echo new > /tmp/../home/daytona/kept/precious",
    "by a link": f"ln -s {FILE} /tmp/link && echo new > /tmp/link",
    "by a link to the folder": f"ln -s {KEPT} /tmp/way && echo new > /tmp/way/precious",
    "by its own root": f"echo new > /proc/self/root{FILE}",
    "by its own folder": f"cd {KEPT} && echo new > /proc/self/cwd/precious",
    "by its own descriptor": f"exec 3< {FILE} && echo new > /proc/self/fd/3",
    "by the root of the first": f"echo new > /proc/1/root{FILE}",
    "by the folder of the first": f"echo new > /proc/1/cwd{FILE}",
    "mount": CALL.format(f'sys.exit(libc.mount(b"none", b"{KEPT}", b"tmpfs", 0, None))'),
    "remount": CALL.format(f'sys.exit(libc.mount(None, b"{KEPT}", None, 32 | 4096, None))'),
    "unmount": CALL.format(f'sys.exit(libc.umount2(b"{KEPT}", 2))'),
    "mount_setattr": CALL.format(
        f'sys.exit(libc.syscall(442, -100, b"{KEPT}", 0, (ctypes.c_ulong * 4)(0, 1, 0, 0), 32))'
    ),
    "open_tree": CALL.format(f'sys.exit(libc.syscall(428, -100, b"{KEPT}", 1) < 0)'),
    "unshare": CALL.format("sys.exit(libc.unshare(0x20000))"),
    "user namespace": CALL.format("sys.exit(libc.unshare(0x10020000))"),
    "setns": CALL.format('sys.exit(libc.setns(os.open("/proc/1/ns/mnt", 0), 0))'),
    "chroot": CALL.format('sys.exit(libc.chroot(b"/proc/1/root"))'),
    "python": f"python3 -c \"open('{FILE}', 'w').write('new')\"",
    "in the background": f"(setsid sh -c 'echo new > {FILE}' &); sleep 0.2; false",
}


async def test_read_only_path_can_not_be_written(box: AsyncSandbox) -> None:
    """All ways in one call, since each call takes the daemon a while."""
    look = f"cat {FILE}; ls -a {KEPT}; stat -c '%a %Y %Z %h %i' {FILE}"
    before = (await box.exec(look)).stdout
    script = "\n".join(f"({way}) > /dev/null 2>&1 && echo {name!r}" for name, way in WAYS_TO_WRITE.items())
    result = await box.exec(f"{script}\necho end", read_only=[KEPT], hidden=[SECRET])
    assert result.stdout == "end\n", "these went through"
    assert (await box.exec(look)).stdout == before


async def test_what_is_written_elsewhere_stays(box: AsyncSandbox) -> None:
    script = (
        "mkdir -p /tmp/one /tmp/two; echo made > /tmp/one/file && mv /tmp/one/file /tmp/two/ && echo out > made.txt"
    )
    await box.exec(script, read_only=[KEPT], hidden=[SECRET], check=True)
    assert (await box.exec("cat /tmp/two/file made.txt")).stdout == "made\nout\n"
    free = await box.exec(f"printf new > {FILE}; cat {FILE} {SECRET}/key; cat /proc/self/mountinfo")
    assert free.stdout.startswith("newhush")
    assert "precious" not in free.stdout
    assert "secret" not in free.stdout


NEIGHBOURS = "for root in /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/task/*/root /proc/[0-9]*/fd/*; do"


@contextlib.asynccontextmanager
async def neighbour(box: AsyncSandbox) -> AsyncIterator[AsyncProcess]:
    """An innocent program of another call, which may see everything and holds the files open."""
    script = f"exec 8< {FILE} 9< {SECRET}; echo ready; read line"
    async with await box.start(["sh", "-c", script], cwd=KEPT) as process:
        async for _ in process.output():
            break
        yield process


async def test_a_neighbours_root_is_no_way_round(box: AsyncSandbox) -> None:
    async with neighbour(box) as process:
        reading = f"cat $root{SECRET}/key $root/key $root/precious"
        script = f"{NEIGHBOURS} echo new > $root{FILE}; echo new > $root; {reading}; done"
        result = await box.exec(f"{{ {script}; }} 2>/dev/null; true", read_only=["/"], hidden=[SECRET, FILE])
        assert result.exit_code == 0
        assert "hush" not in result.stdout
        assert "old" not in result.stdout
        trace = CALL.format(f"sys.exit(libc.ptrace(16, {process.pid}, 0, 0))")
        assert (await box.exec(trace, hidden=[SECRET])).exit_code != 0
        assert await box.files.read(FILE) == b"old"


async def test_another_call_can_write_meanwhile(box: AsyncSandbox) -> None:
    async with await box.start(f"read line; cat {FILE}; echo no > {FILE}", read_only=[KEPT]) as restricted:
        await box.exec(f"printf new > {FILE}", check=True)
        await restricted.write("go\n")
        result = await restricted.wait()
    assert result.stdout == "new"  # it sees what others write
    assert "Read-only" in result.stderr
    assert await box.files.read(FILE) == b"new"


@pytest.mark.parametrize("user", [None, "root"])
async def test_the_whole_sandbox_can_be_read_only(box: AsyncSandbox, user: str | None) -> None:
    script = """
        grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status | cut -f 2 | sort -u | tr '\\n' ' '
        for folder in / /tmp /home/daytona /etc /usr /dev /dev/shm /.corral /run; do
            touch $folder/x && echo wrote $folder
            rm -f $folder/enter $folder/hosts && [ ! -e $folder/hosts ] && [ -e /etc/hosts ] || true
        done
        echo x >> /etc/hosts && echo wrote hosts
        echo fine > /dev/null && echo end"""
    result = await box.exec(script, read_only=["/"], user=user)
    assert result.stdout == "0000000000000000 1 2 end\n", result
    assert "wrote" not in result.stdout
    by_link = "ln -s / /tmp/all"
    await box.exec(by_link, check=True)
    assert (await box.exec("touch /tmp/x", read_only=["/tmp/all"], user=user)).exit_code != 0


@pytest.mark.parametrize("user", [None, "root"])
async def test_hidden_is_neither_read_nor_written(box: AsyncSandbox, user: str | None) -> None:
    script = f"""
        cat {FILE} /proc/self/root{FILE}; cp {FILE} /tmp/copy; cat /tmp/copy; find {HOME}; ls -la {SECRET}
        cat {SECRET}/key; cd {SECRET}; cat key; chmod 777 {SECRET}; touch {SECRET}/x; echo new > {FILE}
        mv {SECRET} /tmp/moved; cat /tmp/moved/key; rmdir {SECRET}; rm -f {FILE}; mv /home/daytona /home/alice
        cat /home/alice/secret/key; mv /home/alice /home/daytona"""
    result = await box.exec(script, hidden=[FILE, SECRET], user=user)
    assert "old" not in result.stdout
    assert "hush" not in result.stdout
    assert "key\n" not in result.stdout
    assert (await box.exec(f"cat {FILE} {SECRET}/key; ls {SECRET}")).stdout == "oldhushkey\n"


_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(platform.machine(), 0)
RENAME = f"""
import ctypes, os, sys
base, libc = sys.argv[1], ctypes.CDLL(None)
for folder in (base + "/a", base + "/a/b", base + "/a/b/c"):
    for new in (folder + ".new", base + "/new"):
        try:
            os.rename(folder, new)
            print("renamed")
            os.rename(new, folder)
        except OSError as error:
            print(error.strerror)
    other = (base + "/other").encode()
    if libc.syscall({_RENAMEAT2}, -100, os.fsencode(folder), -100, other, 2) == 0:
        print("exchanged")
        libc.syscall({_RENAMEAT2}, -100, os.fsencode(folder), -100, other, 2)
"""


@pytest.mark.parametrize(("user", "base"), [(None, f"{HOME}/x"), ("root", "/srv/x")])
async def test_folders_above_what_is_hidden_keep_their_names(box: AsyncSandbox, user: str | None, base: str) -> None:
    """Else the next call, to which the same path is hidden, would find the file under another one."""
    make = f"""
        rm -rf {base}; mkdir -p {base}/a/b/c {base}/a/kept {base}/other; cd {base}
        printf hush > a/b/c/key; ln -s a/b link; ln -s {base}/a/b/c a/door"""
    await box.exec(make, user=user, check=True)
    argv = ["python3", "-c", RENAME, base]
    for path in ("a/b/c/key", "link/c/key", "a/door/key"):
        held = await box.exec(argv, hidden=["/proc", f"{base}/{path}"], user=user)
        assert set(held.stdout.splitlines()) == {"Device or resource busy", "Invalid cross-device link"}, held
    script = """
        touch a/b/one && mv a/b/one a/b/two && mv other a/moved && touch a/moved/file && echo moved
        touch a/kept/file || echo kept; cat a/b/c/key"""
    options = {"read_only": [f"{base}/a/kept"], "hidden": [f"{base}/a/b/c/key"]}
    beside = await box.exec(script, cwd=base, user=user, **options)  # type: ignore[arg-type]  # both take paths
    assert beside.stdout == "moved\nkept\n", beside
    await box.exec(["mv", f"{base}/a/moved", f"{base}/other"], user=user, check=True)
    free = await box.exec(argv, user=user)  # for that call only, and each way leads somewhere
    assert free.stdout.splitlines() == ["renamed", "renamed", "exchanged"] * 3, free


async def test_a_view_that_can_not_be_made_runs_nothing(box: AsyncSandbox) -> None:
    for option in ({"read_only": [f"{HOME}/not-there"]}, {"hidden": [SECRET, f"{HOME}/not-there"]}):
        with pytest.raises(InvalidCommandError, match=r"view path .*not-there"):
            await box.exec("touch /tmp/ran", **option)  # type: ignore[arg-type]  # both take paths
    await box.exec("ln -s / /tmp/all; ln -s /proc/1/root /tmp/magic", check=True)
    for path in ("/", "/tmp/all", "/tmp/magic/tmp"):
        with pytest.raises(InvalidCommandError, match="view path"):
            await box.exec("touch /tmp/ran", hidden=[path])
    with pytest.raises(InvalidCommandError, match="unknown user"):
        await box.exec("touch /tmp/ran", hidden=[SECRET], user="no-such-user")
    for folder in (SECRET, f"{HOME}/not-there"):
        with pytest.raises(WorkdirError):
            await box.exec("touch /tmp/ran", hidden=[SECRET], cwd=folder)
    assert not await box.files.exists("/tmp/ran")


async def test_odd_names_and_bytes_travel_unchanged(box: AsyncSandbox) -> None:
    odd = f"{HOME}/a b\\134c\nd\udcff'é"
    await box.files.write(f"{odd}/inner", b"old")
    script = 'cat "$1/inner"; echo new > "$1/inner"; printf %s "$RAW" "$2"; pwd'
    argv = ["sh", "-c", script, "sh", odd, "\\n\\\\ \udcfe"]
    env = {"RAW": "r\udcff", "a.dotted": "yes"}
    result = await box.exec(argv, read_only=[odd], hidden=[SECRET], env=env, cwd=odd)
    expected = b"oldr\xff\\n\\\\ \xfe" + odd.encode("utf-8", "surrogateescape") + b"\n"
    assert result.stdout_bytes == expected
    assert await box.files.read(f"{odd}/inner") == b"old"
    assert "a.dotted=yes\n" in (await box.exec(["env"], hidden=[SECRET], env=env)).stdout


async def test_a_program_with_a_view_is_like_any_other(box: AsyncSandbox) -> None:
    plain = await box.exec("id; env | grep -v CORRAL_CALL | sort; umask; ulimit -a; pwd", cwd="/tmp")
    viewed = await box.exec("id; env | grep -v CORRAL_CALL | sort; umask; ulimit -a; pwd", cwd="/tmp", hidden=[SECRET])
    assert viewed.stdout == plain.stdout
    both = await box.exec("cat; echo err > /dev/stderr; echo out > /dev/stdout; exit 7", stdin="in ", hidden=[SECRET])
    assert (both.stdout, both.stderr, both.exit_code) == ("in out\n", "err\n", 7)
    assert (await box.exec("cat", hidden=[SECRET])).stdout == ""
    assert (await box.exec("kill -TERM $$", hidden=[SECRET])).signal == 15
    assert (await box.exec(["no-such-program"], hidden=[SECRET])).exit_code == 127
    assert (await box.exec(["/tmp"], hidden=[SECRET])).exit_code == 126
    await box.files.write("/tmp/no-shebang", b"echo by a shell $1\n")
    await box.exec("chmod 755 /tmp/no-shebang", check=True)
    assert (await box.exec(["/tmp/no-shebang", "x"], hidden=[SECRET])).stdout == "by a shell x\n"
    async with await box.start("tty; stty size; read line; echo got $line > /dev/tty", pty=True, rows=33, columns=77,
                               hidden=[SECRET]) as process:  # fmt: skip
        await process.write("typed\n")
        shown = (await process.wait()).stdout
    assert "/dev/pts/" in shown
    assert "33 77" in shown
    assert "got typed" in shown


async def test_a_timeout_and_a_cancellation_end_the_tree(box: AsyncSandbox) -> None:
    script = "sleep 4321 & setsid sleep 4321 & echo begun; wait"
    result = await box.exec(script, hidden=[SECRET], timeout=3)
    assert (result.reason, result.stdout) == ("timeout", "begun\n")
    process = await box.start(script, read_only=["/"], hidden=[SECRET])
    async for _ in process.output():
        break
    await process.kill()
    assert "4321" not in (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout


# Only the backend can use the program that makes views.

_UNSHARE = {"x86_64": 272, "aarch64": 97}.get(platform.machine(), 0)
MAKE_NAMESPACE = (
    "import ctypes; libc = ctypes.CDLL(None); "
    f"print(libc.syscall({_UNSHARE}, 0x20000, 0, 0, 0, 0, ctypes.c_ulong({{}})))"
)


async def test_the_filter_opens_to_the_key_alone(box: AsyncSandbox, daemon: Daemon) -> None:
    """The difference is shown by one who has every capability, as no program inside has."""
    key = daemon.run(
        "inspect", "--format", f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}', box.primitives.container
    ).strip()
    exec_root = ("exec", "--privileged", "--user", "0", box.primitives.container, "python3", "-c")
    assert daemon.run(*exec_root, MAKE_NAMESPACE.format(0)) == "-1\n"
    assert daemon.run(*exec_root, MAKE_NAMESPACE.format(int(key, 16) ^ 1)) == "-1\n"
    assert daemon.run(*exec_root, MAKE_NAMESPACE.format(int(key, 16))) == "0\n"
    for user in (None, "root"):
        found = await box.exec(["python3", "-c", MAKE_NAMESPACE.format(int(key, 16))], user=user)
        assert found.stdout == "-1\n"  # the key alone is nothing
    everything = await box.exec("env; cat /proc/self/environ /proc/[0-9]*/cmdline", hidden=[SECRET])
    assert key not in everything.output
    assert "VIEW_KEY" not in everything.output


@pytest.mark.parametrize("user", [None, "root"])
async def test_what_begins_programs_can_not_be_touched_nor_looked_into(box: AsyncSandbox, user: str | None) -> None:
    script = """
        for name in enter file folder ready; do
            echo x > /.corral/$name || rm -rf /.corral/$name || mv /.corral/$name /tmp/ || chmod 777 /.corral/$name
        done && echo touched
        mv /.corral /tmp/corral && echo moved; rmdir /.corral && echo removed; touch /.corral/x && echo wrote
        ln /.corral/enter /tmp/enter && echo linked; cat /.corral/enter > /tmp/copy && echo read
        /.corral/enter wait & sleep 0.2
        for name in environ mem maps fd/0 root/etc exe; do
            head -c 1 /proc/$!/$name > /dev/null && echo looked into $name; ls /proc/$!/$name/ && echo listed $name
        done
        kill -KILL $!; /.corral/enter view t 0 0 0 n 0 0 / 0 0 0 id; echo $?
        CORRAL_VIEW_KEY=0 /.corral/enter view t 0 0 0 n 0 0 / 0 0 0 id; rm -rf /tmp/*"""
    await box.exec("true", hidden=[SECRET], check=True)  # it is put there for the first call that has a view
    result = await box.exec(script, user=user)
    assert result.stdout == "125\nt unshare 1 0\n", result


async def test_an_image_can_not_lay_something_else_in_its_place(daemon: Daemon, backend: DockerBackend) -> None:
    """Over a link the volume would be mounted where it leads, and root inside could put another `enter` there."""
    before = daemon.count()
    text = f"FROM {daemon.image}\nUSER root\nRUN {{}}\n"
    for trick in ("ln -s /tmp /.corral", "mkdir /tmp/x && ln -s tmp/x /.corral"):
        with pytest.raises(BackendUnavailableError, match="has a link"):
            await backend.create(make_spec(image=Image.from_dockerfile(text.format(trick))))
    trick = "mkdir /.corral && cp /bin/true /.corral/enter"
    box = await backend.create(make_spec(image=Image.from_dockerfile(text.format(trick))))
    assert (await box.exec("cat /.corral/enter", read_only=["/"])).exit_code != 0
    assert (await box.exec("touch /tmp/x", read_only=["/"])).exit_code != 0
    await box.kill()
    guard = time.monotonic() + 60
    while daemon.count() > before:
        assert time.monotonic() < guard
        await asyncio.sleep(0.1)


async def test_a_kept_sandbox_a_fork_and_a_started_one_have_views(daemon: Daemon, backend: DockerBackend) -> None:
    async def look(box: AsyncSandbox) -> None:
        await box.files.write("file", b"old")
        result = await box.exec("echo new > file", read_only=["."])
        assert "Read-only" in result.stderr
        assert await box.files.read("file") == b"old"

    box = await backend.create(make_spec())
    await look(box)
    await box.detach()
    other = DockerBackend(host=daemon.host, image=daemon.image)
    try:
        connected = await other.connect(box.id)
        await look(connected)
        fork = await connected.fork()
        assert isinstance(fork, AsyncSandbox)
        await look(fork)
        await fork.kill()
        await connected.stop()
        started = await other.start(box.id)
        await look(started)
        await started.aclose()
    finally:
        await other.delete(box.id)
        await other.aclose()


async def test_the_first_views_of_many_at_once(daemon: Daemon) -> None:
    """Each finds neither image nor volume, or another who makes them just now."""
    before = daemon.count()
    others = [DockerBackend(host=daemon.host, image=daemon.image) for _ in range(4)]
    found = await asyncio.gather(*(other.capabilities() for other in others))
    assert all("views" in capabilities.powers for capabilities in found)
    await asyncio.gather(*(other.aclose() for other in others))
    assert daemon.count() == before


async def test_a_daemon_that_can_not_says_why(daemon: Daemon) -> None:
    gvisor = DockerBackend(host=daemon.host, image=daemon.image, isolation="gvisor")
    found = await gvisor.capabilities()
    assert "views" not in found.powers
    assert any("Landlock" in note for note in found.notes)
    await gvisor.aclose()


async def test_a_container_without_a_key_says_so(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was made by another version."""
    box = await backend.create(make_spec())
    monkeypatch.setattr(box.primitives, "view_key", None)
    with pytest.raises(CapabilityError, match="made without"):
        await box.exec("true", read_only=["/"])
    assert (await box.exec("echo fine")).stdout == "fine\n"
    await box.aclose()


# The shell tool, which all of this is for.


async def test_the_restricted_shell_tool_is_kept_by_the_kernel(box: AsyncSandbox) -> None:
    tool = ShellTool(box, readonly=True, ignore=["secret"], enforcement="kernel")
    assert (await tool.capabilities()).kernel
    for command in (
        f"sh -c 'echo new > {FILE}'", f"env rm -f {FILE}", f"find {KEPT} -type f -exec rm -f {{}} ';'",
        f"cat {SECRET}/key; cat /proc/1/root{SECRET}/key", "touch /tmp/x", "touch /dev/shm/x",
    ):  # fmt: skip
        said = str(await tool.call({"command": command}))
        assert "hush" not in said
    assert (await box.exec(f"cat {FILE}; ls /tmp /dev/shm")).stdout == "old/dev/shm:\n\n/tmp:\n"
    await box.exec("touch /dev/shm/x && rm /dev/shm/x", check=True)
    allowed = ShellTool(box, allowed=["cat", "env"], enforcement="kernel")
    assert "old" in str(await allowed.call({"command": f"cat {FILE}"}))
    for command in (f"rm -f {FILE}", f"env rm -f {FILE}", f"/usr/bin/rm -f {FILE}"):
        assert "ermission denied" in str(await allowed.call({"command": command}))
    assert await box.files.read(FILE) == b"old"
    words = ShellTool(box, allowed=["cat"])  # no shell is among the allowed
    assert "old" in str(await words.call({"command": f"cat {FILE}"}))


RENAMES = ("the folder gets another name", "a folder further up does")
"""Those that only a held folder stops; the rest, which a list of paths does, is long."""


@contextlib.asynccontextmanager
async def taking(detour: str, box: AsyncSandbox) -> AsyncIterator[str]:
    """What the commands of a detour say."""
    steps = DETOURS[detour]
    await box.exec(f"mkdir vault; echo {PASSWORD} > vault/key; {steps.before}", check=True)
    tool = ShellTool(box, ignore=[steps.rule])
    try:
        yield "".join([str(await tool.call({"command": command})) for command in steps.commands])
    finally:
        await box.exec(["chmod", "-R", "u+rwx", HOME], check=True)


@pytest.mark.parametrize(
    "detour", [pytest.param(name, marks=[] if name in RENAMES else [pytest.mark.backends]) for name in DETOURS]
)
async def test_ignored_file_can_not_be_seen_after(box: AsyncSandbox, detour: str) -> None:
    async with taking(detour, box) as said:
        assert PASSWORD not in said


@pytest.mark.backends
@pytest.mark.parametrize("detour", DETOURS)
async def test_it_is_the_kernel_that_keeps_hidden(
    box: AsyncSandbox, detour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(self: Viewer, box: AsyncSandbox, *, workdir: str) -> View:
        return View()

    monkeypatch.setattr(Viewer, "make", make)
    async with taking(detour, box) as said:
        assert PASSWORD in said


async def test_and_so_is_the_one_of_ag2(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.adapters.ag2 import DockerEnvironment, SandboxShellTool

    monkeypatch.setenv("CORRAL_DOCKER_HOST", daemon.host)
    async with DockerEnvironment(image=daemon.image) as environment:
        tool = SandboxShellTool(environment, allowed=["sh", "env", "find"], readonly=True, ignore=["*.key"])
        assert (await tool.capabilities()).kernel
        async with environment.open() as sandbox:
            await sandbox.put_file("a.txt", b"old")
            await sandbox.put_file("my.key", b"hush")
        run = tool._adapter.run
        for command in ("sh -c 'echo y > a.txt'", "env sh -c 'rm -f a.txt'", "find . -name a.txt -exec rm -f {} ';'"):
            told = await run(command)
            assert "old" not in told
        read = await run("sh -c 'while read -r line; do echo $line; done < my*'")
        assert "hush" not in read
        async with environment.open() as sandbox:
            assert await sandbox.get_file("a.txt") == b"old"
