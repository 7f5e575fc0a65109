"""AG2's environments (`SandboxFactory`: `async with environment.open(context) as sandbox`), on Corral's backends.

Pass one to AG2's own `SandboxCodeTool` and `SandboxShellTool`, or to ours. Equal options share a sandbox, which lives
until `aclose()`. Parameters may be AG2's `Variable`s or Corral's, and are looked up on each `open`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from corral.adapters.ag2 import framework
from corral.adapters.ag2.sandbox import Adapted, SandboxView
from corral.adapters.ag2.service import DaytonaResources, ServiceBackend, read_limits, resources_of
from corral.adapters.ag2.words import DAYTONA, DOCKER, LOCAL, PLAIN, Words
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import get_portal
from corral.environment.environment import Environment
from corral.environment.variable import Variable, has_variable, variables_of
from corral.errors import VariableError
from corral.spec import Lifetime, NetworkPolicy, Resources, Spec, parse_size

log = logging.getLogger("corral.ag2")

_CREDENTIALS = ("api_key", "api_url", "target")
_WORKSPACE = "/workspace"
_PERIOD = 100_000
"""Docker's `cpu_quota` counts microseconds per this many."""


class EnvironmentBase(Adapted):
    """AG2's `SandboxFactory` and `WorkdirAware`, on a `corral.Environment`."""

    words: Words = PLAIN
    variables: Mapping[str, str] = {}
    """Parameters that are variables → the names of those variables."""

    def __init__(
        self,
        *,
        timeout: float,
        max_output: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        cleanup: bool = False,
        git_settings: bool = False,
        **spec_options: Any,
    ) -> None:
        if self.words.service and not timeout >= 1:  # as AG2's classes for Daytona and Docker
            raise ValueError("`timeout` must be >= 1 second.")
        if isinstance(timeout, bool) or not timeout > 0:
            raise ValueError("`timeout` must be > 0 seconds.")
        self.timeout = timeout
        """Seconds for each call that gives no timeout."""
        self.max_output = max_output
        self._folder = Path(folder) if folder is not None else None
        self._cleanup = cleanup
        self._git_settings = git_settings
        self._filled: weakref.WeakSet[AsyncSandbox] = weakref.WeakSet()
        """The sandboxes that the folder was copied into."""
        if folder is not None:
            spec_options["prepare"] = self._copy_in
        self.environment = Environment(**{name: as_variable(value) for name, value in spec_options.items()})
        """The `corral.Environment` behind it."""
        self._views: weakref.WeakValueDictionary[str, SandboxView] = weakref.WeakValueDictionary()

    @property
    def workdir(self) -> PurePosixPath:
        """Where programs start."""
        return PurePosixPath(self.environment.workdir or _WORKSPACE)

    @contextlib.asynccontextmanager
    async def open(self, context: Any = None) -> AsyncIterator[SandboxView]:
        """The sandbox for a context, as AG2's `Sandbox`. Leaving the block does not end it. Raises: as `open_box`."""
        async with self.open_box(context) as box:
            view = self._views.get(box.id)
            if view is None:
                view = self._views[box.id] = SandboxView(box, self)
            yield view

    @contextlib.asynccontextmanager
    async def open_box(self, context: Any = None) -> AsyncIterator[AsyncSandbox]:
        """The Corral sandbox. Raises: for variables without a value, what AG2's class of this name raises."""
        context = self._translate(context)
        if self.variables:
            try:
                self._check(self.environment.resolve(context))
            except VariableError as error:
                raise self._unresolved(error, context) from error
        async with self.environment.open(context) as box:
            yield box

    def _translate(self, context: Any) -> Any:
        return context

    def _check(self, spec: Spec) -> None:
        """Raise what is known only when the variables have values."""

    def _named(self, **parameters: Any) -> dict[str, Any]:
        """The parameters with AG2's `Variable`s as ours; `variables` lists which are variables."""
        named = {name: as_variable(value, name) for name, value in parameters.items()}
        self.variables = {name: str(value.name) for name, value in named.items() if isinstance(value, Variable)}
        return named

    def _unresolved(self, error: VariableError, context: Any) -> Exception:
        """The error that AG2 raises for a variable without a value."""
        if context is not None:
            return KeyError(f"Context variable {error.names[0]!r} not found and no default provided")
        named = [parameter for parameter, name in self.variables.items() if name in error.names]
        if any(parameter in _CREDENTIALS for parameter in named):
            subject, them = "credentials", "them"
        else:
            subject, them = ", ".join(f"`{name}`" for name in named), "it" if len(named) == 1 else "them"
        given = f"{self.words.service} {subject} given as Variable but no Context available to resolve {them}."
        return RuntimeError(f"{given} {self.words.resolvable}")

    async def _copy_in(self, box: AsyncSandbox) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        await box.files.upload(self._folder, box.spec.workdir)
        if not self._cleanup and not self._filled:
            _save_at_exit(self)
        self._filled.add(box)

    async def save(self) -> None:
        """Copy the working folder back to the host's folder, if there is such a folder and a sandbox.

        Git's settings and hooks on the host, which the next git command there would run, are not replaced unless
        `git_settings` was given; a warning names those that were left out.
        """
        for box in list(self._filled):
            if self._folder is not None and not box.closed:
                done = await box.files.download(box.spec.workdir, self._folder, git_settings=self._git_settings)
                if done.left_out:
                    log.warning("%s; git_settings=True copies them", done.describe())

    async def aclose(self) -> None:
        """Delete every sandbox. Idempotent. Raises: LeftBehindError for what could not be deleted."""
        try:
            if not self._cleanup:
                await self.save()
        finally:
            await self.environment.aclose()


class CorralEnvironment(EnvironmentBase):
    """Any backend: `CorralEnvironment()` is the embedded engine. Keywords are those of `corral.Environment`."""

    def __init__(self, *, timeout: float = 60, workdir: str = _WORKSPACE, **spec_options: Any) -> None:
        super().__init__(timeout=timeout, workdir=workdir, **spec_options)


class DaytonaEnvironment(EnvironmentBase):
    """Sandboxes of a Daytona service, hosted or your own. Credentials default to DAYTONA_API_KEY and the like.

    `resources` may also be the SDK's `Resources`, Corral's, or a mapping.
    """

    words = DAYTONA

    def __init__(
        self,
        *,
        api_key: Any = None,
        api_url: Any = None,
        target: Any = None,
        snapshot: Any = None,
        image: Any = None,
        env_vars: Any = None,
        resources: DaytonaResources | Mapping[str, Any] | None = None,
        timeout: float = 60,
        workdir: str = _WORKSPACE,
    ) -> None:
        given = self._named(
            api_key=api_key, api_url=api_url, target=target, snapshot=snapshot, image=image, env_vars=env_vars
        )
        snapshot, image = given["snapshot"], given["image"]
        if not (has_variable(snapshot) or has_variable(image)):
            _refuse_both(snapshot, image)
        super().__init__(
            timeout=timeout,
            workdir=workdir,
            backend=ServiceBackend,
            options={**{name: given[name] for name in _CREDENTIALS}, "limits": read_limits(resources)},
            snapshot=snapshot,
            image=image,
            env=given["env_vars"],
            resources=resources_of(resources) if image is not None else None,
        )

    def _check(self, spec: Spec) -> None:
        _refuse_both(spec.snapshot, spec.image)


class DockerEnvironment(EnvironmentBase):
    """Docker containers: no network, 512 MiB, and a timeout that kills the program and keeps the container."""

    words = DOCKER

    def __init__(
        self,
        *,
        image: Any = "python:3.12-slim",
        env_vars: Any = None,
        timeout: float = 60,
        network_mode: Any = "none",
        mem_limit: int | str | None = "512m",
        cpu_quota: int | None = None,
        user: str | None = None,
        auto_remove: bool = True,
        host_path: str | os.PathLike[str] | None = None,
        workdir: str = _WORKSPACE,
        git_settings: bool = False,
    ) -> None:
        given = self._named(image=image, env_vars=env_vars, network_mode=network_mode)
        self._network = given["network_mode"]
        limits: dict[str, Any] = {}
        if mem_limit is not None:
            limits["memory_bytes"] = parse_size(mem_limit, what="mem_limit", as_docker=True)
        if cpu_quota is not None:
            limits["cpus"] = cpu_quota / _PERIOD
        super().__init__(
            timeout=timeout,
            folder=host_path,
            git_settings=git_settings,
            workdir=workdir,
            backend="docker",
            image=given["image"],
            env=given["env_vars"],
            network=self._network if isinstance(self._network, Variable) else _network(self._network),
            resources=Resources(**limits),
            options={"user": user} if user is not None else None,
            lifetime=None if auto_remove else Lifetime(keep_on_failure=True),
        )

    def _translate(self, context: Any) -> Any:
        if isinstance(self._network, Variable) and context is not None:
            return _Translated(context, str(self._network.name), _network)
        return context


class LocalEnvironment(EnvironmentBase):
    """AG2's local environment, but isolated: the embedded engine, without host files, and without a network unless
    `network` permits one.

    With a `path`, that folder is copied in when the sandbox is created, and back when the environment is closed or the
    program ends (unless `cleanup=True`); `save()` copies back at any time. Files deleted inside stay on the host,
    and so do the host's git settings and hooks (unless `git_settings=True`), which the next `git status` would run.
    `packages` and `venv` bring Python packages in, which AG2's own class has from the host: it runs there, without
    isolation.
    """

    words = LOCAL

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        cleanup: bool | None = None,
        timeout: float = 60,
        max_output: int = 100_000,
        env_vars: Mapping[str, str] | None = None,
        languages: tuple[str, ...] = ("python", "bash"),
        git_settings: bool = False,
        packages: Sequence[str] = (),
        venv: str | os.PathLike[str] | None = None,
        network: NetworkPolicy | str | Sequence[str] | None = None,
    ) -> None:
        self.languages = languages
        super().__init__(
            timeout=timeout,
            max_output=max_output,
            folder=path,
            git_settings=git_settings,
            cleanup=cleanup if cleanup is not None else path is None,
            workdir=_WORKSPACE,
            env=dict(env_vars or {}),
            packages=packages,
            venv=venv,
            network=network,
        )


def _save_at_exit(environment: EnvironmentBase) -> None:
    """AG2's own class works in the folder itself, so its users expect their files there without closing it."""
    found, pid = weakref.ref(environment), os.getpid()

    def save() -> None:
        living = found()
        if living is None or os.getpid() != pid:
            return
        try:
            get_portal().run(living.save())
        except Exception as error:  # noqa: BLE001 - the exit goes on, and the log says why files are missing
            log.warning("the files of %s could not be copied back: %s", type(living).__name__, error)

    # Like atexit, but before the threads end that the copying needs.
    getattr(threading, "_register_atexit", atexit.register)(save)


def as_variable(value: Any, name: str | None = None) -> Any:
    """AG2's `Variable` as ours, under AG2's name for the parameter; anything else unchanged."""
    if isinstance(value, Variable):
        if value.name or not name:
            return value
        return Variable(name, default=value.default, default_factory=value.default_factory)
    if isinstance(value, Mapping):
        return {key: as_variable(item) for key, item in value.items()}
    if not hasattr(value, "default_factory") or not framework.is_variable(value):
        return value
    given: dict[str, Any] = {}
    if value.default is not Ellipsis:
        given["default"] = value.default
    elif value.default_factory is not Ellipsis:
        given["default_factory"] = value.default_factory
    return Variable(value.name or name, **given)


def _refuse_both(snapshot: Any, image: Any) -> None:
    if snapshot is not None and image is not None:
        raise ValueError("Specify either `snapshot` or `image`, not both.")


def _network(mode: str) -> NetworkPolicy:
    """Docker's network mode as a policy. Raises: ValueError."""
    if mode not in ("none", "bridge", "default"):
        raise ValueError(f"network_mode={mode!r} is not supported: 'none' or 'bridge'.")
    return NetworkPolicy("none" if mode == "none" else "open")


class _Translated:
    """A context in which the value of one variable is translated."""

    def __init__(self, context: Any, name: str, translate: Callable[[Any], Any]) -> None:
        self._context = context
        self.variables = dict(variables_of(context))
        if name in self.variables:
            self.variables[name] = translate(self.variables[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
