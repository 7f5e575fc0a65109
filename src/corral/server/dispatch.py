"""One request, from its arrival to its answer: all checks are made here, once, before a handler runs.

Requests for previews are told apart first. For all others, in their order: Host and Origin, path and method, key, rate
and scope, calls at once, query, sandbox, body. Paths, queries and bodies are parsed strictly, under limits.
"""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import re
import secrets
import time
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from corral.base.process import ALLOWANCE
from corral.concurrency.waiting import PACE
from corral.errors import CorralError
from corral.inside.jsonbounds import outside_texts
from corral.results import timestamp
from corral.server import log
from corral.server.answers import Large, ManyItems, PlainText, send
from corral.server.auth import Admission, Doorkeeper, find_key
from corral.server.fairness import Budget, OutputAllowance, Rates, Turns, is_large
from corral.server.faults import Fault, too_many
from corral.server.preview.places import Place
from corral.server.preview.service import HELD_BYTES, PREVIEW, fault_of, page
from corral.server.routing import ADMITTED, ANONYMOUS, SANDBOX, ApiCall, Identity, Route
from corral.server.signing import identify_signer
from corral.server.sockets import close_socket
from corral.server.translate import translate
from corral.server.wire.control import ErrorResponse

if TYPE_CHECKING:
    from corral.server.app import Server

SERVER = "corral"
"""The `Server` header, without version numbers that would help an attacker."""
STARTED = web.RequestKey("started", web.StreamResponse)
ROUTE = web.RequestKey("route", Route)
REQUEST_ID = web.RequestKey("request_id", str)
SKIP_ACTIVITY = "X-Daytona-Skip-Last-Activity-Update"
_JSON = "application/json"
_FREE_BODY_BYTES = 16 * 1024
_BODY_FACTOR = 3
"""A body is held as bytes and as decoded values, in which each character may take up to four bytes."""
_STREAM_BYTES = 384 * 1024
"""The memory of a stream: a piece that is being sent, and the buffers of its connection."""
_SOCKET_BYTES = 40 * 1024
"""The memory of a websocket whose client reads what it is sent; `Socket` takes more for one that does not."""
_BRACKETS = re.compile(rb"[][{}]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_encode = msgspec.json.Encoder().encode


class Dispatcher:
    """Answers requests by the table of routes."""

    def __init__(
        self, server: Server, *, router: Router, door: Doorkeeper, admission: Admission, budget: Budget
    ) -> None:
        self._server = server
        self._router = router
        self._door = door
        self._admission = admission
        self._limits = server.settings.limits
        self._budget = budget
        self._turns = Turns()
        self._parts = Turns(at_once=1)
        """For long work: one part of it in each round of the event loop, for all keys together."""
        self._rates = Rates(per_second=self._limits.rate_per_key, burst=2 * self._limits.rate_per_key)

    def make_app(self) -> web.Application:
        """An application in which every request is answered here."""

        # As a middleware, because aiohttp's routes don't get requests without a path (`OPTIONS *`, `CONNECT`).
        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self.handle(request)

        app = web.Application(client_max_size=self._limits.json_bytes, middlewares=[answer])
        app.on_response_prepare.append(_note_start)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        begin = time.perf_counter()
        request[REQUEST_ID] = secrets.token_hex(8)
        log.REQUEST_ID.set(request[REQUEST_ID])
        self._server.metrics.in_flight += 1
        status: int | None = None
        try:
            response = await self._handle(request)
            status = response.status
            return response
        finally:
            self._server.metrics.in_flight -= 1
            self._note(request, status or _status_of_left(request), time.perf_counter() - begin)

    def _note(self, request: web.Request, status: int, seconds: float) -> None:
        route = request.get(ROUTE)
        operation = route.name if route is not None else "none"
        self._server.metrics.count(operation=operation, method=request.method, status=status, seconds=seconds)
        log.event(
            "request",
            request_id=request[REQUEST_ID],
            operation=operation,
            method=request.method,
            status=status,
            milliseconds=round(seconds * 1000, 2),
            sandbox=request.get(SANDBOX),
            address=request.remote,
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except Fault as fault:
            return await self._refuse(request, fault)
        except CorralError as error:
            fault_or_none = translate(error)
            if fault_or_none is None:
                return await self._fail(request, error)
            return await self._refuse(request, fault_or_none)
        except web.HTTPException as error:
            return await self._refuse(request, Fault(error.status, error.reason or "error"))
        except ConnectionError:
            raise asyncio.CancelledError from None  # the client disconnected while we wrote
        except Exception as error:  # noqa: BLE001 - no exception of ours may reach the client
            return await self._fail(request, error)
        if not response.prepared:
            response.headers["X-Request-Id"] = request[REQUEST_ID]
        return response

    async def _fail(self, request: web.Request, error: Exception) -> web.StreamResponse:
        log.event(
            "failure",
            level=logging.ERROR,
            error=error,
            request_id=request[REQUEST_ID],
            sandbox=request.get(SANDBOX),
            operation=request[ROUTE].name if ROUTE in request else None,
        )
        message = f"internal server error; see the server's log for request {request[REQUEST_ID]}"
        return await self._refuse(request, Fault(500, message))

    async def _refuse(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        started: web.StreamResponse | None = request.get(STARTED)
        if started is not None:
            # The status has been sent: end in a way that the client can't take for a success.
            if isinstance(started, web.WebSocketResponse):
                code = 1008 if fault.status in (401, 403) else 1011
                await close_socket(
                    started,
                    request,
                    code=code,
                    reason=fault.message.encode()[:120],
                    patience=self._limits.request_seconds,
                )
            elif request.transport is not None:
                request.transport.close()
            return started
        response = error_response(request, fault)
        response.headers["X-Request-Id"] = request[REQUEST_ID]
        if request.can_read_body and not request._read_bytes:  # noqa: SLF001 - the only way to know
            response.force_close()  # unread data must not be taken for the next request
        return response

    # The checks, in their order.

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            place = self._server.previews.places.find(request)
        except Fault as fault:
            return page(request, fault)
        if place is not None:
            return await self._show(request, place)
        self._server.guard.check(request)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Fault(415, "Content-Encoding is not supported")
        route, params = self._router.find(request.method, split_path(request.rel_url.raw_path))
        request[ROUTE] = route
        identity = self._identify(request, route, params)
        call = ApiCall(request=request, server=self._server, identity=identity, params=params)
        if identity is ANONYMOUS:
            await self._turns.take(ANONYMOUS.key_id)
            return await self._serve(route, call)
        request[ADMITTED] = identity.key_id
        async with self._admission.admitted(identity) as call.visit:
            await self._turns.take(identity.key_id)
            with self._budget.account(identity.key_id) as call.account:
                # For the task of this request, and those that it starts.
                ALLOWANCE.set(OutputAllowance(call.account))
                PACE.set(functools.partial(self._parts.take, identity.key_id))
                return await self._serve(route, call)

    async def _show(self, request: web.Request, place: Place) -> web.StreamResponse:
        """Answer for a program in a sandbox."""
        request[ROUTE] = PREVIEW
        try:
            admitted = await self._server.previews.admit(request, place)
            key_id = admitted.identity.key_id
            self._limit_rate(key_id)
            request[ADMITTED] = key_id
            async with self._admission.admitted(admitted.identity, still=admitted.still):
                await self._turns.take(key_id)
                with self._budget.account(key_id) as account:
                    PACE.set(functools.partial(self._parts.take, key_id))
                    await account.reserve(HELD_BYTES)
                    return await self._server.previews.serve(request, place, admitted)
        except (Fault, CorralError) as error:
            fault = error if isinstance(error, Fault) else fault_of(error)
            if fault is None or STARTED in request:
                raise
            return page(request, fault)

    def _limit_rate(self, key_id: str) -> None:
        if (wait := self._rates.take(key_id)) > 0:
            raise too_many("too many requests", wait)

    async def _serve(self, route: Route, call: ApiCall) -> web.StreamResponse:
        if route.query is not None:
            call.query = parse_query(route.query, call.request.query.items())
        if route.websocket and call.request.headers.get("Upgrade", "").lower() != "websocket" and not route.answers:
            raise Fault(426, "this endpoint needs a websocket upgrade", headers={"Upgrade": "websocket"})
        if route.area != "toolbox":
            return await self._run(route, call)
        activity = call.request.headers.get(SKIP_ACTIVITY) != "true"
        async with self._server.sandboxes.use(
            call.params["sandboxId"], organisation_id=call.identity.organisation_id, activity=activity
        ) as call.sandbox:
            call.request[SANDBOX] = call.sandbox.row.id
            return await self._run(route, call)

    async def _run(self, route: Route, call: ApiCall) -> web.StreamResponse:
        if route.body is not None:
            call.body = await self._read_body(route, call)
        elif call.identity is not ANONYMOUS:
            await call.account.reserve(_held_by(route))
        return await self._respond(route, call, await route.handler(call))

    async def _read_body(self, route: Route, call: ApiCall) -> Any:
        request = call.request
        limits = self._limits
        limit = limits.json_bytes if route.large_body else min(limits.small_json_bytes, limits.json_bytes)
        length = request.content_length if request.content_length is not None else limit
        if length > limit:
            raise Fault(413, f"the body is larger than {limit} bytes")
        if not request.body_exists:
            length = 0
        await call.account.reserve(_held_by(route) + (_BODY_FACTOR * length if length > _FREE_BODY_BYTES else 0))
        try:
            async with asyncio.timeout(limits.request_seconds):
                body = await request.read()
        except TimeoutError:
            raise Fault(408, "timeout while reading the body") from None
        if len(body) > limit:
            raise Fault(413, f"the body is larger than {limit} bytes")
        if not body:
            if route.body_optional:
                return None
            raise Fault(400, "the request body is empty")
        kind = request.content_type
        if kind not in (_JSON, "application/octet-stream") and not kind.endswith("+json"):
            raise Fault(415, f"the Content-Type must be {_JSON}")
        return parse_body(route.body, body, max_depth=limits.json_depth, max_items=limits.json_items)

    def _identify(self, request: web.Request, route: Route, params: Mapping[str, str]) -> Identity:
        if route.area == "open":
            return ANONYMOUS
        secret = find_key(request, websocket=route.websocket)
        if secret is None and route.signed and "signature" in request.query:
            sandboxes, sandbox_id = self._server.sandboxes, params["sandboxId"]
            identity = identify_signer(request, route, sandboxes=sandboxes, sandbox_id=sandbox_id, door=self._door)
        else:
            identity = self._door.admit(secret, address=request.remote)
        self._limit_rate(identity.key_id)
        if route.scope not in identity.scopes:
            raise Fault(403, f"the API key lacks the scope {route.scope!r}")
        return identity

    async def _respond(self, route: Route, call: ApiCall, result: Any) -> web.StreamResponse:
        if isinstance(result, web.StreamResponse):
            return result
        status = next(iter(route.answers))
        if isinstance(result, tuple):
            status, result = result
        if result is None:
            return web.Response(status=status)
        if not isinstance(result, Large | ManyItems | PlainText) and is_large(result):
            result = Large(result, status=status)
        if isinstance(result, Large | ManyItems | PlainText):
            headers = {"X-Request-Id": call.request[REQUEST_ID]}
            return await send(call.request, result, headers=headers, patience=self._limits.request_seconds)
        return web.Response(status=status, body=_encode(result), content_type=_JSON)


async def _note_start(request: web.Request, response: web.StreamResponse) -> None:
    request[STARTED] = response
    response.headers["Server"] = SERVER


def _held_by(route: Route) -> int:
    """The memory that a call of this route holds besides its body."""
    if route.websocket:
        return _SOCKET_BYTES
    return _STREAM_BYTES if route.raw_body or route.streams else 0


def _status_of_left(request: web.Request) -> int:
    """The status for the log if the client has disconnected. For a websocket that is the usual end."""
    started = request.get(STARTED)
    if isinstance(started, web.WebSocketResponse):
        return started.status
    return 499  # as nginx logs a client that has closed the request


def error_response(request: web.BaseRequest, fault: Fault) -> web.Response:
    """The response for a fault."""
    known = ErrorResponse(
        path=request.rel_url.raw_path,
        timestamp=timestamp(time.time()),
        status_code=fault.status,
        error=http.HTTPStatus(fault.status).phrase,
        message=fault.message,
        code=fault.code,
        source=fault.source,
        method=request.method,
    )
    body = _encode(msgspec.to_builtins(known) | fault.details)
    return web.Response(status=fault.status, body=body, content_type=_JSON, headers=fault.headers or None)


# Finding the route.


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    """All routes of an app."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, path: str, route: Route) -> None:
        """Add a route at a path; of two with the same path and method, the first is used."""
        node = self._root
        names = []
        for segment in filter(None, path.split("/")):
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        node.routes.setdefault(route.method, (route, tuple(names)))

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]]:
        """The route for a request, and the values of its parameters.

        Raises:
            Fault: 404 for an unknown path; 405 for a method that the path does not have.
        """
        allowed: set[str] = set()
        stack: list[tuple[_Node, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while stack:
            node, at, values = stack.pop()
            if at == len(segments):
                found = node.routes.get(method)
                if found is not None:
                    route, names = found
                    return route, dict(zip(names, values, strict=True))
                allowed.update(node.routes)
                continue
            segment = segments[at]
            if node.parameter is not None:
                stack.append((node.parameter, at + 1, (*values, segment)))
            if segment in node.fixed:
                stack.append((node.fixed[segment], at + 1, values))
        if not allowed:
            raise Fault(404, "no such endpoint")
        raise Fault(405, "method not allowed", headers={"Allow": ", ".join(sorted(allowed))})


# Reading paths, queries and bodies.


def split_path(raw: str) -> tuple[str, ...]:
    """The segments of a raw path, each decoded once. Empty ones are left out: clients sometimes write double slashes.

    Raises:
        Fault: 400 for a dot segment, a control character, or invalid UTF-8.
    """
    segments = []
    for part in raw.split("/"):
        if not part:
            continue
        try:
            text = unquote_to_bytes(part).decode() if "%" in part else part
        except UnicodeDecodeError:
            raise Fault(400, "the path is not valid UTF-8") from None
        if text in (".", "..") or _CONTROL.search(text):
            raise Fault(400, "the path contains a dot segment or a control character")
        segments.append(text)
    return tuple(segments)


@functools.cache
def _shape(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The kind of each key of a query: a list, a flag, or a single value."""
    hints = typing.get_type_hints(kind)
    shape = {}
    for each in msgspec.structs.fields(kind):
        parts = _alternatives(hints[each.name])
        flavour = "list" if list in parts else "flag" if bool in parts else "text"
        shape[each.encode_name] = flavour
    return shape


def _alternatives(hint: Any) -> set[Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return {part for argument in typing.get_args(hint) for part in _alternatives(argument)}
    return {origin or hint}


def parse_query(kind: type[msgspec.Struct], pairs: Iterable[tuple[str, str]]) -> Any:
    """The query as its model; unknown keys are ignored. Raises: Fault 400."""
    shape = _shape(kind)
    values: dict[str, Any] = {}
    for key, value in pairs:
        flavour = shape.get(key)
        if flavour is None:
            continue
        if flavour == "list":
            values.setdefault(key, []).append(value)
        elif key in values:
            raise Fault(400, f"query: {key!r} is given more than once")
        elif flavour == "flag":
            if value not in ("true", "false"):
                raise Fault(400, f"query: {key!r} must be true or false")
            values[key] = value == "true"
        else:
            values[key] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Fault(400, f"query: {error}") from None


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def parse_body(kind: Any, body: bytes, *, max_depth: int, max_items: int) -> Any:
    """A JSON body as its model. Raises: Fault 400."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > max_depth or brackets + body.count(b'"') // 2 > max_items:
        _check_shape(body, max_depth=max_depth, max_items=max_items)
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise Fault(400, f"body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Fault(400, f"malformed JSON: {error}") from None
    except RecursionError:
        raise Fault(400, "the JSON body is nested too deeply") from None


def _check_shape(body: bytes, *, max_depth: int, max_items: int) -> None:
    """Other requests wait while this runs: it looks at one bracket at a time only up to the limit of items."""
    found = outside_texts(body, max_texts=max_items)
    if found is None:
        raise _too_many_items(max_items)
    items, outside = found
    depth = 0
    for bracket in _BRACKETS.finditer(outside):
        if bracket[0] in b"]}":
            depth -= 1
            continue
        items += 1
        depth += 1
        if items > max_items:
            raise _too_many_items(max_items)
        if depth > max_depth:
            raise Fault(400, f"the JSON body is nested deeper than {max_depth}")


def _too_many_items(max_items: int) -> Fault:
    return Fault(400, f"the JSON body has more than {max_items} strings, objects and arrays")
