"""The daytona backend: sandboxes of a Daytona service, by the official SDK.

    backend = DaytonaBackend(api_key="…", api_url="https://…/api")   # or DAYTONA_API_KEY, DAYTONA_API_URL
    with Sandbox(backend=backend) as box:
        print(box.exec("echo hello").stdout)

The service may be the hosted one, `corral serve`, or any other with the same API. The SDK comes with
`pip install 'corral[daytona]'` and is loaded when a sandbox is first created.
"""

from __future__ import annotations

from corral.backends.daytona.backend import DaytonaBackend

__all__ = ["DaytonaBackend", "open_backend"]


def open_backend(**options: object) -> DaytonaBackend:
    """For the registry."""
    return DaytonaBackend(**options)  # type: ignore[arg-type]
