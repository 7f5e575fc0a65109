"""The daytona backend as AG2's classes use it: what they do not ask for is the service's own choice.

Corral's sandboxes have no network and limits of their own unless somebody asks for others. AG2's have what the service
gives, and their parameters are those of the SDK, some of which Corral has no word for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from corral.backends.daytona import DaytonaBackend
from corral.backends.daytona.sandbox import DaytonaSandbox
from corral.results import Event
from corral.spec import NetworkPolicy, Resources, Spec

_GIB = 1024**3


class Limits(Protocol):
    """`DaytonaResources` and its like: CPU cores, and memory and disk in GiB."""

    cpu: int | None
    memory: int | None
    disk: int | None


def resources_of(wanted: Limits | None) -> Resources | None:
    """AG2's limits as ours; None if nothing was wished for."""
    given: dict[str, Any] = {}
    if wanted is not None and wanted.cpu is not None:
        given["cpus"] = wanted.cpu
    if wanted is not None and wanted.memory is not None:
        given["memory_bytes"] = wanted.memory * _GIB
    if wanted is not None and wanted.disk is not None:
        given["disk_bytes"] = wanted.disk * _GIB
    return Resources(**given) if given else None


class ServiceBackend(DaytonaBackend):
    """See the module. `fields` are of the SDK's parameters of a creation, and come before our own."""

    def __init__(
        self, *, limits: Limits | None = None, fields: Mapping[str, Any] | None = None, **address: Any
    ) -> None:
        super().__init__(**address)
        self._limits = limits
        self._fields = dict(fields or {})

    def hold(
        self, box: Any, spec: Spec, *, owned: bool, on_event: Callable[[Event], None] | None = None
    ) -> DaytonaSandbox:
        """A handle, whose spec says what the service gave."""
        network = spec.network if getattr(box, "network_block_all", False) else NetworkPolicy("open")
        return super().hold(box, replace(spec, network=network), owned=owned, on_event=on_event)

    def _params(self, spec: Spec, labels: dict[str, str], deadline: float | None) -> Any:
        made = super()._params(spec, labels, deadline)
        changes = {
            "resources": self._sdk_limits(getattr(made, "resources", None)),
            "network_block_all": None,
            **self._fields,
        }
        if "labels" in changes:
            changes["labels"] = {**changes["labels"], **made.labels}
        known = type(made).model_fields
        return made.model_copy(update={name: value for name, value in changes.items() if name in known})

    def _sdk_limits(self, ours: Any) -> Any:
        wanted = self._limits
        if ours is None or wanted is None or (wanted.cpu, wanted.memory, wanted.disk) == (None, None, None):
            return None  # then the service chooses
        return type(ours)(cpu=wanted.cpu, memory=wanted.memory, disk=wanted.disk)


def fields_of(params: Any) -> dict[str, Any]:
    """The SDK's parameters that somebody gave, but for those by which a sandbox would live for ever."""
    given = {name: value for name in params.model_fields_set if (value := getattr(params, name)) is not None}
    if not given.get("auto_stop_interval"):
        given.pop("auto_stop_interval", None)  # 0 is never: ours is minutes, and put off while its owner lives
    if given.get("auto_delete_interval", 0) <= 0:
        given.pop("auto_delete_interval", None)
    return given
