"""The server of the live page.

It listens on loopback only, and its address contains a secret that a client must know. The header `Host` must name this
address, so that no other page in the browser gets here by DNS rebinding. It answers GET and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from corral.concurrency.closing import AsyncClosing
from corral.concurrency.waiting import cancel_all
from corral.errors import BackendUnavailableError
from corral.forge.artifacts import open_artifact
from corral.forge.events import ForgeEvent
from corral.forge.pages import read_asset
from corral.forge.pages.artifact import show_file
from corral.forge.plan import Turn
from corral.forge.runfolder import EVENTS, Run, artifact_folder
from corral.forge.watch.http import (
    MAX_HEAD_BYTES,
    PAGE_POLICY,
    BadRequestError,
    Request,
    make_answer,
    make_head,
    read_request,
)
from corral.forge.watch.hub import Hub
from corral.forge.watch.tail import Tail

_HERE = "corral.forge.watch"
_SHARED = "corral.forge.pages"
_ADDRESS = "127.0.0.1"
_MAX_CLIENTS = 64
"""Connections that have shown the secret, at once."""
_MAX_STRANGERS = 128
"""Connections that have not shown it yet. The oldest is closed for a new one, so that others can get through."""
_SLOW_SECONDS = 30.0
"""A client that reads nothing for this long is disconnected."""
_ALIVE_SECONDS = 15.0
_BATCH_SECONDS = 0.05
"""Events that come close together go out together."""
_LOOK_EVERY = 10
"""At every tenth end of the log the run's process is checked."""
_BUFFER_BYTES = 64 * 1024
_TEXT_BYTES = 512 * 1024
_IMAGE_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_PAGES = {
    "": ("text/html; charset=utf-8", ((_HERE, "watch.html"),)),
    "watch.css": ("text/css; charset=utf-8", ((_SHARED, "page.css"), (_HERE, "watch.css"))),
    "watch.js": ("text/javascript; charset=utf-8", ((_HERE, "watch.js"),)),
}


class WatchServer(AsyncClosing):
    """Shows one run: of this process, of another process, or one that has ended."""

    def __init__(self, folder: Path, *, port: int = 0, follow: bool = True) -> None:
        """
        Args:
            folder: The run's folder. It need not exist yet.
            port: 0 takes any free port.
            follow: Read the run's log and what is added to it. Without it, events come through `listener`.
        """
        self._folder = folder
        self._port = port
        self._follow = follow
        self._token = secrets.token_urlsafe(18)
        self._hub = Hub()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tail: asyncio.Task[None] | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._known = 0
        self._looks = 0

    @property
    def url(self) -> str:
        """The address of the page. It contains the secret."""
        return f"http://{_ADDRESS}:{self._port}/{self._token}/"

    async def start(self) -> str:
        """Listen. Returns the address of the page.

        Raises:
            BackendUnavailableError: the port is taken.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self._server = await asyncio.start_server(self._welcome, _ADDRESS, self._port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise BackendUnavailableError(
                f"can't listen on {_ADDRESS}:{self._port}: {os.strerror(error.errno or 0)}",
                hint="choose another port, or 0 for any free one",
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        if self._follow:
            tail = Tail(self._folder / EVENTS, self._hub.add)
            self._tail = asyncio.create_task(tail.follow(caught_up=self._look_for_holder))
        return self.url

    def listener(self, event: ForgeEvent) -> None:
        """For a contest in this process, on any thread. Does nothing if the log is followed: it has the same events."""
        if self._follow:
            return
        if self._loop is None:
            self._hub.add(event)
        else:
            with contextlib.suppress(RuntimeError):  # the page's loop has ended; the contest goes on
                self._loop.call_soon_threadsafe(self._hub.add, event)

    async def aclose(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = [*self._clients, *([self._tail] if self._tail is not None else [])]
        self._tail = None
        await cancel_all(*tasks)
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def _look_for_holder(self) -> None:
        """Check now and then whether the run's process is alive: a killed one says nothing."""
        self._looks += 1
        if self._looks % _LOOK_EVERY == 0 and not Run(path=self._folder, definition={}).is_held():
            self._hub.lose()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Our own tasks: `aclose` ends them all.
        if len(self._strangers) >= _MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers))).transport.abort()  # the oldest; its task ends by that
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(task)
        self._strangers[task] = writer
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        self._strangers.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        try:
            await self._answer(reader, writer)
        except BadRequestError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, make_answer(error.status, "text/plain", f"{error}\n".encode()))
                await _read_rest(reader, writer)
        except (OSError, TimeoutError):  # the client is gone, or does not read
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request.headers.get("host") not in {f"{_ADDRESS}:{self._port}", f"localhost:{self._port}"}:
            raise BadRequestError(403, "invalid Host header")
        if request.method != "GET":
            raise BadRequestError(405, "only GET is allowed")
        _, token, *rest = request.path.split("/", 2)
        if not rest or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise BadRequestError(404, "not found: the address needs its secret")
        if self._known >= _MAX_CLIENTS:
            raise BadRequestError(503, "too many connections")
        if (task := asyncio.current_task()) is not None:
            self._strangers.pop(task, None)
        self._known += 1
        try:
            await self._find(rest[0])(request, writer)
        finally:
            self._known -= 1

    def _find(self, name: str) -> Callable[[Request, asyncio.StreamWriter], Awaitable[None]]:
        if name in _PAGES:
            return lambda _, writer: self._send_page(name, writer)
        if name == "events":
            return self._send_events
        words = name.split("/")
        if len(words) == 4 and words[0] in ("artifact", "download"):
            number, index = (
                int(word) if word.isascii() and word.isdecimal() and len(word) < 9 else -1 for word in words[2:]
            )
            path = self._hub.find_artifact(words[1], number, index)
            if path is not None:
                folder = artifact_folder(self._folder, Turn(words[1], number), self._hub.repeat)
                send = self._send_artifact if words[0] == "artifact" else self._send_download
                return lambda _, writer: send(folder, path, writer)
        raise BadRequestError(404, "not found")

    async def _send_page(self, name: str, writer: asyncio.StreamWriter) -> None:
        kind, assets = _PAGES[name]
        text = "".join(read_asset(package, asset) for package, asset in assets)
        await _send(writer, make_answer(200, kind, text.encode(), more={"Content-Security-Policy": PAGE_POLICY}))

    async def _send_events(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Server-sent events; a client that reconnects says which event it had last."""
        hub = self._hub
        mark, _, number = request.headers.get("last-event-id", "").partition("-")
        known = mark == hub.mark and number.isascii() and number.isdecimal() and len(number) < 16
        at = int(number) if known else -1
        await _send(writer, make_head(200, "text/event-stream; charset=utf-8") + b"retry: 1000\n\n")
        while True:
            messages = hub.since(at)
            if messages is None:
                at = hub.number
                await _send(writer, f"id: {hub.mark}-{at}\nevent: snapshot\ndata: {hub.snapshot()}\n\n".encode())
                continue
            if messages:
                at = messages[-1].number
                lines = (f"id: {hub.mark}-{one.number}\nevent: {one.kind}\ndata: {one.text}\n\n" for one in messages)
                await _send(writer, "".join(lines).encode())
                continue
            try:
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await hub.wait()
            except TimeoutError:
                await _send(writer, b": still here\n\n")  # also finds out whether the client is still there
            else:
                await asyncio.sleep(_BATCH_SECONDS)

    async def _send_artifact(self, folder: Path, path: str, writer: asyncio.StreamWriter) -> None:
        shown = await asyncio.to_thread(show_file, folder, path, text_bytes=_TEXT_BYTES, image_bytes=_IMAGE_BYTES)
        if shown.kind == "image":
            await _send(writer, make_answer(200, shown.image_type, shown.data))
            return
        text = shown.text + (f"\n\n[{shown.note}]\n" if shown.note else "")
        await _send(writer, make_answer(200, "text/plain; charset=utf-8", text.encode()))

    async def _send_download(self, folder: Path, path: str, writer: asyncio.StreamWriter) -> None:
        """The bytes as they are, as a download."""
        try:
            file = os.fdopen(await asyncio.to_thread(open_artifact, folder, path), "rb")
        except OSError as error:
            raise BadRequestError(404, "the file no longer exists") from error
        with file:
            left = os.fstat(file.fileno()).st_size
            name = "".join(
                letter
                for letter in path.rpartition("/")[2]
                if letter.isascii() and (letter.isalnum() or letter in "._-")
            )
            more = {"Content-Length": str(left), "Content-Disposition": f'attachment; filename="{name or "artifact"}"'}
            await _send(writer, make_head(200, "application/octet-stream", more=more))
            while left > 0 and (chunk := await asyncio.to_thread(file.read, min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                await _send(writer, chunk)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Raises: TimeoutError for a client that takes nothing, OSError for one that is gone."""
    writer.write(data)
    async with asyncio.timeout(_SLOW_SECONDS):
        await writer.drain()


async def _read_rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the rest of a request: closing with unread data would reset the connection and lose the response."""
    if writer.can_write_eof():
        writer.write_eof()
    async with asyncio.timeout(1):
        for _ in range(32):
            if not await reader.read(_BUFFER_BYTES):
                return
