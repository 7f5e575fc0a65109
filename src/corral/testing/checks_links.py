"""Links that are put in a path after rules were asked about it: they must not lead past the rules."""

from __future__ import annotations

from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileNotFoundError, SandboxLinkError
from corral.paths import FollowedPath
from corral.testing.check import Context, check, equal, pieces, raises, true
from corral.tools.files import FileTools
from corral.tools.permission import OperationRules, Permissions, Rule, real_path

_SECRET = "secret\n"
_LARGE_BYTES = 5 * 1024 * 1024
"""More than a backend moves in one piece, so that a stream takes every way it may take."""


@check(
    promise="files",
    title="A link that takes a file's place after the rules were asked is refused",
    raises=tuple(f"files.{method}:SandboxLinkError" for method in ("read", "write", "edit", "stat", "grep")),
)
async def link_in_place_of_a_file_is_refused(context: Context) -> None:
    box = await _prepare(context)
    path = await _follow(box, "file")
    await _replace_by_link(box, "file", "private/key")
    await _refuses_files(box, path)
    await _is_untouched(box)


@check(promise="files", title="A link that takes a folder's place after the rules were asked is refused",
       raises=("files.list:SandboxLinkError", "files.glob:SandboxLinkError"))  # fmt: skip
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


@check(promise="files", title="An approval that comes with a link in the path's place is an approval of nothing")
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


@check(promise="files", title="A path whose links were followed works as any other")
async def followed_path_works(context: Context) -> None:
    box = await context.open()
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
    await box.files.write("private/key", _SECRET)
    for place in ("file", "folder/key", "deep/folder/key"):
        await box.files.write(place, "harmless\n")
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
