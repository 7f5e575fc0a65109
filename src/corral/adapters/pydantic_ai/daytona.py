"""DaytonaSandbox: the known class, on Corral's Daytona backend; hosted, self-hosted, or `corral serve`.

It has the known signature, results and messages, and returns failures; `ExecuteResponse.gone` and `last_error` say more
than the text. With a `sandbox_id`, any process finds the same sandbox again until `stop`, or until it was not opened
for `lifetime_seconds` (default: a day; None: no limit).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

from corral.adapters.pydantic_ai.opening import SandboxRequest
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.adapters.pydantic_ai.sync import CorralSandbox
from corral.backends.daytona import DaytonaBackend
from corral.client.sync import derive_init
from corral.image import Image
from corral.spec import HOME, Lifetime, NetworkPolicy, Resources, make_spec

NO_KEY = "Daytona API key is required. Pass api_key= or set DAYTONA_API_KEY."


class AsyncDaytonaSandbox(AsyncCorralSandbox):
    """A Daytona sandbox for async callers, created at the first use: the constructor does not block."""

    returns_failures = True

    def __init__(
        self,
        api_key: str | None = None,
        sandbox_id: str | None = None,
        work_dir: str = HOME,
        startup_timeout: float | None = 180,
        *,
        api_url: str | None = None,
        target: str | None = None,
        snapshot: str | None = None,
        image: str | Image | None = None,
        resources: Resources | Mapping[str, Any] | None = None,
        env_vars: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        network: NetworkPolicy | str | None = None,
        auto_stop_seconds: float | None = None,
        lifetime_seconds: float | EllipsisType | None = ...,
    ) -> None:
        key = api_key or os.environ.get("DAYTONA_API_KEY")
        if not key:
            raise ValueError(NO_KEY)
        backend = DaytonaBackend(api_key=key, api_url=api_url, target=target)
        spec = make_spec(
            workdir=work_dir,
            snapshot=snapshot,
            image=image,
            resources=resources,
            env=env_vars,
            labels=labels,
            # Without `network`, the service decides: the hosted one permits all, `corral serve` what its operator does.
            network="open" if network is None else network,
            lifetime=Lifetime(
                seconds=None if isinstance(lifetime_seconds, EllipsisType) else lifetime_seconds,
                idle_seconds=auto_stop_seconds,
            ),
        )
        self._use(
            SandboxRequest(
                backend,
                spec,
                sandbox_id,
                lifetime_seconds,
                startup_timeout,
                too_late=lambda seconds: RuntimeError(f"Daytona sandbox failed to start within {seconds:g} seconds"),
                closes=backend,
            )
        )

    def _say_what_is_left(self, shown: int, total: int | None) -> str:
        return "... (output truncated)"


class DaytonaSandbox(CorralSandbox):
    """A Daytona sandbox for sync code, created by the constructor. The keyword-only parameters are ours."""

    kind = AsyncDaytonaSandbox

    @derive_init(AsyncDaytonaSandbox)
    def __init__(self, target: AsyncDaytonaSandbox) -> None:
        self._adopt(target)
