"""Routes as a table: one row per operation, used for dispatching, checks and the OpenAPI document.

A handler takes an `ApiCall` and returns a wire model, None, or a response. What it needs is checked before it runs: key
and scope, path, query and body against their types, and, in the toolbox, that the sandbox belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from corral.server.faults import too_many

if TYPE_CHECKING:
    from corral.server.app import Server
    from corral.server.auth import Visit
    from corral.server.fairness import Account
    from corral.server.living import Handle, LivingSandbox

Area = Literal["open", "control", "toolbox"]
"""Open routes need no key; toolbox routes are about what happens inside one sandbox."""
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Scope = Literal["read", "write", "delete", "run"]
"""What a key may do: read, create and change, delete, and run programs in sandboxes."""
_SCOPES: dict[Method, Scope] = {"GET": "read", "DELETE": "delete", "POST": "write", "PUT": "write", "PATCH": "write"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller: a key and its organisation."""

    key_id: str
    organisation_id: str
    scopes: frozenset[str]
    network: str | None = None
    """What its sandboxes may reach at most, as `network=` takes it; None is the server's own."""


SANDBOX = web.RequestKey("sandbox", str)
"""On a request: the id of the sandbox it is about, for the log."""
ADMITTED = web.RequestKey("admitted", str)
"""On a request: the id of its key. When there are too many connections, those without one are closed first."""
ANONYMOUS = Identity(key_id="", organisation_id="", scopes=frozenset())
"""The caller of a route that needs no key."""


@dataclass(slots=True, kw_only=True)
class ApiCall:
    """One request, after all checks."""

    request: web.Request
    server: Server
    identity: Identity
    params: Mapping[str, str]
    query: Any = None
    body: Any = None
    visit: Visit = field(init=False)
    """Its place among the calls of its key. Not set for routes that need no key."""
    account: Account = field(init=False)
    """What it holds of its key's memory. Not set for routes that need no key."""
    sandbox: Handle = field(init=False)
    """Set for toolbox routes only."""

    @property
    def organisation_id(self) -> str:
        """The caller's organisation."""
        return self.identity.organisation_id

    @property
    def base_url(self) -> str:
        """The base URL of the server, as the caller uses it."""
        return self.server.guard.base_url(self.request)

    def find_sandbox(self, *, deleted: bool = False) -> LivingSandbox:
        """The sandbox that the path names, by id or name; `deleted` as in `Sandboxes.find`. Raises: Fault 404."""
        wanted = self.params["sandboxIdOrName"]
        sandbox = self.server.sandboxes.find(wanted, organisation_id=self.organisation_id, deleted=deleted)
        self.request[SANDBOX] = sandbox.id
        return sandbox

    def hold(self, count: int) -> None:
        """Take `count` bytes of the key's memory until the call ends. Raises: Fault, 429, if the key has no more."""
        if not self.account.take(count):
            raise too_many("the concurrent requests of this API key use too much memory", 1.0)


Handler = Callable[[ApiCall], Awaitable[Any]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation."""

    method: Method
    path: str
    """Below the API's root, or below `/toolbox/{sandboxId}`; parameters in braces."""
    handler: Handler
    area: Area
    scope: Scope
    name: str
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[Any] | None = None
    body_optional: bool = False
    raw_body: bool = False
    """The handler reads the body itself, as a stream."""
    large_body: bool = False
    """The body holds texts that may be long: code, commands, lists of paths. All others are small."""
    streams: bool = False
    """The answer is a stream of unknown length."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    websocket: bool = False
    signed: bool = False
    """May also be reached without a key, by a signature in the query (`path`, `expires`, `signature`)."""


class Table:
    """The routes of one module, in the order in which they are matched."""

    def __init__(self, area: Area) -> None:
        self.area = area
        self.routes: list[Route] = []

    def add(
        self,
        method: Method,
        path: str,
        *,
        scope: Scope | None = None,
        status: int = 200,
        answers: Mapping[int, Any] | None = None,
        **options: Any,
    ) -> Callable[[H], H]:
        """A decorator; the handler's docstring is the summary in the OpenAPI document, its name the operation's.

        Args:
            method: The HTTP method.
            path: Below the API's root, or of the toolbox below `/toolbox/{sandboxId}`; parameters in braces.
            scope: What the key must permit; by default `run` in the toolbox, and elsewhere what the method says.
            status: The status of a success.
            answers: The type of the body for each status; by default the handler's return type, for `status`.
            options: Other fields of `Route`.
        """

        def register(handler: H) -> H:
            route = Route(
                method=method,
                path=path,
                handler=handler,
                area=self.area,
                scope=scope or ("run" if self.area == "toolbox" else _SCOPES[method]),
                name=handler.__name__,
                summary=(handler.__doc__ or "").strip().split("\n", 1)[0],
                answers=answers if answers is not None else {status: get_annotations(handler, eval_str=True)["return"]},
                **options,
            )
            self.routes.append(route)
            return handler

        return register
