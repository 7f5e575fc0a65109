"""Links to ports of a sandbox, and what a proxy asks about them."""

from __future__ import annotations

from corral.server import dto
from corral.server.faults import not_found
from corral.server.preview.links import make_token, port_of_token
from corral.server.preview.places import parse_port
from corral.server.routing import ApiCall, Table
from corral.server.wire import control

TABLE = Table("control")
_PORT = "/sandbox/{sandboxIdOrName}/ports/{port}"
_PREVIEW = "/preview/{sandboxIdOrName}"
_TOOLBOX_PORT = 2280


@TABLE.add("GET", _PORT + "/preview-url", scope="run")
async def get_port_preview_url(call: ApiCall) -> control.PortPreviewUrl:
    """A URL of a port, and the token that requests to it send along, unless the sandbox is public.

    SDKs before 0.110 reach the toolbox's websockets through its own port, with their key.
    """
    row, port = call.find_sandbox().row, parse_port(call.params["port"])
    if port == _TOOLBOX_PORT:
        shown = dto.sandbox(row, base_url=call.base_url)
        return control.PortPreviewUrl(sandbox_id=row.id, url=f"{shown.toolbox_proxy_url}/{row.id}", token="")
    url = await call.server.previews.link(call, row, port)
    token = make_token(row, key_id=call.identity.key_id, port=port)
    return control.PortPreviewUrl(sandbox_id=row.id, url=url, token=token)


@TABLE.add("GET", _PORT + "/signed-preview-url", scope="run", query=control.SignedPreviewQuery)
async def get_signed_port_preview_url(call: ApiCall) -> control.SignedPortPreviewUrl:
    """A URL of a port that needs nothing else, for a limited time."""
    row, port = call.find_sandbox().row, parse_port(call.params["port"])
    seconds = call.query.expires_in_seconds
    url, token = await call.server.previews.signed_link(call, row, port, seconds=seconds)
    return control.SignedPortPreviewUrl(sandbox_id=row.id, port=port, token=token, url=url)


@TABLE.add("POST", _PORT + "/signed-preview-url/{token}/expire", scope="run")
async def expire_signed_port_preview_url(call: ApiCall) -> None:
    """End a signed URL before its time. It is not an error if it has ended."""
    row, port = call.find_sandbox().row, parse_port(call.params["port"])
    link = call.server.previews.links.find(call.params["token"])
    if link is not None:
        if (link.sandbox_id, link.port) != (row.id, port):
            raise not_found("the sandbox has no such link to this port")
        call.server.previews.links.end(link)


@TABLE.add("GET", _PREVIEW + "/public")
async def is_sandbox_public(call: ApiCall) -> bool:
    """Whether previews of the sandbox need no token."""
    return call.find_sandbox().row.public


@TABLE.add("GET", _PREVIEW + "/access")
async def has_sandbox_access(call: ApiCall) -> bool:
    """Whether the key may see previews of the sandbox."""
    call.find_sandbox()
    return "run" in call.identity.scopes


@TABLE.add("GET", _PREVIEW + "/preview-warning")
async def is_preview_warning_enabled(call: ApiCall) -> bool:
    """Whether browsers are shown a warning first: this server has none."""
    call.find_sandbox()
    return False


@TABLE.add("GET", _PREVIEW + "/validate/{authToken}")
async def is_valid_auth_token(call: ApiCall) -> bool:
    """Whether a token gives access to previews of the sandbox."""
    row, given = call.find_sandbox().row, call.params["authToken"]
    return call.server.previews.access.is_token_of(row, given, port=port_of_token(given))


@TABLE.add("GET", "/preview/{signedPreviewToken}/{port}/sandbox-id")
async def get_sandbox_id_from_signed_preview_url_token(call: ApiCall) -> str:
    """The sandbox of a signed URL of the organisation. 404 if the URL has ended."""
    link = call.server.previews.links.find(call.params["signedPreviewToken"])
    if link is None or link.port != parse_port(call.params["port"]):
        raise not_found("no such link")
    return call.server.sandboxes.find(link.sandbox_id, organisation_id=call.organisation_id).row.id
