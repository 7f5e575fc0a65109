"""Files: looking, searching and changing. What carries content is in `transfer`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from corral.base.files import AsyncFiles
from corral.concurrency.waiting import breathe
from corral.errors import (
    CapabilityError,
    EditError,
    InvalidCommandError,
    SandboxFileError,
)
from corral.paths import SandboxPath
from corral.results import FileInfo, GrepMatch
from corral.server.answers import ManyItems
from corral.server.faults import Fault, bad_request
from corral.server.routes.toolbox.given import denied, parse_mode, parse_path
from corral.server.routes.toolbox.owners import Owners, describe_all
from corral.server.routing import Call, Table
from corral.server.services import Held
from corral.server.translate import phrase
from corral.server.wire import toolbox as wire

TABLE = Table("toolbox")

_MAX_FOUND = 100_000
_CHOWN_SECONDS = 30

Found = TypeVar("Found")


@TABLE.add("GET", "/files", scope="run", query=wire.ListQuery, streams=True, answers={200: list[wire.FileInfo]})
async def list_files(call: Call) -> ManyItems:
    """The entries of a folder, and, down to a depth, of the folders in it."""
    path, owners = parse_path(call.sandbox, call.query.path), Owners(call.sandbox.box.files)
    found = _files(call.sandbox).list_batches(path, depth=call.query.depth)
    return ManyItems(_each(found, owners.describe))


def _files(held: Held) -> AsyncFiles:
    return held.box.files


async def _each(
    batches: AsyncIterator[Sequence[Found]], tell: Callable[[Sequence[Found]], Awaitable[list[Any]]]
) -> AsyncIterator[list[Any]]:
    """Batches as the wire tells them. Closed with whoever reads them, and so is what looks for them inside."""
    async with contextlib.aclosing(batches):  # type: ignore[type-var]  # an async generator, whatever it says
        async for batch in batches:
            yield await tell(batch)


@TABLE.add("GET", "/files/info", scope="run", query=wire.PathQuery, answers={200: wire.FileInfo})
async def get_file_info(call: Call) -> wire.FileInfo:
    """About one file or folder; a link is followed."""
    files = call.sandbox.box.files
    return (await describe_all(files, [await files.stat(parse_path(call.sandbox, call.query.path))]))[0]


@TABLE.add("POST", "/files/folder", scope="run", query=wire.FolderQuery, answers={201: None})
async def create_folder(call: Call) -> None:
    """Make a folder, and those above it; one that is there already is left as it is."""
    files, mode = call.sandbox.box.files, parse_mode(call.query.mode)
    path = parse_path(call.sandbox, call.query.path)
    try:
        if (await files.stat(path)).is_folder:
            return
    except SandboxFileError:
        pass  # making it says better what is wrong
    await files.mkdir(path, mode=mode)


@TABLE.add("DELETE", "/files", scope="run", query=wire.DeleteQuery, answers={204: None})
async def delete_file(call: Call) -> None:
    """Delete a file, or with `recursive` a folder and all in it."""
    files, path = call.sandbox.box.files, parse_path(call.sandbox, call.query.path)
    if path == "/":
        raise bad_request("the root can't be deleted", code="INVALID_FILE_PATH")
    if not call.query.recursive and (await files.stat(path, follow=False)).is_folder:
        raise bad_request(f"{path} is a directory; give recursive=true to delete it with all in it")
    await files.remove(path, recursive=call.query.recursive)


@TABLE.add("POST", "/files/move", scope="run", query=wire.MoveQuery, answers={200: None})
async def move_file(call: Call) -> None:
    """Rename a file or folder; nothing is overwritten."""
    source = parse_path(call.sandbox, call.query.source)
    target = parse_path(call.sandbox, call.query.destination)
    if f"{target}/".startswith(f"{source}/") and source != target:
        raise bad_request(f"{source} can't be moved into itself", code="INVALID_FILE_PATH")
    await call.sandbox.box.files.move(source, target, overwrite=False)


@TABLE.add("GET", "/files/find", scope="run", query=wire.FindQuery, streams=True, answers={200: list[wire.Match]})
async def find_in_files(call: Call) -> ManyItems:
    """Lines of text files that have a plain text in them."""
    root = parse_path(call.sandbox, call.query.path)

    async def tell(matches: Sequence[GrepMatch]) -> list[wire.Match]:
        return [
            wire.Match(file=_as_asked(call.query.path, root, match.path), line=match.line, content=match.text)
            for match in matches
        ]

    found = _files(call.sandbox).grep_batches(call.query.pattern, path=root, limit=_MAX_FOUND)
    return ManyItems(_each(found, tell))


@TABLE.add(
    "GET", "/files/search", scope="run", query=wire.FindQuery, streams=True, answers={200: wire.SearchFilesResponse}
)
async def search_files(call: Call) -> ManyItems:
    """Files and folders of a tree whose names match a glob."""
    root = parse_path(call.sandbox, call.query.path)
    pattern = call.query.pattern.strip("/")
    if not pattern:
        raise bad_request("the pattern is empty")

    async def tell(infos: Sequence[FileInfo]) -> list[str]:
        return [_as_asked(call.query.path, root, info.path) for info in infos]

    found = _files(call.sandbox).glob_batches(f"**/{pattern}", path=root, limit=_MAX_FOUND)
    return ManyItems(_each(found, tell), around=(b'{"files":[', b"]}"))


def _as_asked(asked: str, root: SandboxPath, found: str) -> str:
    """A path below what was asked for, written as that was: relative if it was."""
    if asked.startswith("/"):
        return found
    below = found.removeprefix(root).lstrip("/")
    base = asked.rstrip("/")
    return below or base if base in ("", ".") else f"{base}/{below}" if below else base


@TABLE.add(
    "POST",
    "/files/replace",
    scope="run",
    body=wire.ReplaceRequest,
    large_body=True,
    answers={200: list[wire.ReplaceResult]},
)
async def replace_in_files(call: Call) -> list[wire.ReplaceResult]:
    """Replace a plain text in files, each atomically; one that has it not is left alone."""
    results = []
    for file in call.body.files:
        await breathe()  # the texts may be long, and are handed over once for each file
        error: str | None = None
        try:
            path = parse_path(call.sandbox, file)
            await call.sandbox.box.files.edit(path, call.body.pattern, call.body.new_value, replace_all=True)
        except EditError as refusal:
            error = None if refusal.count == 0 else refusal.message
        except SandboxFileError as refusal:
            error = phrase(refusal)
        except Fault as refusal:
            error = refusal.message
        results.append(wire.ReplaceResult(file=file, success=error is None, error=error))
    return results


@TABLE.add("POST", "/files/permissions", scope="run", query=wire.PermissionsQuery, answers={200: None})
async def set_file_permissions(call: Call) -> None:
    """Set permission bits, owner and group, as far as a sandbox has several users."""
    files, query = call.sandbox.box.files, call.query
    path = parse_path(call.sandbox, query.path)
    mode = parse_mode(query.mode) if query.mode else None
    now = (await describe_all(files, [await files.stat(path)]))[0]
    owner = query.owner if query.owner not in (None, "", now.owner) else None
    group = query.group if query.group not in (None, "", now.group) else None
    if owner or group:
        await _change_owner(call.sandbox, path, owner or "", group or "")
    if mode is not None:
        await files.chmod(path, mode)


async def _change_owner(held: Held, path: SandboxPath, owner: str, group: str) -> None:
    if not all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in (owner, group) if name):
        raise bad_request(f"{owner or group!r} is not a name of a user or group")
    wanted = f"{owner}:{group}" if group else owner
    try:
        result = await held.box.exec(["/bin/chown", "--", wanted, path], cwd="/", user="root", timeout=_CHOWN_SECONDS)
    except (CapabilityError, InvalidCommandError) as error:
        raise denied(f"{path}: the owner can't be changed, this sandbox has a single user") from error
    if "invalid" in result.stderr:
        raise bad_request(f"user or group {wanted!r} not found inside")
    if not result.ok:
        raise denied(f"{path}: the owner can't be changed to {wanted!r} in this sandbox")
