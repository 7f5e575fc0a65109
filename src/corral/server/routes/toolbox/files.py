"""Files: listing, searching and changing them. Upload and download are in `transfer`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from corral.concurrency.waiting import breathe
from corral.errors import CapabilityError, EditError, InvalidCommandError, SandboxFileError
from corral.paths import SandboxPath
from corral.results import FileInfo, GrepMatch
from corral.server.answers import ManyItems
from corral.server.faults import Fault, bad_request
from corral.server.living import Handle
from corral.server.routes.toolbox.owners import Owners, describe
from corral.server.routing import ApiCall, Table
from corral.server.translate import phrase
from corral.server.wire import toolbox as wire

TABLE = Table("toolbox")

_MODE = re.compile(r"(0o)?[0-7]{1,5}")
_MAX_FOUND = 100_000
_CHOWN_SECONDS = 30

Found = TypeVar("Found")


@TABLE.add("GET", "/files", query=wire.ListQuery, streams=True, answers={200: list[wire.FileInfo]})
async def list_files(call: ApiCall) -> ManyItems:
    """List the entries of a directory, down to a depth."""
    path, owners = call.sandbox.resolve(call.query.path), Owners(call.sandbox.box.files)
    found = call.sandbox.box.files.list_batches(path, depth=call.query.depth)
    return ManyItems(_each(found, owners.describe))


async def _each(
    batches: AsyncIterator[Sequence[Found]], to_wire: Callable[[Sequence[Found]], Awaitable[list[Any]]]
) -> AsyncGenerator[list[Any], None]:
    """Batches as wire models. When the reader closes them, the search inside ends."""
    async with contextlib.aclosing(batches):  # type: ignore[type-var]  # typed as an iterator
        async for batch in batches:
            yield await to_wire(batch)


@TABLE.add("GET", "/files/info", query=wire.PathQuery)
async def get_file_info(call: ApiCall) -> wire.FileInfo:
    """Get information about a file or directory; links are followed."""
    files = call.sandbox.box.files
    return await describe(files, await files.stat(call.sandbox.resolve(call.query.path)))


@TABLE.add("POST", "/files/folder", query=wire.FolderQuery, status=201)
async def create_folder(call: ApiCall) -> None:
    """Create a directory and its parents; an existing one is left as it is."""
    files, mode = call.sandbox.box.files, _parse_mode(call.query.mode)
    path = call.sandbox.resolve(call.query.path)
    try:
        if (await files.stat(path)).is_folder:
            return
    except SandboxFileError:
        pass  # mkdir has the better error
    await files.mkdir(path, mode=mode)


@TABLE.add("DELETE", "/files", query=wire.DeleteQuery, status=204)
async def delete_file(call: ApiCall) -> None:
    """Delete a file, or with `recursive` a directory."""
    files, path = call.sandbox.box.files, call.sandbox.resolve(call.query.path)
    if path == "/":
        raise bad_request("the root directory can't be deleted", code="INVALID_FILE_PATH")
    if not call.query.recursive and (await files.stat(path, follow=False)).is_folder:
        raise bad_request(f"{path} is a directory; set recursive=true to delete it")
    await files.remove(path, recursive=call.query.recursive)


@TABLE.add("POST", "/files/move", query=wire.MoveQuery)
async def move_file(call: ApiCall) -> None:
    """Move a file or directory; nothing is overwritten."""
    source = call.sandbox.resolve(call.query.source)
    target = call.sandbox.resolve(call.query.destination)
    if f"{target}/".startswith(f"{source}/") and source != target:
        raise bad_request(f"{source} can't be moved into itself", code="INVALID_FILE_PATH")
    await call.sandbox.box.files.move(source, target, overwrite=False)


@TABLE.add("GET", "/files/find", query=wire.FindQuery, streams=True, answers={200: list[wire.Match]})
async def find_in_files(call: ApiCall) -> ManyItems:
    """Find lines in text files that contain a string."""
    root = call.sandbox.resolve(call.query.path)

    async def to_wire(matches: Sequence[GrepMatch]) -> list[wire.Match]:
        return [
            wire.Match(file=_as_asked(call.query.path, root, match.path), line=match.line, content=match.text)
            for match in matches
        ]

    found = call.sandbox.box.files.grep_batches(call.query.pattern, path=root, limit=_MAX_FOUND)
    return ManyItems(_each(found, to_wire))


@TABLE.add("GET", "/files/search", query=wire.FindQuery, streams=True, answers={200: wire.SearchFilesResponse})
async def search_files(call: ApiCall) -> ManyItems:
    """Find files and directories whose names match a glob pattern."""
    root = call.sandbox.resolve(call.query.path)
    pattern = call.query.pattern.strip("/")
    if not pattern:
        raise bad_request("the pattern is empty")

    async def to_wire(infos: Sequence[FileInfo]) -> list[str]:
        return [_as_asked(call.query.path, root, info.path) for info in infos]

    found = call.sandbox.box.files.glob_batches(f"**/{pattern}", path=root, limit=_MAX_FOUND)
    return ManyItems(_each(found, to_wire), around=(b'{"files":[', b"]}"))


def _as_asked(asked: str, root: SandboxPath, found: str) -> str:
    """A found path, relative if the requested path was relative."""
    if asked.startswith("/"):
        return found
    below = found.removeprefix(root).lstrip("/")
    base = asked.rstrip("/")
    return below or base if base in ("", ".") else f"{base}/{below}" if below else base


@TABLE.add("POST", "/files/replace", body=wire.ReplaceRequest, large_body=True)
async def replace_in_files(call: ApiCall) -> list[wire.ReplaceResult]:
    """Replace a string in files, each atomically; files without it are left alone."""
    results = []
    for file in call.body.files:
        await breathe()  # the texts may be long, and are passed on once for each file
        error: str | None = None
        try:
            path = call.sandbox.resolve(file)
            await call.sandbox.box.files.edit(path, call.body.pattern, call.body.new_value, replace_all=True)
        except EditError as refusal:
            error = None if refusal.count == 0 else refusal.message
        except SandboxFileError as refusal:
            error = phrase(refusal)
        except Fault as refusal:
            error = refusal.message
        results.append(wire.ReplaceResult(file=file, success=error is None, error=error))
    return results


@TABLE.add("POST", "/files/permissions", query=wire.PermissionsQuery)
async def set_file_permissions(call: ApiCall) -> None:
    """Set mode, owner and group of a file."""
    files, query = call.sandbox.box.files, call.query
    path = call.sandbox.resolve(query.path)
    mode = _parse_mode(query.mode) if query.mode else None
    now = await describe(files, await files.stat(path))
    owner = query.owner if query.owner not in (None, "", now.owner) else None
    group = query.group if query.group not in (None, "", now.group) else None
    if owner or group:
        await _change_owner(call.sandbox, path, owner or "", group or "")
    if mode is not None:
        await files.chmod(path, mode)


async def _change_owner(handle: Handle, path: SandboxPath, owner: str, group: str) -> None:
    if not all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in (owner, group) if name):
        raise bad_request(f"{owner or group!r} is not a valid user or group name")
    wanted = f"{owner}:{group}" if group else owner
    try:
        result = await handle.box.exec(["/bin/chown", "--", wanted, path], cwd="/", user="root", timeout=_CHOWN_SECONDS)
    except (CapabilityError, InvalidCommandError) as error:
        raise _denied(f"{path}: the owner can't be changed: this sandbox has a single user") from error
    if "invalid" in result.stderr:
        raise bad_request(f"user or group {wanted!r} not found in the sandbox")
    if not result.ok:
        raise _denied(f"{path}: the owner can't be changed to {wanted!r} in this sandbox")


def _parse_mode(text: str) -> int:
    """Permission bits, written in octal. Raises: Fault, 400."""
    if not _MODE.fullmatch(text) or int(text.removeprefix("0o"), 8) > 0o7777:
        raise bad_request(f"mode {text[:20]!r} is not an octal mode such as 0644")
    return int(text.removeprefix("0o"), 8)


def _denied(message: str) -> Fault:
    return Fault(403, message, code="FILE_ACCESS_DENIED")
