"""Terminals: shells on a pseudo terminal that stay when a watcher leaves, for any number of watchers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from corral.errors import ExecError, NameTakenError, NotRecordedError, SandboxGoneError
from corral.results import timestamp
from corral.server.answers import ManyItems
from corral.server.faults import bad_request, conflict
from corral.server.living import Handle
from corral.server.routes.toolbox.socket import FAILED, NORMAL, ClientLeftError, Socket
from corral.server.routing import ApiCall, Table
from corral.server.wire import toolbox as wire
from corral.sessions.record import RecordInfo
from corral.sessions.terminal import Terminal
from corral.sessions.terminal import prefix as terminal_prefix

TABLE = Table("toolbox")

_ONE = "/process/pty/{sessionId}"
EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_MAX_ENVS_BYTES = 64 * 1024
_MAX_TERMINALS = 200
_ROWS, _COLUMNS = 24, 80

_TOLD_SECONDS = 2.0


async def _find(call: ApiCall) -> Terminal:
    return await Terminal.attach(call.sandbox.box, call.params["sessionId"])


# ---------------------------------------------------------------------------------------------------------------- REST


@TABLE.add("GET", "/process/pty", streams=True, answers={200: wire.PtyListResponse})
async def list_pty_sessions(call: ApiCall) -> ManyItems:
    """List terminals."""
    found = await call.sandbox.box.list_ptys()
    return ManyItems(_each(call, found), around=(b'{"sessions":[', b"]}"))


async def _each(call: ApiCall, found: Sequence[RecordInfo]) -> AsyncGenerator[list[wire.PtySessionInfo], None]:
    """One after the other: the variables of a terminal are dropped before the next is read."""
    for info in found:
        with contextlib.suppress(NotRecordedError):  # deleted in the meantime
            terminal = await Terminal.attach(call.sandbox.box, info.name)
            yield [await _to_wire(call.sandbox, terminal, info)]


@TABLE.add("POST", "/process/pty", body=wire.PtyCreateRequest, status=201)
async def create_pty_session(call: ApiCall) -> wire.PtyCreateResponse:
    """Create a terminal."""
    terminal = await _open(call.sandbox, call.body, envs=call.body.envs or {})
    return wire.PtyCreateResponse(session_id=terminal.name)


@TABLE.add("GET", _ONE)
async def get_pty_session(call: ApiCall) -> wire.PtySessionInfo:
    """Get a terminal."""
    return await _to_wire(call.sandbox, await _find(call))


@TABLE.add("DELETE", _ONE)
async def delete_pty_session(call: ApiCall) -> dict[str, str]:
    """Delete a terminal and end everything that runs in it."""
    terminal = await _find(call)
    call.sandbox.watched_terminals.discard(terminal.name)
    await terminal.kill()
    # Those who watch learn how it ended from its record, so that goes last.
    watching = [asyncio.ensure_future(notified.wait()) for notified in call.sandbox.watchers.get(terminal.name, ())]
    if watching:
        await asyncio.wait(watching, timeout=_TOLD_SECONDS)
        for waiting in watching:
            waiting.cancel()
    await terminal.delete()
    return {"message": f"terminal {terminal.name} deleted"}


@TABLE.add("POST", _ONE + "/resize", body=wire.PtyResizeRequest)
async def resize_pty_session(call: ApiCall) -> wire.PtySessionInfo:
    """Resize a terminal."""
    terminal = await _find(call)
    await terminal.resize(rows=call.body.rows, columns=call.body.cols)
    return await _to_wire(call.sandbox, terminal)


async def _to_wire(handle: Handle, terminal: Terminal, found: RecordInfo | None = None) -> wire.PtySessionInfo:
    info = await terminal.info(found)
    return wire.PtySessionInfo(
        id=info.name,
        cwd=info.cwd or handle.workdir,
        envs=info.env,
        cols=info.columns,
        rows=info.rows,
        created_at=timestamp(info.started),
        active=info.running,
        lazy_start=False,
    )


async def _open(
    handle: Handle, wanted: wire.PtyCreateRequest | wire.PtyCreateQuery, *, envs: Mapping[str, str]
) -> Terminal:
    box = handle.box
    name = wanted.id or secrets.token_hex(8)
    if name in (".", ".."):
        raise bad_request(f"{name!r} is not a valid terminal name")
    taken = await box.list_ptys()
    handle.watched_terminals.intersection_update(info.name for info in taken)
    ended = {info.name: info.started for info in taken if not info.running}
    if len(taken) >= _MAX_TERMINALS and not ended:
        raise bad_request(f"too many terminals: there are {_MAX_TERMINALS}; delete some")
    # A terminal whose shell has ended does not keep its name, and the oldest makes room for a new one.
    spent = [name] if name in ended else sorted(ended, key=lambda each: ended[each])[: len(taken) >= _MAX_TERMINALS]
    for each in spent:
        with contextlib.suppress(NotRecordedError):
            await (await Terminal.attach(box, each)).delete()
    try:
        terminal = await Terminal.open(
            box,
            name,
            cwd=handle.resolve(wanted.cwd or "."),
            env=handle.environment(envs),
            user=handle.program_user,
            rows=wanted.rows or _ROWS,
            columns=wanted.cols or _COLUMNS,
        )
    except NameTakenError as error:
        raise conflict(f"a terminal named {name!r} already exists", code="CONFLICT") from error
    handle.watched_terminals.discard(name)
    return terminal


# ------------------------------------------------------------------------------------------------------------ watching


@TABLE.add("GET", "/process/pty/create-connect", query=wire.PtyCreateQuery, websocket=True, answers={})
async def create_connect_pty_session(call: ApiCall) -> web.StreamResponse:
    """Create a terminal and connect to it."""
    socket = Socket(call, protocols=_echoed(call))
    return await _watch(call, socket, await _open(call.sandbox, call.query, envs=_offered_envs(call)))


@TABLE.add("GET", _ONE + "/connect", websocket=True, answers={})
async def connect_pty_session(call: ApiCall) -> web.StreamResponse:
    """Connect to a terminal."""
    socket = Socket(call, protocols=_echoed(call))
    return await _watch(call, socket, await _find(call))


async def _watch(call: ApiCall, socket: Socket, terminal: Terminal) -> web.StreamResponse:
    box, record_name = call.sandbox.box, terminal_prefix + terminal.name
    recorded = await box.find_recorded(record_name)
    watched = call.sandbox.watched_terminals
    since = 0
    if terminal.name in watched:
        # Before the client is told that it is connected, so that it misses no answer to what it types. If the shell has
        # ended already, its end is sent.
        since = next((info.next_offset for info in await box.list_recorded() if info.name == record_name), 0)
        since = min([since, *(entry.offset for entry in await recorded.notes() if entry.kind == "end")])
    watched.add(terminal.name)
    await socket.open()
    try:
        # In one go with the answer to the upgrade: the sync client waits a tenth of a second for it, and no longer.
        await socket.send_json({"type": "control", "status": "connected"})
    except ClientLeftError:
        return socket.response

    async def send_output() -> dict[str, Any]:
        entries = recorded.entries(since=since)
        async with contextlib.aclosing(entries):
            async for entry in entries:
                if entry.kind == "stdout":
                    await socket.send(entry.data)
                elif entry.kind == "end":
                    return entry.content
        raise SandboxGoneError("the sandbox has ended")

    async def type_in(data: bytes) -> None:
        with contextlib.suppress(ExecError):  # the shell has just ended, and its watchers are being notified
            await terminal.write(data)

    notified = asyncio.Event()
    others = call.sandbox.watchers.setdefault(terminal.name, set())
    others.add(notified)
    try:
        end = await socket.converse(send_output(), on_message=type_in)
        notified.set()
        await _send_end(call, socket, end)
    except ClientLeftError:
        pass  # the shell stays
    finally:
        notified.set()
        others.discard(notified)
        if not others and call.sandbox.watchers.get(terminal.name) is others:
            del call.sandbox.watchers[terminal.name]
    return socket.response


async def _send_end(call: ApiCall, socket: Socket, end: Mapping[str, Any]) -> None:
    code = int(end.get("exit_code", 0))
    message: dict[str, Any] = {"exitCode": code}
    if (reason := _reason(code, end)) is not None:
        message["exitReason"] = reason
    if EXIT_CONTROL in _offered(call):
        await socket.send_json({"type": "control", "status": "exited", **message})
    await socket.close(NORMAL if code == 0 else FAILED, msgspec.json.encode(message).decode())


def _reason(code: int, end: Mapping[str, Any]) -> str | None:
    number = end.get("signal")
    if number is None:
        return "non-zero exit" if code else None
    names: dict[int, str] = {signal.SIGKILL: "SIGKILL", signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl+C"}
    return names.get(int(number), f"signal {number}")


def _offered(call: ApiCall) -> list[str]:
    """The subprotocols that the client has offered."""
    lines = call.request.headers.getall("Sec-WebSocket-Protocol", [])
    return [word for word in (word.strip() for line in lines for word in line.split(",")) if word]


def _echoed(call: ApiCall) -> tuple[str, ...]:
    """The subprotocol of the response: some clients take a response without one for a rejection."""
    offered = _offered(call)
    return (EXIT_CONTROL,) if EXIT_CONTROL in offered else tuple(offered[:1])


def _offered_envs(call: ApiCall) -> dict[str, str]:
    """Environment variables in a subprotocol, the only way for a browser to send them."""
    for word in _offered(call):
        if not word.startswith(_ENVS):
            continue
        text = word.removeprefix(_ENVS)
        try:
            if len(text) > _MAX_ENVS_BYTES:
                raise ValueError("too long")
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return msgspec.json.decode(content, type=dict[str, str])
        except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
            raise bad_request(
                "the variables in the subprotocol must be a JSON object of strings, encoded as base64url"
            ) from error
    return {}
