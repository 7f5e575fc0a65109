"""The tree: changing and watching it, special files and names, and links that must not lead around rules."""

from __future__ import annotations

import asyncio

from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileKindError,
    SandboxFileNotFoundError,
    SandboxFileTooLargeError,
    SandboxLinkError,
    SandboxNotFolderError,
)
from corral.paths import FollowedPath
from corral.results import WatchEvent
from corral.testing.check import REAL, Context, check, equal, pieces, raises, still_works, true, until, write_tree
from corral.tools.files import FileTools
from corral.tools.permission import OperationRules, Permissions, Rule, real_path


@check("files.move", "move renames files, folders and links; overwrite=False refuses",
       raises="SandboxFileNotFoundError SandboxFileExistsError")  # fmt: skip
async def move_renames(files: AsyncFiles) -> None:
    await write_tree(files, {"a": "a", "b": "b", "folder/inner/x": "x"}, links={"link": "nowhere"})
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


@check("files.remove", "remove takes files, links and empty folders; recursive takes all; missing_ok",
       raises="SandboxFileNotFoundError SandboxFileExistsError")  # fmt: skip
async def remove_removes(files: AsyncFiles) -> None:
    links = {"full/link": "../keep", "link": "keep"}
    await write_tree(files, {"keep/x": "x", "full/a/b/c": "x"}, links=links, folders=["empty"])
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


@check("files.remove", "A tree deeper than the longest path is removed", needs=REAL)
async def deep_tree_is_removed(box: AsyncSandbox) -> None:
    name = "d" * 200
    await box.exec(
        f"mkdir deep && cd deep && for n in $(seq 60); do mkdir {name} && cd -P {name} || exit 1; done", check=True
    )
    await box.files.remove("deep", recursive=True)
    true(not await box.files.exists("deep"), "the tree is still there")


@check("files.mkdir", "mkdir creates folders; an existing one is accepted with parents only",
       raises="SandboxFileExistsError SandboxFileNotFoundError")  # fmt: skip
async def mkdir_makes_folders(files: AsyncFiles) -> None:
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


@check("files.symlink", "symlink creates a link to any text, and never replaces a file",
       raises="SandboxFileExistsError")  # fmt: skip
async def symlink_makes_links(files: AsyncFiles) -> None:
    for name, target in (("a", "missing"), ("b", "/etc"), ("c", "../../x"), ("d", "with space\nand newline")):
        await files.symlink(name, target)
        equal((await files.stat(name, follow=False)).target, target)
        await raises(SandboxFileExistsError, files.symlink(name, "other"))


@check("files.chmod", "chmod sets permission bits, through links", raises="SandboxFileNotFoundError")
async def chmod_sets_bits(files: AsyncFiles) -> None:
    await write_tree(files, {"file": "x"}, links={"link": "file"})
    for mode in (0o000, 0o400, 0o755, 0o644):
        await files.chmod("link", mode)
        equal((await files.stat("file")).mode, mode)
    await raises(SandboxFileNotFoundError, files.chmod("missing", 0o600))


@check("files.watch", "watch reports changes below a folder, also in new folders, until it is closed", needs="watch")
async def watch_tells_of_changes(box: AsyncSandbox) -> None:
    await box.files.mkdir("watched/inner")
    seen: list[WatchEvent] = []

    async def collect(*, recursive: bool) -> None:
        async for event in box.files.watch("watched", recursive=recursive):
            seen.append(event)  # noqa: PERF401 - the watching is cancelled in the middle of it

    for recursive in (True, False):
        seen.clear()
        task = asyncio.ensure_future(collect(recursive=recursive))
        number = 0
        # There is no sign that the watch has started: write until a change is seen.
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
        await until(gone, True, "a removal was not reported")
        task.cancel()
        await raises(asyncio.CancelledError, task)
    await still_works(box)


@check("files.watch", "watch needs a folder", needs="watch", raises="SandboxFileNotFoundError SandboxNotFolderError")
async def watch_needs_a_folder(files: AsyncFiles) -> None:
    await files.write("file", "x")
    await raises(SandboxFileNotFoundError, anext(files.watch("missing")))
    await raises(SandboxNotFolderError, anext(files.watch("file")))


# Special files, and unusual names.

ODD_NAMES = (
    " ", "a b", "-dash", "--", "new\nline", "tab\t", "co:lon", "quo'te\"", "back\\slash", "$(id)", "*", "?", "[x]",
    "ünï", "\u2028",
    "invalid-\udcff\udcfe", "\x01", "%s", "~", "#", "...", "n" * 255,
)  # fmt: skip


@check("files.read", "A FIFO or a device is refused without blocking",
       raises="SandboxFileKindError files.write:SandboxFileKindError")  # fmt: skip
async def special_file_is_refused(context: Context, box: AsyncSandbox) -> None:
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


@check("files.read", "Endless devices, sockets and files of /proc are refused",
       needs=REAL, raises="SandboxFileKindError")  # fmt: skip
async def endless_file_is_refused(box: AsyncSandbox) -> None:
    for path in ("/dev/zero", "/dev/urandom", "/proc/self/status", "/proc/self/mem", "/dev/stdin"):
        await raises((SandboxFileKindError, OSError), box.files.read(path, max_bytes=1000))
    for path in ("/dev/zero", "/proc/self/status", "/proc/version"):
        await raises(SandboxFileKindError, box.files.read(path))


@check("4", "A sparse terabyte is refused at once; a stream of it may be closed early", needs=REAL)
async def sparse_terabyte_is_refused(context: Context, box: AsyncSandbox) -> None:
    made = await box.exec("truncate -s 1T sparse || truncate -s 1G sparse")
    if made.exit_code != 0:
        return  # the sandbox's own limit for one file came first
    await raises(SandboxFileTooLargeError, box.files.read("sparse", max_bytes=1 << 20))
    stream = box.files.read_stream("sparse")
    true(set(await anext(stream)) == {0}, "holes are zeros")
    await stream.aclose()
    await raises(SandboxFileTooLargeError, box.files.download("sparse", context.scratch / "copy", max_bytes=1 << 20))
    equal(list(context.scratch.iterdir()), [], "a refused download left a file")
    equal((await box.files.grep("x")).matches, ())


@check("4", "Reading a file that grows ends at the size it had", needs=REAL)
async def growing_file_ends(box: AsyncSandbox) -> None:
    writer = await box.start("while :; do head -c 100000 /dev/zero >> grows; done")

    async def has_grown() -> bool:
        return await box.files.exists("grows") and (await box.files.stat("grows")).size > 1_000_000

    await until(has_grown, True, "it does not grow")
    size = (await box.files.stat("grows")).size
    content = await box.files.read("grows")
    true(len(content) >= size, f"{len(content)} of at least {size} bytes")
    await raises(SandboxFileTooLargeError, box.files.read("grows", max_bytes=100_000))
    total = 0
    async for part in box.files.read_stream("grows", chunk_bytes=65536):
        total += len(part)
    true(total >= size, "the stream ended, and not too early")
    await writer.kill()


@check("files", "Names with newlines, quotes, colons, dashes or invalid UTF-8 work in every method")
async def odd_names_work(files: AsyncFiles) -> None:
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


@check("files", "Programs and the file methods see the same odd names", needs=REAL)
async def odd_names_are_the_same_for_programs(box: AsyncSandbox) -> None:
    for name in ODD_NAMES:
        await box.exec(["touch", "--", name], check=True)
    equal([file.name for file in await box.files.list()], sorted(ODD_NAMES))
    equal((await box.exec(["cat", "--", "new\nline", "invalid-\udcff\udcfe"])).exit_code, 0)


# Links that are put in a path after the rules were checked for it: they must not lead around the rules.

_SECRET = "secret\n"
_LARGE_BYTES = 5 * 1024 * 1024
"""More than a backend transfers in one piece, so that all code paths of a stream are used."""


@check("files", "A link that replaces a file after the rules were checked is refused",
       raises="files.read:SandboxLinkError files.write:SandboxLinkError "
               "files.edit:SandboxLinkError files.stat:SandboxLinkError files.grep:SandboxLinkError")  # fmt: skip
async def link_in_place_of_a_file_is_refused(context: Context) -> None:
    box = await _prepare(context)
    path = await _follow(box, "file")
    await _replace_by_link(box, "file", "private/key")
    await _refuses_files(box, path)
    await _is_untouched(box)


@check("files", "A link that replaces a folder after the rules were checked is refused",
       raises="files.list:SandboxLinkError files.glob:SandboxLinkError")  # fmt: skip
async def link_in_place_of_a_folder_is_refused(context: Context) -> None:
    box = await _prepare(context)
    names = ("folder", "folder/key", "deep/folder/key", "deep/folder/new/file")
    folder, inner, deep, new = [await _follow(box, name) for name in names]
    await _replace_by_link(box, "folder", "private")
    await _replace_by_link(box, "deep/folder", "../private")
    for path in (inner, deep):
        await _refuses_files(box, path)
    await raises(SandboxLinkError, box.files.write(new, "new"))
    await raises(SandboxLinkError, box.files.write(new, pieces(b"x" * _LARGE_BYTES)))
    await raises(SandboxLinkError, box.files.list(folder))
    await raises(SandboxLinkError, box.files.glob("**", path=folder))
    await raises(SandboxLinkError, box.files.grep("secret", path=folder))
    await _is_untouched(box)


@check("files", "If a link replaces the path during the approval, the operation is refused")
async def link_that_comes_with_the_approval_is_refused(context: Context) -> None:
    box = await _prepare(context)
    rules = Permissions(default="ask", read=OperationRules("ask", (Rule("**/private/**", "deny"),)))

    async def swap(operation: str, path: str, note: str) -> bool:
        await _replace_by_link(box, "folder", "private")
        return True

    tools = FileTools(box, permissions=rules, on_ask=swap)
    calls: tuple[tuple[str, dict[str, str]], ...] = (
        ("read_file", {"path": "folder/key"}),
        ("write_file", {"path": "folder/key", "content": "overwritten"}),
        ("edit_file", {"path": "folder/key", "old_string": "secret", "new_string": "edited"}),
        ("grep", {"pattern": "secret", "path": "folder"}),
        ("ls", {"path": "folder"}),
    )
    for name, arguments in calls:
        await box.files.remove("folder", recursive=True)
        await box.files.write("folder/key", "harmless\n")
        answer = await tools[name](arguments)
        true(not answer.ok and "secret" not in answer.removeprefix("Error"), f"{name} was carried out: {answer}")
        await _is_untouched(box)


@check("files", "A path whose links were followed works like any other")
async def followed_path_works(box: AsyncSandbox) -> None:
    path = await _follow(box, "new/folder/a file\n")
    await box.files.write(path, "one\n")
    await box.files.write(path, "two\n", append=True)
    await box.files.edit(path, "one", "1")
    equal(await box.files.read(path), b"1\ntwo\n")
    equal((await box.files.stat(path)).size, 6)
    await box.files.write(path, pieces(*[b"y" * (1 << 20)] * 5), mode=0o600)
    equal((await box.files.stat(path)).mode, 0o600)
    equal(len(await box.files.read(path)), _LARGE_BYTES)
    second = await _follow(box, "new/.hidden/second")
    await box.files.write(second, "two\n", exclusive=True)
    await box.files.symlink("new/link", ".hidden")
    root = await _follow(box, "new")
    equal([info.path for info in (await box.files.glob("**/second", path=root)).files], [second])
    equal([match.path for match in (await box.files.grep("two", path=root, hidden=True)).matches], [second])
    equal([match.path for match in (await box.files.grep("two", path=second)).matches], [second])
    equal((await box.files.grep("two", path=root)).matches, ())
    equal([info.name for info in await box.files.list(root)], [".hidden", "folder", "link"])
    true(await box.files.list(await _follow(box, "/")), "the root folder is empty")
    missing = await _follow(box, "new/missing")
    await raises(SandboxFileNotFoundError, box.files.read(missing))
    await raises(SandboxFileNotFoundError, box.files.list(missing))
    await raises(SandboxFileNotFoundError, box.files.stat(missing))
    await raises(SandboxFileNotFoundError, box.files.grep("x", path=missing))
    await raises(SandboxFileNotFoundError, box.files.write(FollowedPath(f"{missing}/x"), "x", parents=False))


async def _prepare(context: Context) -> AsyncSandbox:
    box = await context.open()
    harmless = dict.fromkeys(("file", "folder/key", "deep/folder/key"), "harmless\n")
    await write_tree(box.files, {"private/key": _SECRET, **harmless})
    return box


async def _follow(box: AsyncSandbox, name: str) -> FollowedPath:
    return await real_path(box.files, name, workdir=box.spec.workdir)


async def _replace_by_link(box: AsyncSandbox, name: str, target: str) -> None:
    await box.files.remove(name, recursive=True)
    await box.files.symlink(name, target)


async def _refuses_files(box: AsyncSandbox, path: FollowedPath) -> None:
    await raises(SandboxLinkError, box.files.read(path))
    await raises(SandboxLinkError, box.files.write(path, "overwritten"))
    await raises(SandboxLinkError, box.files.write(path, "appended", append=True))
    await raises(SandboxLinkError, box.files.write(path, pieces(b"x" * _LARGE_BYTES)))
    await raises(SandboxLinkError, box.files.edit(path, "secret", "edited"))
    await raises(SandboxLinkError, box.files.grep("secret", path=path))
    await raises(SandboxLinkError, box.files.stat(path))


async def _is_untouched(box: AsyncSandbox) -> None:
    equal(await box.files.read("private/key"), _SECRET.encode())
    equal([info.name for info in await box.files.list("private")], ["key"])
