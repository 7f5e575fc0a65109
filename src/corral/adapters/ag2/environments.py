"""AG2's environments (`SandboxFactory`: `async with environment.open(context) as sandbox`), on Corral's backends.

Hand one to AG2's own `SandboxCodeTool` and `SandboxShellTool`, or to ours. Equal options share a sandbox, which lives
until `aclose()`; parameters may be AG2's `Variable`s or Corral's, and are looked up on each `open`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from corral.adapters.ag2 import framework
from corral.adapters.ag2.sandbox import Adapted, SandboxView
from corral.adapters.ag2.service import ServiceBackend, read_limits, resources_of
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
"""Docker's `cpu_quota` is microseconds per this many."""


class EnvironmentBase(Adapted):
    """AG2's `SandboxFactory` and `WorkdirAware`, on a `corral.Environment`."""

    words: Words = PLAIN
    variables: Mapping[str, str] = {}
    """The parameters that are variables, and the names of these."""

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
        if isinstance(timeout, bool) or not timeout > 0:
            raise ValueError("`timeout` must be > 0 seconds.")
        self.timeout = timeout
        """Seconds for each call without a timeout of its own."""
        self.max_output = max_output
        self._folder = Path(folder) if folder is not None else None
        self._cleanup = cleanup
        self._git_settings = git_settings
        self._filled: weakref.WeakSet[AsyncSandbox] = weakref.WeakSet()
        """Those that the folder was copied into."""
        if folder is not None:
            spec_options["prepare"] = self._copy_in
        self.environment = Environment(**{name: as_variable(value) for name, value in spec_options.items()})
        """The `corral.Environment` behind it, with everything that it can do."""
        self._views: weakref.WeakValueDictionary[str, SandboxView] = weakref.WeakValueDictionary()

    @property
    def workdir(self) -> PurePosixPath:
        """Where programs start."""
        return PurePosixPath(self.environment.workdir or _WORKSPACE)

    @contextlib.asynccontextmanager
    async def open(self, context: Any = None) -> AsyncIterator[SandboxView]:
        """The sandbox for a context, as AG2 wants it. Leaving the block does not end it. Raises: as `open_box`."""
        async with self.open_box(context) as box:
            view = self._views.get(box.id)
            if view is None:
                view = SandboxView(box, timeout=self.timeout, words=self.words, max_output=self.max_output)
                self._views[box.id] = view
            yield view

    @contextlib.asynccontextmanager
    async def open_box(self, context: Any = None) -> AsyncIterator[AsyncSandbox]:
        """The sandbox itself. Raises: for variables without a value, what AG2's class of this name raises."""
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
        """What can only be checked when the variables have values."""

    def _unresolved(self, error: VariableError, context: Any) -> Exception:
        """What AG2 raises for a variable that has no value."""
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
        """Copy the working folder back to the host's folder. Nothing if there is none, or no sandbox yet.

        Git's settings and hooks, which the next git command there would run, stay as they are on the host, unless
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


@dataclass(slots=True)
class DaytonaResources:
    """CPU cores, and memory and disk in GiB. Used with `image`: a snapshot has its own."""

    cpu: int | None = None
    memory: int | None = None
    disk: int | None = None


class DaytonaEnvironment(EnvironmentBase):
    """Sandboxes of a Daytona service, hosted or your own. What is None comes from DAYTONA_API_KEY and its like.

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
        if snapshot is not None and image is not None and not (_is_later(snapshot) or _is_later(image)):
            raise ValueError("Specify either `snapshot` or `image`, not both.")
        if not timeout >= 1:
            raise ValueError("`timeout` must be >= 1 second.")
        self.variables = _later(
            api_key=api_key, api_url=api_url, target=target, snapshot=snapshot, image=image, env_vars=env_vars
        )
        given = {"api_key": api_key, "api_url": api_url, "target": target}
        spec_options: dict[str, Any] = {"snapshot": snapshot, "image": image, "env": env_vars}
        if image is not None:
            spec_options["resources"] = resources_of(resources)
        super().__init__(
            timeout=timeout,
            workdir=workdir,
            backend=ServiceBackend,
            options={
                **{name: as_variable(value, name) for name, value in given.items()},
                "limits": read_limits(resources),
            },
            **{
                name: as_variable(value, _names.get(name, name))
                for name, value in spec_options.items()
                if value is not None
            },
        )

    def _check(self, spec: Spec) -> None:
        if spec.snapshot is not None and spec.image is not None:
            raise ValueError("Specify either `snapshot` or `image`, not both.")


class DockerEnvironment(EnvironmentBase):
    """Docker containers: no network, 512 MiB, and a timeout that kills what runs inside and keeps the container."""

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
        if not timeout >= 1:
            raise ValueError("`timeout` must be >= 1 second.")
        self.variables = _later(image=image, env_vars=env_vars, network_mode=network_mode)
        self._network = as_variable(network_mode, "network_mode")
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
            image=as_variable(image, "image"),
            env=as_variable(env_vars, "env_vars") or {},
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
    """AG2's local environment, isolated here: the embedded engine, with no network and nothing of the host.

    With a `path`, that folder is copied in when the sandbox is made, and back when the environment is closed or the
    program ends (unless `cleanup=True`); `save()` copies back at any time. What is deleted inside stays on the host,
    and so do the host's own git settings and hooks (unless `git_settings=True`), which the next `git status` would run.
    AG2's own runs on the host itself, without isolation.
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
        )


def _save_at_exit(environment: EnvironmentBase) -> None:
    """AG2's own works in the folder itself, so its users need not close it to find there what was made."""
    found, pid = weakref.ref(environment), os.getpid()

    def save() -> None:
        left = found()
        if left is None or os.getpid() != pid:
            return
        try:
            get_portal().run(left.save())
        except Exception as error:  # noqa: BLE001 - the exit goes on, and the log says why files are missing
            log.warning("the files of %s could not be copied back: %s", type(left).__name__, error)

    # Like atexit, but before the threads are told to end that the copying needs.
    getattr(threading, "_register_atexit", atexit.register)(save)


_names = {"env": "env_vars"}


def as_variable(value: Any, name: str | None = None) -> Any:
    """AG2's `Variable` as ours, under the name that AG2 knows its parameter by; anything else as it is."""
    if isinstance(value, Variable):
        return (
            Variable(name, default=value.default, default_factory=value.default_factory)
            if name and not value.name
            else value
        )
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


def _later(**parameters: Any) -> dict[str, str]:
    """Those that are variables, and the names of these."""
    found = {name: as_variable(value, name) for name, value in parameters.items()}
    return {name: str(value.name) for name, value in found.items() if isinstance(value, Variable)}


def _is_later(value: Any) -> bool:
    return has_variable(as_variable(value))


def _network(mode: str) -> NetworkPolicy:
    """Docker's word for a network as a policy. Raises: ValueError."""
    if mode not in ("none", "bridge", "default"):
        raise ValueError(f"network_mode={mode!r} is not supported: 'none' or 'bridge'.")
    return NetworkPolicy("none" if mode == "none" else "open")


class _Translated:
    """A context in which one variable reads otherwise."""

    def __init__(self, context: Any, name: str, translate: Callable[[Any], Any]) -> None:
        self._context = context
        self.variables = dict(variables_of(context))
        if name in self.variables:
            self.variables[name] = translate(self.variables[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
