"""The known backends: built-in ones from a table, others from the entry point group `corral.backends`. All lazy."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from corral.errors import BackendUnavailableError, CapabilityError, SpecError, UnknownBackendError
from corral.protocol import Backend

GROUP = "corral.backends"
_BUILT_IN = {
    "daytona": "corral.backends.daytona:open_backend",
    "docker": "corral.backends.docker:open_backend",
    "embedded": "corral.backends.embedded:open_backend",
    "memory": "corral.backends.memory:open_backend",
    "unsafe-subprocess": "corral.backends.unsafe_subprocess:open_backend",
}

_VARIABLES = {"docker": ("CORRAL_DOCKER_HOST", "DOCKER_HOST", "CORRAL_DOCKER_IMAGE")}
"""What is read of the environment when a backend is opened. With other values another one is opened: else an error that
says which variable to set could be followed in a new process only."""

_opened: dict[str, Backend] = {}
_lock = threading.Lock()


def backend_names() -> list[str]:
    """Every name that `get_backend` knows."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def get_backend(name: str | Backend = "embedded") -> Backend:
    """The backend of that name, one per process and settings of the environment; or the object itself.

    Raises:
        UnknownBackendError: unknown name, or neither a name nor a backend.
        BackendUnavailableError: it can't be loaded.
    """
    if not isinstance(name, str):
        if hasattr(name, "create"):
            return name
        text = f"a backend is a name or an object, not {type(name).__name__}"
        raise UnknownBackendError(text, hint=f"give one of {', '.join(backend_names())}, or a Backend")
    key = "\0".join([name, *(os.environ.get(variable, "") for variable in _VARIABLES.get(name, ()))])
    with _lock:
        if key not in _opened:
            _opened[key] = _load(name)()
        return _opened[key]


def make_backend(name: str, **options: object) -> Backend:
    """A new backend with its own options; the caller closes it.

    Raises:
        SpecError: invalid options.
        UnknownBackendError, BackendUnavailableError: as `get_backend`.
    """
    try:
        return _load(name)(**options)
    except TypeError as error:
        # Values are never shown: one may be a key.
        raise SpecError(
            f"can't create the backend {name!r} with {', '.join(sorted(options))}",
            hint="see the chained exception",
        ) from error


def need_isolation(backend: Backend, *, who: str) -> None:
    """For callers that run untrusted programs. Raises: CapabilityError if the backend does not isolate."""
    if not backend.isolated:
        raise CapabilityError(
            f"{who} does not take the backend {backend.name!r}: it does not isolate code",
            hint="use an isolating backend, such as embedded or docker",
        )


def _load(name: str) -> Callable[..., Backend]:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast("Callable[..., Backend]", getattr(importlib.import_module(module), attribute))
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                return cast("Callable[..., Backend]", point.load())
            except ImportError as error:
                raise BackendUnavailableError(
                    f"the backend {name!r} can't be loaded: {error}", hint=f"install its dependencies: {point.value}"
                ) from error
    known = ", ".join(backend_names())
    raise UnknownBackendError(f"unknown backend {name!r}", hint=f"known are: {known}")
