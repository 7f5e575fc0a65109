"""Writing files: whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxIsFolderError,
    SandboxNoSpaceError,
    SandboxNotFolderError,
    SandboxPermissionError,
)
from corral.spec import Resources
from corral.testing.check import Context, check, equal, pieces, raises, repeat, true


async def names_in(box: AsyncSandbox, folder: str = ".") -> list[str]:
    """The names in a folder: nothing unfinished may be among them."""
    return [file.name for file in await box.files.list(folder)]


@check(promise="files.write", title="write takes bytes, text and streams, makes folders, and gives the size")
async def write_takes_every_content(context: Context) -> None:
    box = await context.open()
    equal(await box.files.write("a/b/c.txt", "ü"), 2)
    equal(await box.files.write("a/b/bytes", b"123"), 3)
    equal(await box.files.write("a/b/stream", pieces(b"12", b"", b"345")), 5)
    equal(await box.files.read("a/b/stream"), b"12345")
    equal(await box.files.write("a/b/stream", pieces()), 0)
    equal(await box.files.read("a/b/stream"), b"")
    equal(await names_in(box, "a/b"), ["bytes", "c.txt", "stream"])
    for content in (5, None, ["x"]):
        await raises(TypeError, box.files.write("bad", content))  # type: ignore[arg-type]
    true(not await box.files.exists("bad"), "a refused write left a file")


@check(promise="files.write", title="A new file is 0644; a file that is replaced keeps its mode; mode= sets it")
async def write_keeps_the_mode(context: Context) -> None:
    files = (await context.open()).files
    await files.write("new", "x")
    equal((await files.stat("new")).mode, 0o644)
    await files.chmod("new", 0o750)
    await files.write("new", "y")
    equal((await files.stat("new")).mode, 0o750)
    await files.write("new", pieces(b"z"), mode=0o600)
    equal((await files.stat("new")).mode, 0o600)


@check(promise="files.write", title="append adds, exclusive refuses, parents=False makes no folder",
       raises=("files.write:SandboxFileExistsError", "files.write:SandboxFileNotFoundError",
               "files.write:SandboxNotFolderError"))  # fmt: skip
async def write_has_its_modes(context: Context) -> None:
    box = await context.open()
    await box.files.write("log", "one\n", append=True)
    equal(await box.files.write("log", pieces(b"two\n"), append=True), 4)
    equal(await box.files.read("log"), b"one\ntwo\n")
    await raises(SandboxFileExistsError, box.files.write("log", "x", exclusive=True))
    await raises(SandboxFileExistsError, box.files.write("log", pieces(b"x"), exclusive=True))
    await box.files.write("fresh", "x", exclusive=True)
    await raises(SandboxFileNotFoundError, box.files.write("no/such/folder/x", "x", parents=False))
    await raises(SandboxNotFolderError, box.files.write("log/below", "x"))
    await raises(SandboxNotFolderError, box.files.write("log/further/below", pieces(b"x")))
    equal(await names_in(box), ["fresh", "log"])


@check(promise="8", title="Of many exclusive writers exactly one wins")
async def exclusive_write_has_one_winner(context: Context) -> None:
    files = (await context.open()).files
    work = (files.write("lock", str(number), exclusive=True) for number in range(12))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    equal(sum(not isinstance(outcome, BaseException) for outcome in outcomes), 1, "winners")
    equal(sum(isinstance(outcome, SandboxFileExistsError) for outcome in outcomes), 11, "losers")


@check(promise="files.write", title="Writing onto a folder, or below a file, is refused",
       raises=("files.write:SandboxIsFolderError",))  # fmt: skip
async def write_onto_a_folder_is_refused(context: Context) -> None:
    box = await context.open()
    await box.files.mkdir("folder")
    await box.files.write("file", "x")
    await raises(SandboxIsFolderError, box.files.write("folder", "x"))
    await raises(SandboxIsFolderError, box.files.write("folder", pieces(b"x")))
    await raises((NotADirectoryError, FileExistsError), box.files.write("file/below", "x"))
    equal(await names_in(box), ["file", "folder"])


@check(promise="files.write", title="Writing through a link changes its target and keeps the link")
async def write_follows_links(context: Context) -> None:
    files = (await context.open()).files
    await files.write("real/file", "old")
    await files.symlink("link", "real/file")
    await files.write("link", "new")
    equal((await files.stat("link", follow=False)).kind, "link")
    equal(await files.read("real/file"), b"new")
    await files.edit("link", "new", "edited")
    equal((await files.stat("link", follow=False)).kind, "link")
    equal(await files.read("real/file"), b"edited")


@check(promise="files.write", title="Readers see the old or the new content, never a mixture or nothing")
async def write_is_atomic(context: Context) -> None:
    box = await context.open()
    contents = [letter * 300_000 for letter in (b"a", b"b")]
    await box.files.write("shared", contents[0])
    done = asyncio.Event()

    async def read() -> int:
        seen = 0
        while not done.is_set():
            content = await box.files.read("shared")
            if content not in contents:  # the message counts letters: too slow to be made for each read
                raise AssertionError(f"a reader saw {len(content)} bytes of {set(content)}")
            seen += 1
        return seen

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    try:
        for number in range(40):
            await box.files.write("shared", contents[number % 2] if number % 3 else pieces(contents[number % 2]))
            await asyncio.sleep(0)
    finally:  # no reader outlives the sandbox, also when a write fails
        done.set()
        counts = await asyncio.gather(*readers)
    true(min(counts) > 0, "every reader should have read")
    equal(await names_in(box), ["shared"])


@check(promise="files.write", title="A stream that fails leaves the old content and nothing unfinished")
async def failed_stream_leaves_the_old_content(context: Context) -> None:
    box = await context.open()
    await box.files.write("file", "old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ZeroDivisionError("of the caller's own")

    await raises(ZeroDivisionError, box.files.write("file", broken()))
    await raises(ZeroDivisionError, box.files.write("new", broken()))
    equal(await box.files.read("file"), b"old")
    equal(await box.files.write("file", "next"), 4)
    equal(await names_in(box), ["file"])


@check(promise="files", title="What the user inside may not change is refused",
       raises=("files:SandboxPermissionError",))  # fmt: skip
async def write_needs_permission(context: Context) -> None:
    box = await context.open()
    await box.files.write("shut/file", "x")
    await box.files.write("fixed", "x", mode=0o444)
    await box.files.chmod("shut", 0o555)
    for path in ("/usr/new", "/usr/bin/new", "shut/new", "fixed"):
        await raises(SandboxPermissionError, box.files.write(path, "x"))
    await raises(SandboxPermissionError, box.files.write("/usr/new", pieces(b"x")))
    await raises(SandboxPermissionError, box.files.mkdir("/usr/folder"))
    await raises(SandboxPermissionError, box.files.remove("shut/file"))
    await raises(SandboxPermissionError, box.files.chmod("/usr", 0o777))
    equal(await names_in(box, "shut"), ["file"])


@check(promise="files", title="A full disk is SandboxNoSpaceError, leaves the old content, and heals",
       needs=frozenset({"ephemeral"}), raises=("files:SandboxNoSpaceError",))  # fmt: skip
async def full_disk_is_told(context: Context) -> None:
    box = await context.open(ephemeral=True, resources=Resources(disk_bytes="8MiB"))
    await box.files.write("file", "old")
    await raises(SandboxNoSpaceError, box.files.write("file", b"x" * (12 << 20)))
    await raises(SandboxNoSpaceError, box.files.write("file", repeat(b"x" * (1 << 20), 12)))
    equal(await box.files.read("file"), b"old")
    equal(await names_in(box), ["file"])
    equal(await box.files.write("file", b"y" * (1 << 20)), 1 << 20)
