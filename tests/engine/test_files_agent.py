"""The file agent against hostile files: it can be killed but not taken over, and no path leads out of the sandbox."""

import asyncio
import bz2
import gzip
import lzma
import os
import secrets
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.base.transfer import pack_host_tree
from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileError, SandboxFileKindError, SandboxFileTooLargeError
from corral.spec import Spec
from corral.tools.permission import real_path
from support.leftovers import count_descriptors, wait_until

HANG_GUARD_SECONDS = 40


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


@pytest.fixture
async def box(backend: EmbeddedBackend) -> AsyncIterator[AsyncSandbox]:
    async with await backend.create(Spec(exec_timeout=60)) as box:
        yield box


async def test_agent_killed_from_inside_is_started_again(box: AsyncSandbox) -> None:
    await box.files.write("f", b"1")
    for _ in range(3):
        # As an ordinary user the agent shares the code's uid, and this reaches it.
        await box.exec("kill -9 -1")
        assert await box.files.read("f") == b"1"
    await box.files.write("f", b"2")
    assert (await box.exec("cat f")).stdout == "2"


async def test_agent_stopped_from_inside_does_not_hang_its_host(box: AsyncSandbox) -> None:
    await box.files.write("f", b"1")
    async with await box.start("while :; do kill -STOP -1; done"):
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            assert await box.files.read("f") == b"1"
            await box.files.write("g", b"2")


async def test_agent_killed_over_and_over_is_a_file_error_and_never_a_dead_sandbox(box: AsyncSandbox) -> None:
    await box.files.write("f", b"1")
    async with await box.start("while :; do kill -9 -1; done"):
        for _ in range(20):
            try:
                assert await box.files.read("f") == b"1"
            except SandboxFileError:
                continue
    assert await box.files.read("f") == b"1"


HOLD = """
import fcntl, time
held = [open(f"held{number}") for number in range(10)]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(1000)
"""


async def test_lock_that_a_program_holds_delays_edits_of_that_file_alone(box: AsyncSandbox) -> None:
    await box.files.write("other", b"1")
    for number in range(10):
        await box.files.write(f"held{number}", b"old")
    async with await box.start(["python3", "-c", HOLD]) as program:
        async for _ in program.output():
            break
        edits = [asyncio.ensure_future(box.files.edit(f"held{number}", "old", "new")) for number in range(10)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):  # one after the other, they would take twice as long
            assert await box.files.read("other") == b"1"
            await box.files.edit("other", "1", "2")
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            await asyncio.gather(*edits)
    assert [await box.files.read(f"held{number}") for number in range(10)] == [b"new"] * 10


MAGIC = [
    "/proc/self/mem", "/proc/self/environ", "/proc/self/maps", "/proc/1/environ", "/proc/self/fd/0", "/proc/self/exe",
    "/proc/self/root/etc/passwd", "/proc/self/cwd/etc/passwd", "/dev/zero", "/dev/null", "/dev/tty", "/proc/version",
]  # fmt: skip


@pytest.mark.parametrize("target", MAGIC)
async def test_link_into_the_kernel_is_not_followed(box: AsyncSandbox, target: str) -> None:
    await box.files.symlink("link", target)
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        with pytest.raises(SandboxFileError):
            await box.files.read("link")
        with pytest.raises(SandboxFileError):
            await box.files.read(target)
        with pytest.raises(SandboxFileError):
            await box.files.write("link", b"x")
        with pytest.raises(SandboxFileError):
            await box.files.write("link", b"x", append=True)


async def test_what_is_not_a_file_is_refused_and_does_not_block(box: AsyncSandbox) -> None:
    await box.exec(
        "mkfifo fifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"; ln -s loop loop",
        check=True,
    )
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        for name in ("fifo", "sock", "loop"):
            with pytest.raises(SandboxFileError):
                await box.files.read(name)
        with pytest.raises(SandboxFileKindError):
            await box.files.write("fifo", b"x")
        found = await box.files.grep("x", path=".")
    assert found.matches == ()


MAKE_DEEP = """
import os, sys
for _ in range(int(sys.argv[1])):
    os.mkdir("deep")
    os.chdir("deep")
    open("file", "w").close()
"""


@pytest.mark.needs_root  # rootless, a tree too deep to be measured counts as a full disk, and its maker is ended
async def test_tree_of_3000_levels_is_removed(box: AsyncSandbox) -> None:
    await box.run_code(MAKE_DEEP, args=["3000"], check=True)
    await box.files.remove("deep", recursive=True)
    assert await box.files.list(".") == []


async def test_tree_of_3000_levels_does_not_break_searching_or_packing(box: AsyncSandbox) -> None:
    await box.run_code(MAKE_DEEP, args=["3000"], check=True)
    found = await box.files.glob("**/file", limit=10)
    assert found.truncated
    await box.files.grep("x", path=".")
    try:
        async for _ in box.files.pack("deep"):
            pass
    except SandboxFileError:
        pass  # deeper than a path can be: refused is fine, a hang or a dead sandbox is not
    await box.exec("true", check=True)


ODD_NAMES = [
    b"\xff\xfe",
    b"new\nline",
    b"-rf",
    b"a b",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b'quote"s',
    b"back\\slash",
    b"*?[",
    b"~",
    b"x" * 255,
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: repr(name[:12]))
async def test_file_with_an_odd_name_makes_the_round_trip(box: AsyncSandbox, name: bytes) -> None:
    path = f"folder/{os.fsdecode(name)}"
    content = secrets.token_bytes(100)
    await box.files.write(path, content)
    assert await box.files.read(path) == content
    assert [info.name for info in await box.files.list("folder")] == [os.fsdecode(name)]
    assert (await box.files.glob("folder/*")).paths == [f"/home/daytona/{path}"]
    seen = await box.exec("ls folder | od -v -An -tx1 | tr -d ' \\n'")
    assert bytes.fromhex(seen.stdout) == name + b"\n"
    await box.files.move(path, "folder/plain")
    await box.files.remove("folder", recursive=True)


RACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("race/real", exist_ok=True)
open("race/real/passwd", "w").write("inside")
os.symlink(sys.argv[1], "race/link")
print("ready", flush=True)
while True:
    libc.renameat2(-100, b"race/real", -100, b"race/link", 2)
"""


async def test_reads_and_writes_never_leave_the_root_while_names_are_exchanged(
    box: AsyncSandbox, tmp_path: Path
) -> None:
    canary = tmp_path / "passwd"
    canary.write_text("host")
    process = await box.start(["python3", "-c", RACE, str(tmp_path)])
    async with process:
        async for chunk in process.output():
            if b"ready" in chunk.data:
                break
        seen, rounds, reads, refusals = set(), 0, 0, 0
        # On a busy machine one side may have hundreds of turns before the other has one: until both ends were met.
        while rounds < 300 or min(reads, refusals) < 5:
            rounds += 1
            try:
                seen.add(await box.files.read("race/real/passwd"))
                reads += 1
                await box.files.write("race/real/passwd", b"inside", parents=bool(rounds % 2))
            except SandboxFileError:
                refusals += 1
    assert seen <= {b"inside", b""}
    assert canary.read_text() == "host"
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]


async def test_file_that_grows_while_it_is_read_comes_to_an_end(box: AsyncSandbox) -> None:
    async with await box.start("while :; do head -c 65536 /dev/zero >> growing; done"):
        while not await box.files.exists("growing"):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            total = 0
            async for chunk in box.files.read_stream("growing"):
                total += len(chunk)
    assert total <= (await box.files.stat("growing")).size


async def test_many_file_operations_leave_no_descriptor_open(box: AsyncSandbox) -> None:
    await box.files.write("f", b"x" * 100_000)
    before = count_descriptors()
    for _ in range(50):
        await box.files.read("f")
        await box.files.write("f", b"y")
        await box.files.list(".")
        with pytest.raises(FileNotFoundError):
            await box.files.read("missing")
        with pytest.raises(SandboxFileError):
            await box.files.edit("f", "not there", "x")
    assert count_descriptors() < before + 20  # other threads open and close some, too


async def test_operation_that_is_cancelled_leaves_nothing_half_written(box: AsyncSandbox) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0.001)

    await box.files.list(".")  # so that the agent is there already
    before = count_descriptors()
    for delay in (0.0, 0.01, 0.05):
        task = asyncio.ensure_future(box.files.write("never", endless()))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(HANG_GUARD_SECONDS):
        while await box.files.list("."):
            await asyncio.sleep(0.02)
    assert wait_until(lambda: count_descriptors() <= before)


WATCHER = """
import ctypes, os, sys, struct
libc = ctypes.CDLL(None)
instance = libc.inotify_init1(os.O_NONBLOCK)
watched = {}
for top in sys.argv[1:]:
    for folder, inner, _ in os.walk(top):
        watched[libc.inotify_add_watch(instance, os.fsencode(folder), 0x20)] = folder  # opened
        if folder.count("/") > 6 or "site-packages" in folder:
            inner.clear()
def take():
    data = b""
    try:
        while True:
            data += os.read(instance, 1 << 20)
    except BlockingIOError:
        return data
take()  # what the walk itself has opened
os.write(1, b"%d\\n" % len(watched))
os.read(0, 1)
data = take()
while data:
    number, mask, _, length = struct.unpack_from("iIII", data)
    os.write(1, os.fsencode(watched.get(number, "?")) + b"/" + data[16:16 + length].rstrip(b"\\0") + b"\\n")
    data = data[16 + length:]
"""


async def test_agent_opens_nothing_but_what_it_is_asked_for(backend: EmbeddedBackend) -> None:
    """Neither libraries nor settings, locales or modules: the sandbox may have written them."""
    async with await backend.create(Spec(exec_timeout=60)) as box:
        await box.files.write("t/f", "plain text")
        ours = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        folders = ["/etc", "/lib", "/usr/lib/locale", "/usr/share/zoneinfo", *sorted(ours)]
        async with await box.start(["python3", "-c", WATCHER, *folders]) as watcher:
            heard = watcher.output()
            told = await anext(heard)
            assert int(told.data) > 10
            await use_every_operation(box)
            await watcher.write(b"x")
            opened = b"".join([piece.data async for piece in heard])
        assert opened.decode().splitlines() == []


async def use_every_operation(box: AsyncSandbox) -> None:
    files = box.files
    await files.stat("t/f")
    await files.list("t")
    await files.glob("**/*")
    await files.grep("(?i)PLAIN", path="t")
    await files.replace("text", "words", path="t")
    await files.edit("t/f", "plain", "other")
    await files.move("t/f", "/dev/shm/f")
    await files.chmod("/dev/shm/f", 0o600)
    await files.symlink("t/l", "nowhere")
    packed = b"".join([piece async for piece in files.pack("t")])
    for content in (packed, gzip.compress(packed), bz2.compress(packed), lzma.compress(packed)):
        await files.unpack("u", once(content))
    with pytest.raises(SandboxFileError):
        await files.unpack("u", once(b"no tar" * 100))
    with pytest.raises(SandboxFileError):
        await files.read("missing")
    await files.remove("t", recursive=True)


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_path_as_deep_as_the_kernel_takes_can_be_written(box: AsyncSandbox) -> None:
    deep = "/tmp/" + "d/" * 1900 + "f"
    await box.files.write(deep, b"found")
    assert await box.files.read(deep) == b"found"
    await box.files.mkdir("/tmp/" + "e/" * 1900)


async def test_holes_come_out_as_holes(box: AsyncSandbox, tmp_path: Path) -> None:
    await box.exec(
        "mkdir t; truncate -s 800M t/sparse; printf end >> t/sparse;"
        " printf mid | dd of=t/sparse bs=1M seek=300 conv=notrunc",
        check=True,
    )
    await box.files.download("t", tmp_path / "t")
    await box.files.download("t/sparse", tmp_path / "single")
    for copy in (tmp_path / "t" / "sparse", tmp_path / "single"):
        found = copy.stat()
        assert found.st_size == 800 * 1024**2 + 3
        assert found.st_blocks * 512 < 1024**2
        with copy.open("rb") as file:
            file.seek(300 << 20)
            assert file.read(4) == b"mid\0"
            file.seek(-3, os.SEEK_END)
            assert file.read() == b"end"
    await box.files.unpack("back", pack_host_tree(tmp_path / "t"))
    kept = await box.exec("cmp t/sparse back/sparse && du -k back/sparse | cut -f1", check=True)
    assert int(kept.stdout) < 1024
    with pytest.raises(SandboxFileTooLargeError):
        await box.files.download("t", tmp_path / "u", max_bytes=500 * 1024**2)


async def test_link_that_is_put_there_after_the_rules_were_asked_leads_nowhere(box: AsyncSandbox) -> None:
    await box.files.write("private/key", "secret\n")
    for place in ("file", "folder/key", "deep/folder/key"):
        await box.files.write(place, "harmless\n")
    work = box.spec.workdir
    names = ("file", "folder", "folder/key", "deep/folder/key")
    file, folder, inner, deep = [await real_path(box.files, name, workdir=work) for name in names]
    new = await real_path(box.files, "folder/new/file", workdir=work)
    await box.exec(
        "rm -r file folder deep/folder; ln -s private/key file; ln -s private folder; ln -s ../private deep/folder"
    )
    for path in (file, inner, deep):
        for attempt in (
            box.files.read(path),
            box.files.write(path, "overwritten"),
            box.files.write(path, "appended", append=True),
            box.files.edit(path, "secret", "edited"),
            box.files.grep("secret", path=path),
        ):
            with pytest.raises(SandboxFileError):
                await attempt
    for attempt in (
        box.files.write(new, "new"),
        box.files.list(folder),
        box.files.glob("**", path=folder),
        box.files.grep("secret", path=folder),
    ):
        with pytest.raises(SandboxFileError):
            await attempt
    assert (await box.exec("cat private/*; ls -A private")).stdout == "secret\nkey\n"


async def test_path_without_links_works_as_any_other(box: AsyncSandbox) -> None:
    work = box.spec.workdir
    path = await real_path(box.files, "new/folder/file", workdir=work)
    await box.files.write(path, "one\n")
    await box.files.write(path, "two\n", append=True)
    await box.files.edit(path, "one", "1")
    assert await box.files.read(path) == b"1\ntwo\n"
    root = await real_path(box.files, "new", workdir=work)
    assert [info.path for info in (await box.files.glob("**/file", path=root)).files] == [path]
    assert [match.path for match in (await box.files.grep("two", path=root)).matches] == [path]
    assert [info.name for info in await box.files.list(root)] == ["folder"]
    assert [info.name for info in await box.files.list(await real_path(box.files, "/", workdir=work))][:1] == ["bin"]
    # The next call begins where the first one did.
    await box.files.write("beside", "x")
    assert (await box.exec("ls")).stdout == "beside\nnew\n"
