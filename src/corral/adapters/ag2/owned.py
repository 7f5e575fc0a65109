"""AG2's sandboxes that need no environment: `async with DaytonaSandbox(client=…, params=…) as sandbox`.

Each is created when it is entered or first used. It is deleted by `aclose()`, by the garbage collector, or at the end
of the program. It may be used from several event loops.
"""

from __future__ import annotations

import contextlib
from pathlib import PurePosixPath
from typing import Any

from corral.adapters.ag2 import framework
from corral.adapters.ag2.environments import DockerEnvironment, EnvironmentBase, LocalEnvironment
from corral.adapters.ag2.sandbox import AdaptedSandbox, closed_error
from corral.adapters.ag2.service import ServiceBackend, fields_of
from corral.adapters.ag2.words import DAYTONA
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import derive_init


class OwnedSandbox(AdaptedSandbox):
    """The only sandbox of its own environment."""

    def __init__(self, environment: EnvironmentBase) -> None:
        super().__init__(environment)
        self._environment = environment
        self._box: AsyncSandbox | None = None
        self._closed = False

    async def _get(self) -> AsyncSandbox:
        if not self._closed and self._box is None:
            # The environment creates one sandbox for all concurrent callers, also from several event loops.
            async with self._environment.open_box() as box:
                self._box = box
            if self._closed:
                await self._environment.aclose()  # another thread closed it during the creation
        if self._closed or self._box is None:
            raise closed_error(self.words)
        return self._box

    @property
    def box(self) -> AsyncSandbox | None:
        """The Corral sandbox; None before it is created."""
        return self._box

    @property
    def workdir(self) -> PurePosixPath:
        """The working folder, which relative paths start from."""
        return self._environment.workdir

    @property
    def closed(self) -> bool:
        """True after `aclose`."""
        return self._closed

    async def aclose(self) -> None:
        """Delete the sandbox. Idempotent; goes on if cancelled. Raises: LeftBehindError if it can't be deleted."""
        self._closed = True
        await self._environment.aclose()


class DaytonaSandbox(OwnedSandbox):
    """A sandbox of the Daytona service that `client`, the SDK's `AsyncDaytona`, talks to.

    `params` are the SDK's parameters for creating a sandbox. An `auto_stop_interval` of 0 (never) becomes some minutes,
    which are put off while this process lives. Only the client's address is used; it is closed with the sandbox.
    """

    def __init__(self, *, client: Any, params: Any = None, timeout: float = 60, workdir: str = "/workspace") -> None:
        for name, value in (("client", client), ("params", params)):
            if framework.is_variable(value):
                raise _not_concrete("Daytona", name)
        self._client = client
        super().__init__(_OfParams(client, params, timeout=timeout, workdir=workdir))

    async def aclose(self) -> None:
        """Delete the sandbox, and close the client if it is still open. Idempotent."""
        try:
            await super().aclose()
        finally:
            with contextlib.suppress(Exception):  # it may belong to an event loop that has ended
                await self._client.close()


class _OfParams(EnvironmentBase):
    """The environment of a client and its parameters."""

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
    """AG2's local sandbox, but isolated. Arguments as `LocalEnvironment`."""

    @derive_init(LocalEnvironment)
    def __init__(self, environment: LocalEnvironment) -> None:
        super().__init__(environment)
        self.supported_languages = environment.languages
        """As given; the tool chooses what to run."""


def _not_concrete(backend: str, name: str) -> TypeError:
    return TypeError(
        f"{backend}Sandbox.{name} must be a concrete value; got Variable. "
        f"Wrap with {backend}Environment to resolve Variables from a Context."
    )
