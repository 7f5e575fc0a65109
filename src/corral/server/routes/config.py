"""The server's configuration, for clients."""

from __future__ import annotations

from corral.server.routing import ApiCall, Table
from corral.server.settings import API, TOOLBOX
from corral.server.snapshots import BASE
from corral.server.wire import control

TABLE = Table("open")


@TABLE.add("GET", "/config")
async def get_config(call: ApiCall) -> control.DaytonaConfiguration:
    """The server's configuration; needs no key."""
    base = call.base_url
    return control.DaytonaConfiguration(
        version=call.server.settings.version,
        oidc=control.OidcConfig(issuer="", client_id="", audience="", provider="none"),
        linked_accounts_enabled=False,
        announcements={},
        proxy_template_url=base + "/preview/{{sandboxId}}/{{PORT}}",
        proxy_toolbox_url=base + TOOLBOX,
        default_snapshot=BASE,
        dashboard_url=base + API,
        max_auto_archive_interval=call.server.settings.defaults.max_auto_archive_minutes,
        maintanance_mode=False,
        environment="corral",
    )
