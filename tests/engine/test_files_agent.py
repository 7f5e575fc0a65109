"""The file agent against hostile files: it can be killed but not turned, and nothing leads out of the sandbox."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.errors import SandboxFileError, SandboxFileKindError
from corral.sandbox import SandboxBase
from corral.spec import Spec
from support.leftovers import count_descriptors, wait_until

HANG_GUARD_SECONDS = 40


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


@pytest.fixture
async def box(backend: EmbeddedBackend) -> AsyncIterator[SandboxBase]:
    async with await backend.create(Spec(exec_timeout=60)) as box:
        yield box


async def test_agent_killed_from_inside_is_started_again(box: SandboxBase) -> None:
    await box.files.write("f", b"1")
    for _ in range(3):
        # As an ordinary user the agent shares the code's uid, and this reaches it.
        await box.exec("kill -9 -1")
        assert await box.files.read("f") == b"1"
    await box.files.write("f", b"2")
    assert (await box.exec("cat f")).stdout == "2"


async def test_agent_stopped_from_inside_does_not_hang_its_host(box: SandboxBase) -> None:
    await box.files.write("f", b"1")
    async with await box.start("while :; do kill -STOP -1; done"):
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            assert await box.files.read("f") == b"1"
            await box.files.write("g", b"2")


async def test_agent_killed_over_and_over_is_a_file_error_and_never_a_dead_sandbox(box: SandboxBase) -> None:
    await box.files.write("f", b"1")
    async with await box.start("while :; do kill -9 -1; done"):
        for _ in range(20):
            try:
                assert await box.files.read("f") == b"1"
            except SandboxFileError:
                continue
    assert await box.files.read("f") == b"1"


MAGIC = [
    "/proc/self/mem", "/proc/self/environ", "/proc/self/maps", "/proc/1/environ", "/proc/self/fd/0", "/proc/self/exe",
    "/proc/self/root/etc/passwd", "/proc/self/cwd/etc/passwd", "/dev/zero", "/dev/null", "/dev/tty", "/proc/kmsg",
]  # fmt: skip


@pytest.mark.parametrize("target", MAGIC)
async def test_link_into_the_kernel_is_not_followed(box: SandboxBase, target: str) -> None:
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


async def test_what_is_not_a_file_is_refused_and_does_not_block(box: SandboxBase) -> None:
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
async def test_tree_of_3000_levels_is_removed(box: SandboxBase) -> None:
    await box.run_code(MAKE_DEEP, args=["3000"], check=True)
    await box.files.remove("deep", recursive=True)
    assert await box.files.list(".") == []


async def test_tree_of_3000_levels_does_not_break_searching_or_packing(box: SandboxBase) -> None:
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
async def test_file_with_an_odd_name_makes_the_round_trip(box: SandboxBase, name: bytes) -> None:
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
    box: SandboxBase, tmp_path: Path
) -> None:
    canary = tmp_path / "passwd"
    canary.write_text("host")
    process = await box.start(["python3", "-c", RACE, str(tmp_path)])
    async with process:
        async for chunk in process.output():
            if b"ready" in chunk.data:
                break
        seen = set()
        for number in range(300):
            try:
                seen.add(await box.files.read("race/real/passwd"))
                await box.files.write("race/real/passwd", b"inside", parents=bool(number % 2))
            except SandboxFileError:
                continue
    assert seen <= {b"inside", b""}
    assert seen
    assert canary.read_text() == "host"
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]


async def test_file_that_grows_while_it_is_read_comes_to_an_end(box: SandboxBase) -> None:
    async with await box.start("while :; do head -c 65536 /dev/zero >> growing; done"):
        while not await box.files.exists("growing"):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(HANG_GUARD_SECONDS):
            total = 0
            async for chunk in box.files.read_stream("growing"):
                total += len(chunk)
    assert total <= (await box.files.stat("growing")).size


async def test_many_file_operations_leave_no_descriptor_open(box: SandboxBase) -> None:
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


async def test_operation_that_is_cancelled_leaves_nothing_half_written(box: SandboxBase) -> None:
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
