"""Upload and download, as streams: several files, one file, and by signed URLs without a key."""

from __future__ import annotations

import contextlib
import posixpath
import re
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from corral.errors import CorralError, SandboxFileError, SandboxIsFolderError
from corral.server.faults import DAEMON, Fault, bad_request
from corral.server.living import Handle
from corral.server.multipart import MultipartFraming, MultipartReader, Part, boundary_of
from corral.server.routing import ApiCall, Table
from corral.server.translate import phrase, translate
from corral.server.wire import toolbox as wire

TABLE = Table("toolbox")

_FIELD = re.compile(r"files\[(\d{1,6})\]\.(path|file)")
_MAX_PATH_BYTES = 4096
_PATH_FACTOR = 2
"""A path is held until its content was received, and then once more in the answer, perhaps with an error."""
_MAX_ERRORS = 100
_STREAM_BYTES = 128 * 1024


# ------------------------------------------------------------------------------------------------------------------ up


@TABLE.add("POST", "/files/bulk-upload", raw_body=True, answers={200: wire.UploadFilesResponse, 400: dict[str, Any]})
async def upload_files(call: ApiCall) -> wire.UploadFilesResponse | web.Response:
    """Upload several files; `files[N].path` says where `files[N].file` goes."""
    paths: dict[str, str] = {}
    stored: list[wire.StoredFile] = []
    errors: list[str] = []
    async for part in _parts(call):
        field = _FIELD.fullmatch(part.name)
        if field is None:
            continue
        index, kind = field[1], field[2]
        if kind == "path":
            paths[index] = await part.read_text(max_bytes=_MAX_PATH_BYTES)
            call.hold(_PATH_FACTOR * sys.getsizeof(paths[index]))
            continue
        try:
            stored.append(await _store(call.sandbox, paths.pop(index, None), part))
        except _RefusedUpload as refusal:
            errors.append(f"{refusal}")
            if len(errors) >= _MAX_ERRORS:
                break
    errors += [f"{path}: no content was sent" for path in list(paths.values())[:_MAX_ERRORS]]
    if errors:
        return web.Response(
            status=400,
            body=msgspec.json.encode(
                {"errors": errors, "files": stored, "message": "; ".join(errors[:10]), "statusCode": 400}
            ),
            content_type="application/json",
        )
    return wire.UploadFilesResponse(files=stored)


class _RefusedUpload(Exception):  # noqa: N818 - a word for the answer
    """One file could not be stored; the others may."""


async def _store(handle: Handle, path: str | None, part: Part) -> wire.StoredFile:
    if not path:
        raise _RefusedUpload(f"{part.name}: the field with its path must come first")
    try:
        target = handle.resolve(path)
        _refuse_folder_name(path)
        size = await handle.box.files.write(target, part.content)
    except Fault as fault:
        if fault.code is None:
            raise  # the body itself is broken, and nothing more will come of it
        raise _RefusedUpload(f"{path[:200]}: {fault.message}") from fault
    except SandboxFileError as error:
        text = phrase(error)
        raise _RefusedUpload(text if path in text else f"{path[:200]}: {text}") from error
    return wire.StoredFile(path=path, bytes=size)


def _refuse_folder_name(path: str) -> None:
    if path.endswith(("/", "/.", "/..")) or path in (".", ".."):
        raise bad_request("the path is that of a directory, not of a file", code="INVALID_FILE_PATH")


def _parts(call: ApiCall) -> AsyncIterator[Part]:
    request = call.request
    boundary = boundary_of(request.headers.get("Content-Type", ""))
    limits = call.server.settings.limits
    return MultipartReader(
        request.content,
        boundary=boundary,
        max_parts=limits.multipart_parts,
        patience_seconds=limits.request_seconds,
    ).parts()


@TABLE.add("POST", "/files/upload", query=wire.PathQuery, raw_body=True)
async def upload_file_legacy(call: ApiCall) -> wire.UploadedFile:
    """Upload a file, for older clients."""
    return await upload_file(call)


@TABLE.add("POST", "/files/upload-v2", query=wire.SignedQuery, raw_body=True, signed=True)
async def upload_file(call: ApiCall) -> wire.UploadedFile:
    """Upload a file; a signed URL works without a key."""
    path = call.query.path
    target = call.sandbox.resolve(path)
    _refuse_folder_name(path)
    stored = False
    async for part in _parts(call):
        if part.name == "file" and not stored:
            await call.sandbox.box.files.write(target, part.content)
            stored = True
    if not stored:
        raise bad_request('the body has no part named "file"')
    return wire.UploadedFile(name=posixpath.basename(target), path=str(target), type="file")


# ---------------------------------------------------------------------------------------------------------------- down


@TABLE.add(
    "POST",
    "/files/bulk-download",
    body=wire.FilesDownloadRequest,
    large_body=True,
    streams=True,
    answers={200: dict[str, Any]},
)
async def download_files(call: ApiCall) -> web.StreamResponse:
    """Download several files as multipart; a file that can't be read has a part named `error`."""
    if not call.body.paths:
        raise bad_request("paths: the list is empty")
    framing = MultipartFraming()
    response = web.StreamResponse(headers={"Content-Type": framing.content_type})
    await response.prepare(call.request)
    for path in call.body.paths:
        async with contextlib.AsyncExitStack() as stack:
            try:
                size, content = await stack.enter_async_context(_opened(call.sandbox, path))
            except (Fault, SandboxFileError) as error:
                body = _error_body(error)
                head = framing.begin(name="error", filename=path, content_type="application/json", size=len(body))
                await response.write(head + body)
                continue
            head = framing.begin(name="file", filename=path, content_type="application/octet-stream", size=size)
            await response.write(head)
            if not await _send(call, response, size, content):
                return response
    await response.write(framing.end())
    await response.write_eof()
    return response


@TABLE.add("GET", "/files/download", query=wire.SignedQuery, signed=True, streams=True, answers={200: bytes})
async def download_file(call: ApiCall) -> web.StreamResponse:
    """Download a file; a signed URL works without a key."""
    path = call.query.path
    async with _opened(call.sandbox, path) as (size, content):
        name = quote(posixpath.basename(path.rstrip("/")), safe="", errors="surrogateescape")
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(size),
                "Content-Disposition": f"attachment; filename*=utf-8''{name}",
                "X-Content-Type-Options": "nosniff",
            }
        )
        await response.prepare(call.request)
        if await _send(call, response, size, content):
            await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def _opened(handle: Handle, path: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    """A file's size and its content. The first piece is read here, so that errors are raised before the answer."""
    target = handle.resolve(path)
    info = await handle.box.files.stat(target)
    if info.is_folder:
        raise SandboxIsFolderError(f"{path} is a directory", path=target)
    stream = handle.box.files.read_stream(target, chunk_bytes=_STREAM_BYTES)
    async with contextlib.aclosing(stream):
        first = await anext(stream, b"")

        async def content() -> AsyncIterator[bytes]:
            if first:
                yield first
            async for piece in stream:
                yield piece

        yield max(info.size, len(first)) if len(first) == _STREAM_BYTES else len(first), content()


async def _send(call: ApiCall, response: web.StreamResponse, size: int, content: AsyncIterator[bytes]) -> bool:
    """Exactly `size` bytes. If the file has become shorter, the connection is cut, so that the client notices."""
    left = size
    try:
        async for piece in content:
            await response.write(piece[:left])
            left -= min(left, len(piece))
            if left == 0:
                break
    except CorralError:
        left = max(left, 1)
    if left and call.request.transport is not None:
        call.request.transport.abort()
    return left == 0


def _error_body(error: Fault | SandboxFileError) -> bytes:
    fault = error if isinstance(error, Fault) else translate(error)
    if fault is None or (fault.status >= 500 and fault.code is None):
        fault = Fault(500, f"{error}", code="FILE_READ_FAILED")
    return msgspec.json.encode(
        {
            "message": fault.message,
            "statusCode": fault.status,
            "code": fault.code or "FILE_READ_FAILED",
            "source": fault.source or DAEMON,
        }
    )
