"""The stateful interpreter: contexts, and running code in them over a websocket."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from aiohttp import web

from corral.errors import (
    BackendUnavailableError,
    InvalidCommandError,
    NotRecordedError,
    UnknownLanguageError,
    WorkdirError,
)
from corral.results import timestamp
from corral.server.faults import Fault, bad_request, not_found
from corral.server.routes.toolbox.socket import NORMAL, OUT_OF_TIME, REFUSED, ClientLeftError, Socket
from corral.server.routing import ApiCall, Table
from corral.server.wire import toolbox as wire
from corral.sessions.interpreter.contexts import DEFAULT_CONTEXT
from corral.sessions.interpreter.events import ContextInfo, RunEvent

TABLE = Table("toolbox")

_DEFAULT_SECONDS = 600.0
_FIRST_FRAME_SECONDS = 30.0
_TEXT_CHARACTERS = 8 * 1024
"""How much text goes into a frame; escaped as JSON it may become six times as long."""
_MAX_CONTEXTS = 100


# ------------------------------------------------------------------------------------------------------------ contexts


@TABLE.add("POST", "/process/interpreter/context", body=wire.CreateContextRequest, body_optional=True)
async def create_interpreter_context(call: ApiCall) -> wire.InterpreterContext:
    """Create an interpreter context."""
    handle, body = call.sandbox, call.body or wire.CreateContextRequest()
    if len(await handle.box.interpreter.contexts()) >= _MAX_CONTEXTS:
        raise bad_request(f"too many contexts: there are {_MAX_CONTEXTS}; delete some")
    try:
        context = await handle.box.interpreter.open_context(
            cwd=handle.resolve(body.cwd or "."), language=body.language or "python"
        )
    except (UnknownLanguageError, WorkdirError, BackendUnavailableError) as error:
        raise bad_request(f"{error}") from error
    return _to_wire(context)


@TABLE.add("GET", "/process/interpreter/context")
async def list_interpreter_contexts(call: ApiCall) -> wire.ListContextsResponse:
    """List interpreter contexts, without the default one."""
    contexts = await call.sandbox.box.interpreter.contexts()
    return wire.ListContextsResponse(contexts=[_to_wire(each) for each in contexts if each.id != DEFAULT_CONTEXT])


@TABLE.add("DELETE", "/process/interpreter/context/{id}")
async def delete_interpreter_context(call: ApiCall) -> dict[str, str]:
    """Delete an interpreter context."""
    name = call.params["id"]
    if name == DEFAULT_CONTEXT:
        raise bad_request("the default context can't be deleted")
    try:
        await call.sandbox.box.interpreter.close_context(name)
    except NotRecordedError as error:
        raise not_found(f"context {name[:100]!r} not found", code="NOT_FOUND") from error
    return {"message": f"context {name} deleted"}


def _to_wire(context: ContextInfo) -> wire.InterpreterContext:
    # `active` is for clients whether it can be used, which it can.
    return wire.InterpreterContext(
        id=context.id,
        cwd=str(context.cwd),
        created_at=timestamp(context.created),
        active=True,
        language=context.language,
    )


# ------------------------------------------------------------------------------------------------------------- running


@TABLE.add("GET", "/process/interpreter/execute", websocket=True, answers={})
async def execute_interpreter_code(call: ApiCall) -> web.StreamResponse:
    """Run code in a context: the first frame has the code, those of the answer have the output."""
    socket = Socket(call, longest_bytes=call.server.settings.limits.code_frame_bytes)
    await socket.open()
    try:
        run = await _receive(socket)
        code, reason = await socket.converse(_run(call, socket, run))
    except ClientLeftError:
        return socket.response  # the run was interrupted: it does not go on without its client
    except (Fault, InvalidCommandError) as error:
        code, reason = REFUSED, str(error)
    await socket.close(code, reason)
    return socket.response


async def _receive(socket: Socket) -> wire.InterpreterRun:
    data = await socket.receive(timeout=_FIRST_FRAME_SECONDS)
    if data is None:
        raise bad_request("no code was received in time")
    try:
        return msgspec.json.decode(data, type=wire.InterpreterRun)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_request(f"malformed frame: {error}") from error


async def _run(call: ApiCall, socket: Socket, run: wire.InterpreterRun) -> tuple[int, str]:
    """Returns the code and the reason to close with."""
    timeout = _DEFAULT_SECONDS if run.timeout is None else run.timeout or None
    events = call.sandbox.box.interpreter.run(
        run.code,
        context=run.context_id or DEFAULT_CONTEXT,
        envs=call.sandbox.environment(run.envs),
        timeout=timeout,
    )
    # An error waits for the end that follows it: that of a run out of time is our own interruption, and some clients
    # would take it, or a word that the run is over, for a result.
    held_back: list[dict[str, Any]] = []
    async with contextlib.aclosing(events):  # type: ignore[type-var]  # typed as an iterator
        try:
            async for event in events:
                if event.kind == "end" and event.status == "timeout":
                    return OUT_OF_TIME, f"timeout: the code was interrupted after {timeout:g} s"
                frames = [*held_back, *_frames(event)]
                held_back = frames if event.kind == "error" else []
                for frame in frames[len(held_back) :]:
                    await socket.send_json(frame)
        except NotRecordedError:
            return REFUSED, f"context {(run.context_id or '')[:60]!r} not found"
        except BackendUnavailableError as error:
            return REFUSED, f"{error}"
    return NORMAL, ""


def _frames(event: RunEvent) -> list[dict[str, Any]]:
    """The frames for an event; Daytona's protocol has none for values and figures."""
    if event.kind in ("stdout", "stderr"):
        return [{"type": event.kind, "text": piece} for piece in _pieces(event.text)]
    if event.kind == "lost":
        return [{"type": "stderr", "text": f"\n[corral: about {event.lost_bytes} bytes of output left out]\n"}]
    if event.kind == "error":
        return [_error(event.name, event.value, event.traceback)]
    if event.kind == "end":
        if event.status == "died":
            return [_error("InterpreterDied", event.text, ""), {"type": "control", "text": "interrupted"}]
        ended = "completed" if event.status in ("completed", "failed") else "interrupted"
        return [{"type": "control", "text": ended}]
    return []


def _error(name: str, value: str, traceback: str) -> dict[str, Any]:
    return {
        "type": "error",
        "name": name[:_TEXT_CHARACTERS],
        "value": value[:_TEXT_CHARACTERS],
        "traceback": traceback[-_TEXT_CHARACTERS:],
    }


def _pieces(text: str) -> list[str]:
    return [text[start : start + _TEXT_CHARACTERS] for start in range(0, len(text), _TEXT_CHARACTERS)]
