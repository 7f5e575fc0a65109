"""The daytona backend as AG2's classes use it: the service decides what the caller leaves out.

Corral's sandboxes have no network, and limits of their own unless others are requested. AG2's have what the service
gives them. Their parameters are those of the SDK, including some that Corral has no equivalent for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from corral.backends.daytona import DaytonaBackend
from corral.backends.daytona.powers import GIB, whole
from corral.backends.daytona.sandbox import DaytonaSandbox
from corral.spec import NetworkPolicy, Resources, Spec, parse_size, read_resources

_NOT_OURS = ("gpu",)
"""Limits that the service may know and Corral does not."""


@dataclass
class DaytonaSandboxResources:
    """CPU cores, and memory and disk in GiB; the service chooses what is None."""

    cpu: int | None = None
    memory: int | None = None
    disk: int | None = None


class DaytonaResources(DaytonaSandboxResources):
    """CPU cores, and memory and disk in GiB. Used with `image`: a snapshot has its own."""


def read_limits(wanted: object) -> Any | None:
    """The limits of a sandbox, from AG2's class for them, the SDK's, ours, or a mapping. Raises: SpecError."""
    if wanted is None or getattr(wanted, "gpu", None) is not None:
        return wanted
    given = read_resources(wanted, without=_NOT_OURS)
    return DaytonaSandboxResources(
        cpu=whole(given["cpus"]) if "cpus" in given else None,
        memory=whole(parse_size(given["memory_bytes"], what="memory"), GIB) if "memory_bytes" in given else None,
        disk=whole(parse_size(given["disk_bytes"], what="disk"), GIB) if "disk_bytes" in given else None,
    )


def resources_of(wanted: object) -> Resources | None:
    """The same as Corral's `Resources`; None if nothing was requested. Raises: SpecError."""
    given = read_resources(wanted, without=_NOT_OURS) if wanted is not None else {}
    return Resources(**given) if given else None


class ServiceBackend(DaytonaBackend):
    """The daytona backend with the service's defaults. `fields` are parameters of the SDK that override ours."""

    def __init__(self, *, limits: object = None, fields: Mapping[str, Any] | None = None, **address: Any) -> None:
        super().__init__(**address)
        self._limits = read_limits(limits)
        self._fields = dict(fields or {})

    def hold(self, box: Any, spec: Spec, *, owned: bool) -> DaytonaSandbox:
        """The primitives of a sandbox, with the network in the spec that the service gave it."""
        network = spec.network if getattr(box, "network_block_all", False) else NetworkPolicy("open")
        return super().hold(box, replace(spec, network=network), owned=owned)

    def _params(self, spec: Spec, labels: dict[str, str], deadline: float | None) -> Any:
        params = super()._params(spec, labels, deadline)
        changes = {
            "resources": self._sdk_limits(getattr(params, "resources", None)),
            "network_block_all": None,
            **self._fields,
        }
        if "labels" in changes:
            changes["labels"] = {**changes["labels"], **params.labels}
        known = type(params).model_fields
        return params.model_copy(update={name: value for name, value in changes.items() if name in known})

    def _sdk_limits(self, ours: Any) -> Any:
        wanted = self._limits
        if ours is None or wanted is None or (wanted.cpu, wanted.memory, wanted.disk) == (None, None, None):
            return None  # the service chooses
        if isinstance(wanted, type(ours)):
            return wanted
        return type(ours)(cpu=wanted.cpu, memory=wanted.memory, disk=wanted.disk)


def fields_of(params: Any) -> dict[str, Any]:
    """The SDK's parameters that were given, without those that would let a sandbox live forever."""
    given = {name: value for name in params.model_fields_set if (value := getattr(params, name)) is not None}
    if not given.get("auto_stop_interval"):
        given.pop("auto_stop_interval", None)  # 0 means never: ours is in minutes, and put off while its owner lives
    if given.get("auto_delete_interval", 0) <= 0:
        given.pop("auto_delete_interval", None)
    return given
