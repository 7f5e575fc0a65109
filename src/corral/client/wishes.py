"""From the keywords of `Sandbox` and `AsyncSandbox` to a `Spec`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack, cast

from corral.errors import SpecError
from corral.image import Image
from corral.spec import DEFAULT_OUTPUT_LIMIT_BYTES, HOME, Lifetime, NetworkPolicy, Resources, Spec


class Wishes(TypedDict, total=False):
    """The keywords that `Sandbox` and `AsyncSandbox` take. Each is a field of `Spec`, with these conveniences:
    `resources` may be a mapping, `network` a string, `lifetime` seconds, and `keep_on_failure` is a keyword."""

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
        SpecError: an unknown keyword, or an invalid value.
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
