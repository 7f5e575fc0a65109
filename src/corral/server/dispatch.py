"""One request, from its arrival to its answer: every check stands here, once, before any handler runs."""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import secrets
import time
from typing import Any

import msgspec
from aiohttp import web

from corral.base.output import ALLOWANCE
from corral.concurrency.waiting import PACE
from corral.errors import CorralError
from corral.server import log
from corral.server.admission import Admission
from corral.server.answers import Large, ManyItems, PlainText, is_large, send
from corral.server.auth import Doorkeeper
from corral.server.budget import Account, Budget, OutputAllowance
from corral.server.faults import Fault, too_many
from corral.server.guard import Guard
from corral.server.metrics import Metrics
from corral.server.parsing import parse_body, parse_query, split_path
from corral.server.rates import Rates
from corral.server.router import Match, Router
from corral.server.routing import ADMITTED, NOBODY, SANDBOX, Call, Identity, Route
from corral.server.services import Services
from corral.server.signing import find_signer, wrong_signature
from corral.server.sockets import close_socket
from corral.server.translate import translate
from corral.server.turns import Turns
from corral.server.wire.base import timestamp

STARTED = web.RequestKey("started", web.StreamResponse)
ROUTE = web.RequestKey("route", Route)
REQUEST_ID = web.RequestKey("request_id", str)
SKIP_ACTIVITY = "X-Daytona-Skip-Last-Activity-Update"
QUERY_KEY = "DAYTONA_SANDBOX_AUTH_KEY"
_JSON = "application/json"
_FREE_BODY_BYTES = 16 * 1024
_BODY_FACTOR = 3
"""A body is held as it came and as what it says, of which each character may take up to four bytes."""
_STREAM_BYTES = 384 * 1024
"""What a stream may hold: a piece on its way, and the buffers of its connection."""
_SOCKET_BYTES = 40 * 1024
"""What a websocket costs whose client takes what it is sent; `Socket` takes more for one that does not."""
_encode = msgspec.json.Encoder().encode


class Dispatcher:
    """Answers requests by the table of routes."""

    def __init__(
        self,
        *,
        services: Services,
        router: Router,
        door: Doorkeeper,
        admission: Admission,
        guard: Guard,
        metrics: Metrics,
        budget: Budget,
    ) -> None:
        limits = services.settings.limits
        self._services = services
        self._router = router
        self._door = door
        self._admission = admission
        self._guard = guard
        self._metrics = metrics
        self._limits = limits
        self._budget = budget
        self._turns = Turns()
        self._parts = Turns(at_once=1)
        """Of what is long: one part of it in each round of the event loop, whoever it is for."""
        self._rates = Rates(per_second=limits.rate_per_key, burst=2 * limits.rate_per_key)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The one handler of the app."""
        begin = time.perf_counter()
        request[REQUEST_ID] = secrets.token_hex(8)
        log.REQUEST_ID.set(request[REQUEST_ID])
        self._metrics.in_flight += 1
        status: int | None = None
        try:
            response = await self._handle(request)
            status = response.status
            return response
        finally:
            self._metrics.in_flight -= 1
            self._note(request, status or _status_of_left(request), time.perf_counter() - begin)

    def _note(self, request: web.Request, status: int, seconds: float) -> None:
        route = request.get(ROUTE)
        operation = route.name if route is not None else "none"
        self._metrics.count(operation=operation, method=request.method, status=status, seconds=seconds)
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
            return await self._refuse(request, Fault(error.status, error.reason or "refused"))
        except ConnectionError:
            raise asyncio.CancelledError from None  # the client left while we wrote
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the client
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
        message = f"the server failed; its log says more under {request[REQUEST_ID]}"
        return await self._refuse(request, Fault(500, message))

    async def _refuse(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        started: web.StreamResponse | None = request.get(STARTED)
        if started is not None:
            # The status is sent already: all that is left is an end that nobody takes for a good one.
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
            response.force_close()  # what was not read must not be taken for the next request
        return response

    # The checks, in their order.

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._guard.check(request)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Fault(415, "bodies are not unpacked here")
        match = self._router.find(request.method, split_path(request.rel_url.raw_path))
        if match is None:
            raise Fault(404, "there is no such route")
        if match.route is None:
            raise Fault(405, "not with this method", headers={"Allow": ", ".join(match.allowed)})
        route = match.route
        request[ROUTE] = route
        identity = self._identify(request, match)
        if identity is NOBODY:
            await self._turns.take(NOBODY.key_id)
            return await self._serve(
                route, Call(request=request, services=self._services, identity=identity, params=match.params)
            )
        request[ADMITTED] = identity.key_id
        async with self._admission.admitted(identity) as visit:
            await self._turns.take(identity.key_id)
            with self._budget.account(identity.key_id) as account:
                call = Call(
                    request=request,
                    services=self._services,
                    identity=identity,
                    params=match.params,
                    visit=visit,
                    account=account,
                )
                # For the task of this request, and those that it starts.
                ALLOWANCE.set(OutputAllowance(account))
                PACE.set(functools.partial(self._parts.take, identity.key_id))
                return await self._serve(route, call)

    async def _serve(self, route: Route, call: Call) -> web.StreamResponse:
        if route.query is not None:
            call.query = parse_query(route.query, call.request.query.items())
        if route.websocket and call.request.headers.get("Upgrade", "").lower() != "websocket" and not route.answers:
            raise Fault(426, "this is a websocket", headers={"Upgrade": "websocket"})
        if route.area != "toolbox":
            return await self._respond(route, call, await self._run(route, call))
        return await self._inside(route, call)

    async def _inside(self, route: Route, call: Call) -> web.StreamResponse:
        sandbox_id = call.params["sandboxId"]
        organisation = call.identity.organisation_id
        activity = call.request.headers.get(SKIP_ACTIVITY) != "true"
        async with self._services.warden.use(sandbox_id, organisation_id=organisation, activity=activity) as held:
            call.request[SANDBOX] = held.id
            call.held = held
            return await self._respond(route, call, await self._run(route, call))

    async def _run(self, route: Route, call: Call) -> Any:
        if route.body is not None and not route.raw_body:
            call.body = await self._read_body(route, call.request, call.account)
        elif call.account is not None:
            await call.account.reserve(_held_by(route))
        return await route.handler(call)

    async def _read_body(self, route: Route, request: web.Request, account: Account | None) -> Any:
        limit = self._limits.json_bytes if route.large_body else self._limits.small_json_bytes
        limit = min(limit, self._limits.json_bytes)
        length = request.content_length if request.content_length is not None else limit
        if length > limit:
            raise Fault(413, f"a body of this request may have {limit} bytes")
        if not request.body_exists:
            length = 0
        if account is not None:
            await account.reserve(_held_by(route) + (_BODY_FACTOR * length if length > _FREE_BODY_BYTES else 0))
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                body = await request.read()
        except TimeoutError:
            raise Fault(408, "the body did not come in time") from None
        if len(body) > limit:
            raise Fault(413, f"a body of this request may have {limit} bytes")
        if not body:
            if route.body_optional:
                return None
            raise Fault(400, "the request needs a body")
        kind = request.content_type
        if kind not in (_JSON, "application/octet-stream") and not kind.endswith("+json"):
            raise Fault(415, f"the body must be {_JSON}")
        limits = self._limits
        return parse_body(route.body, body, max_depth=limits.json_depth, max_items=limits.json_items)

    def _identify(self, request: web.Request, match: Match) -> Identity:
        route = match.route
        assert route is not None, "only a route has a door"
        if route.area == "open":
            return NOBODY
        secret = find_key(request, websocket=route.websocket)
        if secret is None and route.signed and "signature" in request.query:
            identity = self._identify_signed(request, route, match.params["sandboxId"])
        else:
            identity = self._door.admit(secret, address=request.remote)
        if (wait := self._rates.take(identity.key_id)) > 0:
            raise too_many("too many requests", wait)
        if route.scope not in identity.scopes:
            raise Fault(403, f"this key may not {route.scope}")
        return identity

    def _identify_signed(self, request: web.Request, route: Route, sandbox_id: str) -> Identity:
        """Whoever has a signed URL, for this one call. Asked before anything is told or done about the sandbox."""
        query = request.query
        try:
            row = self._services.control.roster.find(sandbox_id, organisation_id=None)
        except Fault:
            raise self._door.refusal(wrong_signature(), address=request.remote) from None
        try:
            key_id = find_signer(
                row.signing_key,
                self._door.keyring.signers(row.organisation_id),
                method=route.method,
                path=query.get("path", ""),
                expires=query.get("expires", ""),
                signature=query["signature"],
            )
        except Fault as fault:
            raise self._door.refusal(fault, address=request.remote) from None
        return Identity(key_id=key_id, organisation_id=row.organisation_id, scopes=frozenset({route.scope}))

    async def _respond(self, route: Route, call: Call, result: Any) -> web.StreamResponse:
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


def _held_by(route: Route) -> int:
    """What a call of this route holds beside its body."""
    if route.websocket:
        return _SOCKET_BYTES
    return _STREAM_BYTES if route.raw_body or route.streams else 0


def _status_of_left(request: web.Request) -> int:
    """What is noted of a request whose client has gone. For a websocket that is the usual end."""
    started = request.get(STARTED)
    if isinstance(started, web.WebSocketResponse):
        return started.status
    return 499  # it did not wait for its answer, as some web servers write it


def find_key(request: web.Request, *, websocket: bool) -> str | None:
    """The caller's key: from the header; for websockets of browsers, which can't set one, also from the query."""
    given = request.headers.getall("Authorization", [])
    if len(given) > 1:
        raise Fault(400, "there are several keys in the request")  # a proxy may have checked another one
    scheme, _, secret = (given[0] if given else "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    return request.query.get(QUERY_KEY) if websocket else None


def error_response(request: web.BaseRequest, fault: Fault) -> web.Response:
    """A refusal as the wire writes it."""
    try:
        phrase = http.HTTPStatus(fault.status).phrase
    except ValueError:
        phrase = "Error"
    body: dict[str, Any] = {
        "path": request.rel_url.raw_path,
        "timestamp": timestamp(time.time()),
        "statusCode": fault.status,
        "error": phrase,
        "message": fault.message,
        "method": request.method,
    }
    if fault.code is not None:
        body["code"] = fault.code
    if fault.source is not None:
        body["source"] = fault.source
    body |= fault.details
    return web.Response(status=fault.status, body=_encode(body), content_type=_JSON, headers=fault.headers or None)
