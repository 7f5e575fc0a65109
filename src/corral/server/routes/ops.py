"""For whoever runs the server: health, metrics, its own description, and the events."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from corral.server.faults import Fault
from corral.server.routing import Call, Table
from corral.server.settings import API
from corral.server.wire.organisations import Check, HealthDto

ROOT = Table("open")
"""At the root, not below the API."""
EVENTS = Table("open")
"""Below the API. The key for events comes in the first packet, and is checked there."""


_WELCOME = """\
This is Corral: sandboxes for the code that AI agents write. There is no page here yet; programs talk to it.

The address for clients: {api}
    export DAYTONA_API_URL={api} DAYTONA_API_KEY=...
    `corral key create` makes a key, on the machine where the server runs.
    The official SDKs of Daytona work as they are: pip install daytona, npm install @daytona/sdk

All operations:          {api}/openapi.json
Whether it is well:      {base}/health and {base}/ready
Counters for Prometheus: {base}/metrics
"""


def _welcome(call: Call) -> web.Response:
    base = call.services.guard.base_url(call.request)
    return web.Response(text=_WELCOME.format(base=base, api=base + API))


@ROOT.add("GET", "/", scope="read", answers={200: str})
async def get_welcome(call: Call) -> web.Response:
    """What this is, for somebody with a browser."""
    return _welcome(call)


@ROOT.add("GET", "/docs", scope="read", answers={200: str})
async def get_docs(call: Call) -> web.Response:
    """Where the description is."""
    return _welcome(call)


@EVENTS.add("GET", "/", scope="read", answers={200: str})
async def get_api(call: Call) -> web.Response:
    """What this is, at the address that clients are given."""
    return _welcome(call)


@ROOT.add("GET", "/health", scope="read", answers={200: dict[str, str]})
async def get_health(call: Call) -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@ROOT.add("GET", "/ready", scope="read", answers={200: dict[str, str]})
async def get_ready(call: Call) -> dict[str, str]:
    """Whether sandboxes can be made and found."""
    if not (call.services.ready and not call.services.sandboxes.database.failing):
        raise Fault(503, "not ready", headers={"Retry-After": "1"})
    return {"status": "ready"}


@ROOT.add("GET", "/metrics", scope="read", answers={200: str})
async def get_metrics(call: Call) -> web.Response:
    """Counters for Prometheus; they name no sandbox and no organisation."""
    parts = call.services
    text = parts.metrics.render(states=parts.sandboxes.states(), websockets=len(parts.events))
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


@EVENTS.add("GET", "/health", scope="read", answers={200: dict[str, str]})
async def get_api_health(call: Call) -> dict[str, str]:
    """Whether the process answers, where clients of the API ask for it."""
    return {"status": "ok"}


@EVENTS.add("GET", "/health/ready", scope="read", answers={200: HealthDto})
async def get_api_ready(call: Call) -> HealthDto:
    """Whether sandboxes can be made and found, where clients of the API ask for it."""
    await get_ready(call)
    up = {"sandboxes": Check(status="up")}
    return HealthDto(status="ok", info=up, error={}, details=up)


@EVENTS.add("GET", "/socket.io", scope="read", answers={}, websocket=True)
async def connect_events(call: Call) -> web.StreamResponse:
    """Events of an organisation's sandboxes, over socket.io."""
    parts = call.services
    return await parts.events.serve(call.request, base_url=parts.guard.base_url(call.request))


@EVENTS.add("GET", "/openapi.json", scope="read", answers={200: dict[str, Any]})
async def get_openapi(call: Call) -> web.Response:
    """This description."""
    return web.Response(body=call.services.describe(), content_type="application/json")
