"""DaytonaSandbox: the known class, on Corral's Daytona backend; hosted, self-hosted, or `corral serve`.

Its signature, results and messages are the known ones, and so is that failures are returned; `ExecuteResponse.gone` and
`last_error` tell what a text can't. With a `sandbox_id` the same sandbox is found again, by any process, until `stop`;
or until it was not opened for `lifetime_seconds` (default: a day; None: no limit).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from corral.adapters.pydantic_ai.opening import OwnBackend, SandboxRequest
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.adapters.pydantic_ai.sync import CorralSandbox
from corral.client.sync import derive_init
from corral.image import Image
from corral.spec import HOME, Lifetime, NetworkPolicy, Resources, make_spec

if TYPE_CHECKING:
    from corral.protocol import Backend

NO_KEY = "Daytona API key is required. Pass api_key= or set DAYTONA_API_KEY."


class AsyncDaytonaSandbox(AsyncCorralSandbox):
    """The same for async callers, made at the first use: nothing blocks in the constructor."""

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
        options = {"api_key": key, "api_url": api_url, "target": target}
        given = {name: value for name, value in options.items() if value is not None}
        spec = make_spec(
            workdir=work_dir,
            snapshot=snapshot,
            image=image,
            resources=resources,
            env=env_vars,
            labels=labels,
            network="open" if network is None else network,
            lifetime=Lifetime(
                seconds=None if isinstance(lifetime_seconds, EllipsisType) else lifetime_seconds,
                idle_seconds=auto_stop_seconds,
            ),
        )
        self._ask_for(
            SandboxRequest(
                OwnBackend(lambda: _open_backend(given)),
                spec,
                sandbox_id,
                lifetime_seconds,
                startup_timeout,
                # Without `network`, the service decides: the hosted one allows all, `corral serve` nothing.
                fallback_spec=replace(spec, network=NetworkPolicy()) if network is None else None,
                too_late=self._make_late_error,
            )
        )

    @staticmethod
    def _make_late_error(seconds: float) -> Exception:
        return RuntimeError(f"Daytona sandbox failed to start within {seconds:g} seconds")

    def _say_what_is_left(self, shown: int, total: int | None) -> str:
        return "... (output truncated)"


class DaytonaSandbox(CorralSandbox):
    """A Daytona sandbox for plain code; it exists from the call on. The keyword-only parameters are ours."""

    kind = AsyncDaytonaSandbox

    @derive_init(AsyncDaytonaSandbox)
    def __init__(self, target: AsyncDaytonaSandbox) -> None:
        self._adopt(target)


def _open_backend(options: Mapping[str, str]) -> Backend:
    from corral.backends.daytona import open_backend  # it brings the vendor's client

    return open_backend(**options)
