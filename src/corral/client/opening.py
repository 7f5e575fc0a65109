"""The front door for async callers: `AsyncSandbox`.

It opens a sandbox on a backend and hands it over; what it hands over is described in `corral.protocol.AsyncSandbox`.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast

from corral.client.registry import get_backend
from corral.client.sandbox import SandboxBase
from corral.errors import SpecError
from corral.image import Image
from corral.protocol import Backend
from corral.results import Event, SandboxInfo
from corral.spec import DEFAULT_OUTPUT_LIMIT_BYTES, HOME, Lifetime, NetworkPolicy, Resources, Spec


class Wishes(TypedDict, total=False):
    """The keywords that `Sandbox` and `AsyncSandbox` take. Each is a field of `Spec`, with these conveniences:
    `resources` may be a mapping, `network` a text, `lifetime` plain seconds, and `keep_on_failure` stands beside it."""

    image: str | Image | None
    resources: Resources | Mapping[str, Any] | None
    network: NetworkPolicy | str | None
    env: Mapping[str, str] | None
    workdir: str
    lifetime: Lifetime | float | None
    keep_on_failure: bool
    name: str | None
    labels: Mapping[str, str] | None
    packages: Sequence[str]
    venv: str | os.PathLike[str] | None
    ephemeral: bool
    hostname: str
    exec_timeout: float | None
    output_limit_bytes: int
    snapshot: str | None
    client_token: str | None


def make_spec(**wishes: Unpack[Wishes]) -> Spec:
    """A Spec from keywords.

    Raises:
        SpecError: an unknown keyword, or a value that can't be.
    """
    unknown = sorted(set(wishes) - set(Wishes.__annotations__))
    if unknown:
        near = difflib.get_close_matches(unknown[0], Wishes.__annotations__, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(Wishes.__annotations__)}"
        limits = [field.name for field in fields(Resources)]
        if limit := next((name for name in limits if unknown[0] in (name, name.removesuffix("_bytes"))), ""):
            hint = f"limits go into resources: resources=Resources({limit}=…)"
        raise SpecError(f"unknown option {unknown[0]!r}", hint=hint)
    lifetime = wishes.get("lifetime")
    keep = wishes.get("keep_on_failure", False)
    if not isinstance(lifetime, Lifetime):
        lifetime = Lifetime(seconds=lifetime, keep_on_failure=keep)
    elif keep:
        lifetime = Lifetime(lifetime.seconds, lifetime.idle_seconds, keep_on_failure=True)
    return Spec(
        image=wishes.get("image"),
        resources=Resources.parse(wishes["resources"]) if wishes.get("resources") is not None else Resources(),
        network=NetworkPolicy.parse(wishes.get("network")),
        env=wishes.get("env") or {},
        workdir=wishes.get("workdir", HOME),
        lifetime=lifetime,
        name=wishes.get("name"),
        labels=wishes.get("labels") or {},
        packages=cast("tuple[str, ...]", wishes.get("packages", ())),
        venv=wishes.get("venv"),
        ephemeral=wishes.get("ephemeral", False),
        hostname=wishes.get("hostname", "corral"),
        exec_timeout=wishes.get("exec_timeout"),
        output_limit_bytes=wishes.get("output_limit_bytes", DEFAULT_OUTPUT_LIMIT_BYTES),
        snapshot=wishes.get("snapshot"),
        client_token=wishes.get("client_token"),
    )


class AsyncSandbox:
    """Opens a sandbox: `async with AsyncSandbox() as box:` or `box = await AsyncSandbox.create()`.

    Keywords are those of `make_spec`, or a whole `spec=`; `backend=` is a name or a `Backend`; `on_event=` is told what
    happens to the sandbox.
    """

    def __init__(
        self,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: Callable[[Event], None] | None = None,
        **wishes: Unpack[Wishes],
    ) -> None:
        if spec is not None and wishes:
            raise TypeError(f"give either spec= or {', '.join(sorted(wishes))}, not both")
        self._backend = get_backend(backend)
        self._spec = spec if spec is not None else make_spec(**wishes)
        self._on_event = on_event
        self._box: SandboxBase | None = None

    @classmethod
    async def create(
        cls,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        on_event: Callable[[Event], None] | None = None,
        **wishes: Unpack[Wishes],
    ) -> SandboxBase:
        """Make a sandbox; whoever asked closes it with `aclose`. Raises: as `Backend.create`."""
        return await cls(backend=backend, spec=spec, on_event=on_event, **wishes)

    @classmethod
    async def connect(cls, sandbox_id: str, *, backend: str | Backend = "embedded") -> SandboxBase:
        """A handle to a detached sandbox. Raises: SandboxGoneError."""
        return cast("SandboxBase", await get_backend(backend).connect(sandbox_id))

    @classmethod
    async def list(cls, *, backend: str | Backend = "embedded") -> Sequence[SandboxInfo]:
        """The detached sandboxes that live."""
        return await get_backend(backend).list()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._backend.name}, not open>" if self._box is None else repr(self._box)

    def __await__(self) -> Generator[Any, None, SandboxBase]:
        return self._open().__await__()

    async def __aenter__(self) -> SandboxBase:
        self._box = await self._open()
        return self._box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._box is not None:
            await self._box.__aexit__(kind, error, traceback)

    async def _open(self) -> SandboxBase:
        making = asyncio.ensure_future(create_on(self._backend, self._spec, self._on_event))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # Whatever state the making is in, nothing of it may stay behind.
            making.cancel()
            (outcome,) = await asyncio.gather(making, return_exceptions=True)
            if isinstance(outcome, SandboxBase):
                await outcome.aclose()
            raise


async def create_on(backend: Backend, spec: Spec, on_event: Callable[[Event], None] | None) -> SandboxBase:
    """`Backend.create`, with a listener for backends that know what that is."""
    if on_event is None:
        return cast("SandboxBase", await backend.create(spec))
    return cast("SandboxBase", await backend.create(spec, on_event=on_event))  # type: ignore[call-arg]
