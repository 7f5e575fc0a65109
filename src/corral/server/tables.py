"""All routes, with all their paths."""

from __future__ import annotations

from collections.abc import Iterator

from corral.server.dispatch import Router
from corral.server.routes import (
    ops,
    organisations,
    previews,
    sandboxes,
    secrets,
    snapshots,
    telemetry,
    unsupported,
    volumes,
)
from corral.server.routes.toolbox import files, git, info, interpreter, process, sessions, terminals, transfer
from corral.server.routing import Route, Table
from corral.server.settings import API, TOOLBOX

SANDBOX = "/{sandboxId}"
ALIAS = f"{API}/toolbox{SANDBOX}/toolbox"
"""The path of the toolbox for clients before 0.115."""

_DOCS_ALIASES = (f"{API}/docs", *(f"{root}/{name}" for root in ("", API) for name in ("redoc", "swagger")))
"""Usual paths of API documentation."""

CONTROL_TABLES: tuple[Table, ...] = (
    sandboxes.TABLE,
    previews.TABLE,
    telemetry.TABLE,
    snapshots.TABLE,
    secrets.TABLE,
    volumes.TABLE,
    organisations.TABLE,
    ops.API_ROOT,
    unsupported.CONTROL,
)
TOOLBOX_TABLES: tuple[Table, ...] = (
    files.TABLE,
    git.TABLE,
    info.TABLE,
    interpreter.TABLE,
    process.TABLE,
    sessions.TABLE,
    terminals.TABLE,
    transfer.TABLE,
    unsupported.TOOLBOX,
)


def all_routes() -> Iterator[tuple[str, Route]]:
    """Each route with its path, without aliases."""
    for root, tables in (("", (ops.ROOT,)), (API, CONTROL_TABLES), (TOOLBOX + SANDBOX, TOOLBOX_TABLES)):
        for table in tables:
            yield from ((root + route.path, route) for route in table.routes)


def all_places() -> Iterator[tuple[str, Route]]:
    """Each route with each of its paths, including aliases."""
    for path, route in all_routes():
        yield path, route
        if route.area == "toolbox":
            yield ALIAS + path.removeprefix(TOOLBOX + SANDBOX), route
        elif route.handler is ops.get_docs:
            yield from ((alias, route) for alias in _DOCS_ALIASES)


def make_router() -> Router:
    """From the path of a request to a route."""
    router = Router()
    for path, route in all_places():
        router.add(path, route)
    return router
