"""AG2's sandboxes that need no environment: `async with DaytonaSandbox(client=…, params=…) as sandbox`.

Each is made when it is entered or first used, and ended by `aclose()`, when it is forgotten, and when the program ends,
from whatever event loops it was used.
"""

from __future__ import annotations

import contextlib
from pathlib import PurePosixPath
from typing import Any

from corral.adapters.ag2 import framework
from corral.adapters.ag2.environments import DockerEnvironment, EnvironmentBase, LocalEnvironment
from corral.adapters.ag2.sandbox import AdaptedSandbox
from corral.adapters.ag2.service import ServiceBackend, fields_of
from corral.adapters.ag2.words import DAYTONA
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import derive_init


class OwnedSandbox(AdaptedSandbox):
    """One sandbox of an environment that has no other."""

    def __init__(self, environment: EnvironmentBase) -> None:
        super().__init__(timeout=environment.timeout, words=environment.words, max_output=environment.max_output)
        self._environment = environment
        self._box: AsyncSandbox | None = None
        self._closed = False

    async def _get(self) -> AsyncSandbox:
        if not self._closed and self._box is None:
            # However many ask at once, from whatever loops: the environment makes one for all of them.
            async with self._environment.open_box() as box:
                self._box = box
            if self._closed:
                await self._environment.aclose()  # it was closed from another thread while this one was made
        box_now = self._box
        if self._closed or box_now is None:
            raise self._closed_error()
        return box_now

    @property
    def box(self) -> AsyncSandbox | None:
        """The sandbox itself; None as long as it is not made."""
        return self._box

    @property
    def workdir(self) -> PurePosixPath:
        """Where programs start, and relative paths begin."""
        return self._environment.workdir

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def aclose(self) -> None:
        """Delete it. Idempotent; a cancelled close goes on. Raises: LeftBehindError if it could not be deleted."""
        self._closed = True
        await self._environment.aclose()


class DaytonaSandbox(OwnedSandbox):
    """A sandbox of the Daytona service that `client`, the SDK's `AsyncDaytona`, talks to.

    `params` are the SDK's for a creation. An `auto_stop_interval` of 0, which is for ever, becomes minutes that are put
    off as long as this process lives. The client is asked for its address alone, and closed with the sandbox.
    """

    def __init__(self, *, client: Any, params: Any = None, timeout: float = 60, workdir: str = "/workspace") -> None:
        for name, value in (("client", client), ("params", params)):
            if framework.is_variable(value):
                raise _not_concrete("Daytona", name)
        if timeout < 1:
            raise ValueError("`timeout` must be >= 1 second.")
        self._client = client
        super().__init__(_OfParams(client, params, timeout=timeout, workdir=workdir))

    async def aclose(self) -> None:
        """End the sandbox, and close the client if it is still open. Idempotent."""
        try:
            await super().aclose()
        finally:
            with contextlib.suppress(Exception):  # it may belong to an event loop that has ended
                await self._client.close()


class _OfParams(EnvironmentBase):
    """What a client and its parameters make."""

    words = DAYTONA

    def __init__(self, client: Any, params: Any, *, timeout: float, workdir: str) -> None:
        fields = fields_of(params) if params is not None else {}
        super().__init__(
            timeout=timeout,
            workdir=workdir,
            env=fields.get("env_vars"),
            image=fields.get("image"),
            snapshot=fields.get("snapshot"),
            backend=ServiceBackend,
            options={
                # The SDK has no public way to ask a client for these.
                **{
                    name: getattr(client, f"_{name}", None)
                    for name in ("api_key", "api_url", "target", "organization_id", "jwt_token")
                },
                "limits": fields.pop("resources", None),
                "fields": fields,
            },
        )


class DockerSandbox(OwnedSandbox):
    """A Docker container. Keywords as `DockerEnvironment`."""

    @derive_init(DockerEnvironment)
    def __init__(self, environment: DockerEnvironment) -> None:
        if environment.variables:
            raise _not_concrete("Docker", next(iter(environment.variables)))
        super().__init__(environment)


class LocalSandbox(OwnedSandbox):
    """AG2's local sandbox, isolated here. Arguments as `LocalEnvironment`."""

    @derive_init(LocalEnvironment)
    def __init__(self, environment: LocalEnvironment) -> None:
        super().__init__(environment)
        self.supported_languages = environment.languages
        """As it was told: what is run is the tool's choice."""


def _not_concrete(backend: str, name: str) -> TypeError:
    return TypeError(
        f"{backend}Sandbox.{name} must be a concrete value; got Variable. "
        f"Wrap with {backend}Environment to resolve Variables from a Context."
    )
