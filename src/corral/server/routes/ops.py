"""Routes without a key: configuration, health, metrics, the OpenAPI document; and events, which ask for one later."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from corral.server.faults import Fault
from corral.server.routing import ApiCall, Table
from corral.server.settings import API, TOOLBOX
from corral.server.snapshots import BASE
from corral.server.wire import control
from corral.server.wire.organisations import Check, HealthDto

ROOT = Table("open")
"""Routes at the root of the server, outside `/api`."""
API_ROOT = Table("open")
"""The same below `/api`."""


_WELCOME = """\
This is Corral: sandboxes for the code that AI agents write. It has an HTTP API and no web interface yet.

API URL: {api}
    export DAYTONA_API_URL={api} DAYTONA_API_KEY=...
    `corral key create` creates a key, on the machine where the server runs.
    The official Daytona SDKs work unmodified: pip install daytona, npm install @daytona/sdk

OpenAPI document:   {api}/openapi.json
Health checks:      {base}/health and {base}/ready
Prometheus metrics: {base}/metrics
"""


def _welcome(call: ApiCall) -> web.Response:
    base = call.base_url
    return web.Response(text=_WELCOME.format(base=base, api=base + API))


@ROOT.add("GET", "/", answers={200: str})
async def get_welcome(call: ApiCall) -> web.Response:
    """Information about this server, as plain text."""
    return _welcome(call)


@ROOT.add("GET", "/docs", answers={200: str})
async def get_docs(call: ApiCall) -> web.Response:
    """Where to find the API documentation, as plain text."""
    return _welcome(call)


@API_ROOT.add("GET", "/", answers={200: str})
async def get_api(call: ApiCall) -> web.Response:
    """Information about this server, at the API's base URL."""
    return _welcome(call)


@API_ROOT.add("GET", "/config")
async def get_config(call: ApiCall) -> control.DaytonaConfiguration:
    """The server's configuration; needs no key."""
    base = call.base_url
    return control.DaytonaConfiguration(
        version=call.server.settings.version,
        oidc=control.OidcConfig(issuer="", client_id="", audience="", provider="none"),
        linked_accounts_enabled=False,
        announcements={},
        proxy_template_url=call.server.previews.named_link(call, "{{sandboxId}}", "{{PORT}}"),
        proxy_toolbox_url=base + TOOLBOX,
        default_snapshot=BASE,
        dashboard_url=base + API,
        max_auto_archive_interval=call.server.settings.defaults.max_auto_archive_minutes,
        maintanance_mode=False,
        environment="corral",
    )


@ROOT.add("GET", "/health")
async def get_health(call: ApiCall) -> dict[str, str]:
    """Liveness: the process is running."""
    return {"status": "ok"}


@ROOT.add("GET", "/ready")
async def get_ready(call: ApiCall) -> dict[str, str]:
    """Readiness: sandboxes can be created and found."""
    if not (call.server.ready and not call.server.sandboxes.database.failing):
        raise Fault(503, "not ready", headers={"Retry-After": "1"})
    return {"status": "ready"}


@ROOT.add("GET", "/metrics", answers={200: str})
async def get_metrics(call: ApiCall) -> web.Response:
    """Metrics in Prometheus format; without names of sandboxes or organisations."""
    server = call.server
    text = server.metrics.render(states=server.sandboxes.states(), websockets=len(server.events))
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


@API_ROOT.add("GET", "/health")
async def get_api_health(call: ApiCall) -> dict[str, str]:
    """Liveness, below the API's base URL."""
    return {"status": "ok"}


@API_ROOT.add("GET", "/health/ready")
async def get_api_ready(call: ApiCall) -> HealthDto:
    """Readiness, below the API's base URL."""
    await get_ready(call)
    up = {"sandboxes": Check(status="up")}
    return HealthDto(status="ok", info=up, error={}, details=up)


@API_ROOT.add("GET", "/socket.io", answers={}, websocket=True)
async def connect_events(call: ApiCall) -> web.StreamResponse:
    """Events of an organisation's sandboxes, over socket.io."""
    return await call.server.events.serve(call.request, base_url=call.base_url)


@API_ROOT.add("GET", "/openapi.json", answers={200: dict[str, Any]})
async def get_openapi(call: ApiCall) -> web.Response:
    """This OpenAPI document."""
    return web.Response(body=call.server.describe(), content_type="application/json")
