"""Shell sessions: commands that share a shell, run one after the other, with logs that can be read again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from aiohttp import web

from corral.errors import CorralError, ExecError, NotRecordedError, SandboxGoneError
from corral.results import OutputChunk
from corral.server.answers import Large, LongText, ManyItems, PlainText
from corral.server.faults import Fault, bad_request, not_found
from corral.server.routes.toolbox.socket import ClientLeftError, Socket
from corral.server.routing import ApiCall, Table
from corral.server.settings import OUTPUT_LIMIT_BYTES
from corral.server.wire import toolbox as wire
from corral.sessions.session import SessionCommand, ShellSession

TABLE = Table("toolbox")

_ONE = "/process/session/{sessionId}"
_COMMAND = _ONE + "/command/{commandId}"
ENTRYPOINT = "entrypoint"
"""The session of a sandbox's main program, which our sandboxes do not have."""
_MARKS = {"stdout": b"\x01\x01\x01", "stderr": b"\x02\x02\x02"}
_MAX_SESSIONS = 500
_INTERRUPT_SECONDS = 20.0
_READING_BYTES = 512 * 1024
_FREE_SESSION_BYTES = 64 * 1024
"""How much of a session's commands a call may hold without counting it for the key."""


async def _find(call: ApiCall) -> ShellSession:
    return await _attach(call, call.params["sessionId"])


async def _attach(call: ApiCall, name: str) -> ShellSession:
    session = call.sandbox.sessions.get(name) or await _read_again(call, name)
    call.server.sessions.keep(call.sandbox, session)
    # It may be forgotten while this call still has it, so a large one is part of what the call holds.
    call.hold(max(0, session.memory_bytes - _FREE_SESSION_BYTES))
    return session


async def _read_again(call: ApiCall, name: str) -> ShellSession:
    """Read the session's record again, which may be long: the memory of the key bounds how many calls do so."""
    await call.account.reserve(_READING_BYTES)
    try:
        return await ShellSession.attach(call.sandbox.box, name)
    finally:
        call.account.give_back(_READING_BYTES)


# ------------------------------------------------------------------------------------------------------------ sessions


@TABLE.add("POST", "/process/session", body=wire.CreateSessionRequest, status=201)
async def create_session(call: ApiCall) -> None:
    """Create a session."""
    handle, name = call.sandbox, call.body.session_id
    if name == ENTRYPOINT:
        raise bad_request(f"the session name {ENTRYPOINT!r} is reserved")
    if name in (".", ".."):
        raise bad_request(f"{name!r} is not a valid session name")
    if len(await handle.box.list_sessions()) >= _MAX_SESSIONS:
        raise bad_request(f"too many sessions: there are {_MAX_SESSIONS}; delete some")
    session = await ShellSession.open(
        handle.box, name, cwd=handle.resolve("."), env=handle.environment(), user=handle.program_user
    )
    call.server.sessions.keep(handle, session)


@TABLE.add("GET", "/process/session", answers={200: list[wire.Session]})
async def list_sessions(call: ApiCall) -> ManyItems:
    """List sessions."""
    return ManyItems(_sessions(call, [info.name for info in await call.sandbox.box.list_sessions()]))


async def _sessions(call: ApiCall, names: Sequence[str]) -> AsyncGenerator[list[wire.Session], None]:
    """One after the other: the data of a session is dropped before the next is read."""
    for name in names:
        try:
            session = await _attach(call, name)
            size = session.memory_bytes
            call.hold(size)  # the same once more, in the answer
            yield [wire.Session(session_id=name, commands=[_to_wire(each) for each in await session.commands()])]
        except NotRecordedError:
            call.sandbox.sessions.pop(name, None)  # deleted in the meantime
            continue
        call.account.give_back(size + max(0, size - _FREE_SESSION_BYTES))


@TABLE.add("GET", "/process/session/entrypoint")
async def get_entrypoint_session(call: ApiCall) -> wire.Session:
    """The session of the sandbox's entrypoint; always without commands."""
    return wire.Session(session_id=ENTRYPOINT, commands=[])


@TABLE.add(
    "GET",
    "/process/session/entrypoint/logs",
    query=wire.FollowQuery,
    websocket=True,
    answers={200: wire.SessionCommandLogsResponse},
)
async def get_entrypoint_logs(call: ApiCall) -> wire.SessionCommandLogsResponse | web.StreamResponse:
    """The log of the sandbox's entrypoint; always empty."""
    if not _is_upgrade(call):
        if _wants_text(call):
            return web.Response(text="")
        return wire.SessionCommandLogsResponse(output="", stdout="", stderr="")
    socket = Socket(call)
    await socket.open()
    await socket.close()
    return socket.response


@TABLE.add("GET", _ONE)
async def get_session(call: ApiCall) -> wire.Session:
    """Get a session."""
    session = await _find(call)
    try:
        commands = await session.commands()
    except NotRecordedError as error:
        call.sandbox.sessions.pop(session.name, None)
        raise not_found(f"session {session.name!r} not found", code="PROCESS_NOT_FOUND") from error
    return wire.Session(session_id=session.name, commands=[_to_wire(command) for command in commands])


@TABLE.add("DELETE", _ONE, status=204)
async def delete_session(call: ApiCall) -> None:
    """Delete a session and end everything it started."""
    session = await _find(call)
    call.sandbox.sessions.pop(call.params["sessionId"], None)
    await session.delete()


# ------------------------------------------------------------------------------------------------------------ commands


@TABLE.add(
    "POST",
    _ONE + "/exec",
    body=wire.SessionExecuteRequest,
    large_body=True,
    answers={200: wire.SessionExecuteResponse, 202: wire.SessionExecuteResponse},
)
async def session_execute_command(call: ApiCall) -> tuple[int, wire.SessionExecuteResponse | Large]:
    """Run a command in a session, and wait for it unless `runAsync` is set."""
    session, body = await _find(call), call.body
    if not body.command.strip():
        raise bad_request("the command is empty")
    if body.run_async or body.legacy_async:
        started = await session.run(body.command, wait=False, input_echo=not body.suppress_input_echo)
        return 202, wire.SessionExecuteResponse(cmd_id=started.id)
    ended = await _run_to_its_end(call, session, body.command)
    chunks = await session.log_chunks(ended.id, limit_bytes=OUTPUT_LIMIT_BYTES)
    answer = wire.SessionExecuteResponse(cmd_id=ended.id, exit_code=ended.exit_code)
    return 200, Large(answer, texts=_texts(call, chunks))


async def _run_to_its_end(call: ApiCall, session: ShellSession, text: str) -> SessionCommand:
    """Run a command and wait for it. If the client disconnects, the command is interrupted."""
    starting = asyncio.ensure_future(session.run(text, wait=False, open_input=False))
    try:
        started = await asyncio.shield(starting)
        return await session.wait(started.id)
    except asyncio.CancelledError:
        if not call.sandbox.gone.is_set():
            with contextlib.suppress(CorralError, TimeoutError):
                async with asyncio.timeout(_INTERRUPT_SECONDS):
                    await session.interrupt((await starting).id)
        raise


@TABLE.add("GET", _COMMAND)
async def get_session_command(call: ApiCall) -> wire.Command:
    """Get a command of a session."""
    session = await _find(call)
    return _to_wire(await session.command(call.params["commandId"]))


@TABLE.add(
    "GET", _COMMAND + "/logs", query=wire.FollowQuery, websocket=True, answers={200: wire.SessionCommandLogsResponse}
)
async def get_session_command_logs(call: ApiCall) -> Large | PlainText | web.StreamResponse:
    """Get a command's log so far; over a websocket, follow it to its end."""
    session = await _find(call)
    command = await session.command(call.params["commandId"])
    if _is_upgrade(call):
        return await _follow(call, session, command.id)
    chunks = await session.log_chunks(command.id, limit_bytes=OUTPUT_LIMIT_BYTES)
    if _wants_text(call):
        return PlainText(_output(call, chunks))
    return Large(wire.SessionCommandLogsResponse(output="", stdout="", stderr=""), texts=_texts(call, chunks))


async def _follow(call: ApiCall, session: ShellSession, command_id: str) -> web.StreamResponse:
    socket = Socket(call)
    await socket.open()
    marked = _wants_marks(call)

    async def send_chunks() -> None:
        chunks = session.follow(command_id)
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]  # typed as an iterator
            async for chunk in chunks:
                await socket.send(chunk.data, mark=_MARKS[chunk.stream] if marked else b"")

    try:
        await socket.converse(send_chunks())
    except ClientLeftError:
        return socket.response  # the command runs on: it was asked to
    await socket.close()
    return socket.response


@TABLE.add("POST", _COMMAND + "/input", body=wire.SessionSendInputRequest, large_body=True, status=204)
async def send_input(call: ApiCall) -> None:
    """Send input to a running command."""
    session = await _find(call)
    command = await session.command(call.params["commandId"])
    data = call.body.data if call.body.data.endswith("\n") else f"{call.body.data}\n"
    completed = Fault(410, "the command has already completed", code="COMMAND_ALREADY_COMPLETED")
    if command.exit_code is not None:
        raise completed
    try:
        await session.feed(command.id, data)
    except SandboxGoneError:
        raise
    except ExecError as error:
        if (await session.command(command.id)).exit_code is not None:
            raise completed from error
        raise bad_request(f"{error}") from error


# ---------------------------------------------------------------------------------------------------------- wire models


def _to_wire(command: SessionCommand) -> wire.Command:
    return wire.Command(id=command.id, command=command.text, exit_code=command.exit_code)


def _is_upgrade(call: ApiCall) -> bool:
    return call.request.headers.get("Upgrade", "").lower() == "websocket"


def _wants_marks(call: ApiCall) -> bool:
    """Whether the client is an SDK, which splits the streams by markers; other clients want plain output."""
    headers = call.request.headers
    return (
        "X-Daytona-SDK-Version" in headers
        or headers.get("X-Daytona-Split-Output") == "true"
        or "X-Daytona-SDK-Version~" in headers.get("Sec-WebSocket-Protocol", "")
    )


def _wants_text(call: ApiCall) -> bool:
    """Clients before 0.160 or so ask for the log as plain text."""
    accepted = call.request.headers.get("Accept", "")
    return "text/plain" in accepted and "application/json" not in accepted


def _texts(call: ApiCall, chunks: Sequence[OutputChunk]) -> dict[str, LongText]:
    return {
        "output": LongText(_output(call, chunks)),
        "stdout": LongText([chunk.data for chunk in chunks if chunk.stream == "stdout"]),
        "stderr": LongText([chunk.data for chunk in chunks if chunk.stream == "stderr"]),
    }


def _output(call: ApiCall, chunks: Sequence[OutputChunk]) -> list[bytes]:
    """Both streams in order; not joined, since that would be one more copy."""
    if not _wants_marks(call):
        return [chunk.data for chunk in chunks]
    return [part for chunk in chunks for part in (_MARKS[chunk.stream], chunk.data)]
