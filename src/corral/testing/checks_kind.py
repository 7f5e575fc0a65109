"""Files that are no plain files, and names that are no plain names."""

from __future__ import annotations

from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileKindError, SandboxFileTooLargeError
from corral.testing.check import Context, check, equal, pieces, raises, true, until

REAL = frozenset({"shell", "processes"})
ODD_NAMES = (
    " ", "a b", "-dash", "--", "new\nline", "tab\t", "co:lon", "quo'te\"", "back\\slash", "$(id)", "*", "?", "[x]",
    "ünï", "\u2028",
    "invalid-\udcff\udcfe", "\x01", "%s", "~", "#", "...", "n" * 255,
)  # fmt: skip


@check(promise="files.read", title="A FIFO or a device is refused, and nobody waits for it",
       raises=("files.read:SandboxFileKindError", "files.write:SandboxFileKindError"))  # fmt: skip
async def special_file_is_refused(context: Context) -> None:
    box = await context.open()
    await box.exec(["mkfifo", "fifo"], check=True)
    for path in ("fifo", "/dev/null"):
        await raises(SandboxFileKindError, box.files.read(path))
        await raises(SandboxFileKindError, anext(box.files.read_stream(path)))
        await raises(SandboxFileKindError, box.files.edit(path, "a", "b"))
        await raises(SandboxFileKindError, box.files.write(path, "x"))
        await raises(SandboxFileKindError, box.files.write(path, pieces(b"x"), append=True))
        await raises(SandboxFileKindError, box.files.download(path, context.scratch / "copy"))
    equal([(await box.files.stat(path)).kind for path in ("fifo", "/dev/null")], ["fifo", "device"])
    equal((await box.files.grep("x")).matches, ())
    true(not (context.scratch / "copy").exists(), "a refused download left a file")


@check(promise="files.read", title="Endless devices, sockets and files of /proc are refused", needs=REAL,
       raises=("files.read:SandboxFileKindError",))  # fmt: skip
async def endless_file_is_refused(context: Context) -> None:
    box = await context.open()
    for path in ("/dev/zero", "/dev/urandom", "/proc/self/status", "/proc/self/mem", "/dev/stdin"):
        await raises((SandboxFileKindError, OSError), box.files.read(path, max_bytes=1000))
    for path in ("/dev/zero", "/proc/self/status", "/proc/version"):
        await raises(SandboxFileKindError, box.files.read(path))


@check(promise="4", title="A sparse terabyte is refused at once; a stream of it may be left", needs=REAL)
async def sparse_terabyte_is_refused(context: Context) -> None:
    box = await context.open()
    made = await box.exec("truncate -s 1T sparse || truncate -s 1G sparse")
    if made.exit_code != 0:
        return  # the sandbox's own limit for one file came first
    await raises(SandboxFileTooLargeError, box.files.read("sparse", max_bytes=1 << 20))
    stream = box.files.read_stream("sparse")
    true(set(await anext(stream)) == {0}, "holes are zeros")
    await stream.aclose()  # type: ignore[attr-defined]  # every one of ours is an async generator
    await raises(SandboxFileTooLargeError, box.files.download("sparse", context.scratch / "copy", max_bytes=1 << 20))
    equal(list(context.scratch.iterdir()), [], "a refused download left a file")
    equal((await box.files.grep("x")).matches, ())


@check(promise="4", title="A file that grows while it is read ends at the size it had", needs=REAL)
async def growing_file_ends(context: Context) -> None:
    box = await context.open()
    writer = await box.start("while :; do head -c 100000 /dev/zero >> grows; done")
    await until(lambda: _is_larger(box, "grows", 1_000_000), True, "it does not grow")
    size = (await box.files.stat("grows")).size
    content = await box.files.read("grows")
    true(len(content) >= size, f"{len(content)} of at least {size} bytes")
    await raises(SandboxFileTooLargeError, box.files.read("grows", max_bytes=100_000))
    total = 0
    async for part in box.files.read_stream("grows", chunk_bytes=65536):
        total += len(part)
    true(total >= size, "the stream ended, and not too early")
    await writer.kill()


@check(promise="files", title="Names with newlines, quotes, colons, dashes or invalid UTF-8 work in every method")
async def odd_names_work(context: Context) -> None:
    files = (await context.open()).files
    for name in ODD_NAMES:
        path = f"odd/{name}"
        await files.write(path, f"content of {name!r}")
        equal((await files.stat(path)).name, name)
        await files.edit(path, "content", "text")
        equal(await files.read(path), f"text of {name!r}".encode("utf-8", "surrogateescape"))
        await files.chmod(path, 0o600)
    equal([file.name for file in await files.list("odd")], sorted(ODD_NAMES))
    equal(sorted(file.name for file in (await files.glob("*", path="odd")).files), sorted(ODD_NAMES))
    found = (await files.grep("text of", path="odd", fixed=True, hidden=True)).matches
    equal(sorted(match.path.rpartition("/")[2] for match in found), sorted(ODD_NAMES))
    for name in ODD_NAMES:
        await files.move(f"odd/{name}", f"moved {name}"[:200])
        await files.remove(f"moved {name}"[:200])
    equal(list(await files.list("odd")), [])


@check(promise="files", title="Programs and the file methods see the same odd names", needs=REAL)
async def odd_names_are_the_same_for_programs(context: Context) -> None:
    box = await context.open()
    for name in ODD_NAMES:
        await box.exec(["touch", "--", name], check=True)
    equal([file.name for file in await box.files.list()], sorted(ODD_NAMES))
    equal((await box.exec(["cat", "--", "new\nline", "invalid-\udcff\udcfe"])).exit_code, 0)


async def _is_larger(box: AsyncSandbox, path: str, size: int) -> bool:
    return await box.files.exists(path) and (await box.files.stat(path)).size > size
