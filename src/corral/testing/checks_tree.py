"""Changing the tree: move, remove, mkdir, symlink, chmod, and watching it."""

from __future__ import annotations

import asyncio

from corral.errors import (
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxNotFolderError,
)
from corral.results import WatchEvent
from corral.testing.check import Context, check, equal, raises, true, until


@check(promise="files.move", title="move renames files, folders and links; overwrite=False refuses",
       raises=("files.move:SandboxFileNotFoundError", "files.move:SandboxFileExistsError"))  # fmt: skip
async def move_renames(context: Context) -> None:
    files = (await context.open()).files
    await files.write("a", "a")
    await files.write("b", "b")
    await files.symlink("link", "nowhere")
    await files.write("folder/inner/x", "x")
    await raises(SandboxFileExistsError, files.move("a", "b", overwrite=False))
    equal(await files.read("b"), b"b")
    await files.move("a", "b")
    equal((await files.read("b"), await files.exists("a")), (b"a", False))
    await files.move("folder", "other")
    equal(await files.read("other/inner/x"), b"x")
    await files.move("link", "moved")
    equal((await files.stat("moved", follow=False)).target, "nowhere")
    await raises(SandboxFileNotFoundError, files.move("missing", "c"))
    await raises(SandboxFileNotFoundError, files.move("b", "no/such/folder/b"))
    await files.write("full/x", "x")
    await raises(SandboxFileExistsError, files.move("other", "full"))
    await raises(SandboxFileError, files.move("b", "full"))
    await raises(SandboxFileError, files.move("other", "other/inner/below"))
    await files.move("b", "/tmp/b")
    equal(await files.read("/tmp/b"), b"a")


@check(promise="files.remove", title="remove takes files, links and empty folders; recursive takes all; missing_ok",
       raises=("files.remove:SandboxFileNotFoundError", "files.remove:SandboxFileExistsError"))  # fmt: skip
async def remove_removes(context: Context) -> None:
    files = (await context.open()).files
    await files.write("keep/x", "x")
    await files.write("full/a/b/c", "x")
    await files.symlink("full/link", "../keep")
    await files.symlink("link", "keep")
    await files.mkdir("empty")
    await raises(SandboxFileExistsError, files.remove("full"))
    await files.remove("full", recursive=True)
    await files.remove("empty")
    await files.remove("link")
    await files.remove("keep/x")
    equal([file.name for file in await files.list()], ["keep"])
    await raises(SandboxFileNotFoundError, files.remove("missing"))
    await raises(SandboxFileNotFoundError, files.remove("missing", recursive=True))
    await files.remove("missing", missing_ok=True)
    await files.remove("no/such/folder", missing_ok=True, recursive=True)
    await raises(SandboxFileError, files.remove("/", recursive=True))


@check(
    promise="files.remove",
    title="A tree deeper than a path can say is removed",
    needs=frozenset({"shell", "processes"}),
)
async def deep_tree_is_removed(context: Context) -> None:
    box = await context.open()
    name = "d" * 200
    await box.exec(
        f"mkdir deep && cd deep && for n in $(seq 60); do mkdir {name} && cd -P {name} || exit 1; done", check=True
    )
    await box.files.remove("deep", recursive=True)
    true(not await box.files.exists("deep"), "the tree is still there")


@check(promise="files.mkdir", title="mkdir makes folders; one that is there is fine with parents only",
       raises=("files.mkdir:SandboxFileExistsError", "files.mkdir:SandboxFileNotFoundError"))  # fmt: skip
async def mkdir_makes_folders(context: Context) -> None:
    files = (await context.open()).files
    await files.mkdir("a/b/c", mode=0o700)
    equal((await files.stat("a/b/c")).mode, 0o700)
    equal((await files.stat("a")).mode, 0o755)
    await files.mkdir("a/b/c")
    await raises(SandboxFileExistsError, files.mkdir("a", parents=False))
    await raises(SandboxFileNotFoundError, files.mkdir("no/such", parents=False))
    await files.mkdir("plain", parents=False)
    await files.write("file", "x")
    await raises((SandboxFileExistsError, SandboxNotFolderError), files.mkdir("file"))
    await raises(SandboxFileExistsError, files.mkdir("file", parents=False))


@check(promise="files.symlink", title="symlink makes a link of any text, and never replaces",
       raises=("files.symlink:SandboxFileExistsError",))  # fmt: skip
async def symlink_makes_links(context: Context) -> None:
    files = (await context.open()).files
    for name, target in (("a", "missing"), ("b", "/etc"), ("c", "../../x"), ("d", "with space\nand newline")):
        await files.symlink(name, target)
        equal((await files.stat(name, follow=False)).target, target)
        await raises(SandboxFileExistsError, files.symlink(name, "other"))


@check(promise="files.chmod", title="chmod sets permission bits, through links",
       raises=("files.chmod:SandboxFileNotFoundError",))  # fmt: skip
async def chmod_sets_bits(context: Context) -> None:
    files = (await context.open()).files
    await files.write("file", "x")
    await files.symlink("link", "file")
    for mode in (0o000, 0o400, 0o755, 0o644):
        await files.chmod("link", mode)
        equal((await files.stat("file")).mode, mode)
    await raises(SandboxFileNotFoundError, files.chmod("missing", 0o600))


@check(promise="files.watch", title="watch tells of changes below a folder, also in new ones, until it is closed",
       needs=frozenset({"watch"}))  # fmt: skip
async def watch_tells_of_changes(context: Context) -> None:
    box = await context.open()
    await box.files.mkdir("watched/inner")
    seen: list[WatchEvent] = []

    async def collect(*, recursive: bool) -> None:
        async for event in box.files.watch("watched", recursive=recursive):
            seen.append(event)  # noqa: PERF401 - the watching is cancelled in the middle of it

    for recursive in (True, False):
        seen.clear()
        task = asyncio.ensure_future(collect(recursive=recursive))
        number = 0
        # Nobody says when the watching begins: change until it is seen.
        wanted = ("/watched/direct.txt", "/watched/inner/deep.txt") if recursive else ("/watched/direct.txt",)
        while not all(any(event.path.endswith(name) for event in seen) for name in wanted):
            number += 1
            await box.files.write("watched/inner/deep.txt", str(number))
            await box.files.write("watched/direct.txt", str(number))
            await asyncio.sleep(0.05)
        found = {event.path.removeprefix(f"{box.spec.workdir}/") for event in seen}
        equal("watched/inner/deep.txt" in found, recursive, f"recursive={recursive}: {sorted(found)}")
        while recursive and not any(event.path.endswith("new/x") for event in seen):
            number += 1
            await box.files.write("watched/new/x", str(number))
            await asyncio.sleep(0.05)
        await box.files.remove("watched/direct.txt")
        gone = lambda: any(event.kind == "removed" and event.path.endswith("direct.txt") for event in seen)  # noqa: E731
        await until(gone, True, "a removal was not told")
        task.cancel()
        await raises(asyncio.CancelledError, task)
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n")


@check(promise="files.watch", title="watch needs a folder", needs=frozenset({"watch"}),
       raises=("files.watch:SandboxFileNotFoundError", "files.watch:SandboxNotFolderError"))  # fmt: skip
async def watch_needs_a_folder(context: Context) -> None:
    files = (await context.open()).files
    await files.write("file", "x")
    await raises(SandboxFileNotFoundError, anext(files.watch("missing")))
    await raises(SandboxNotFolderError, anext(files.watch("file")))
