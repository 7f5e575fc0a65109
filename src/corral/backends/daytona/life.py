"""What the service stores about a sandbox: its labels, and how long it lives without its owner.

The owner of a sandbox may be killed at any moment. So an owned sandbox is ephemeral on the service: it stops after some
minutes without use, and is deleted when it stops. While the owner lives, it refreshes the sandbox now and then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from corral.backends.daytona.network import network_of
from corral.results import SandboxInfo, SandboxState
from corral.spec import DEFAULT_OUTPUT_LIMIT_BYTES, HOME, Lifetime, Spec

PREFIX = "corral."
OWNED, OWNER, NAME, DEADLINE = (PREFIX + word for word in ("owned", "owner", "name", "deadline"))
OPTIONS = PREFIX + "wish"
"""Options of the spec, as JSON. The label is named as release 0.1 named it."""
WORKDIR = PREFIX + "workdir"
"""Beside the options, for a server that can create any folder while it creates the sandbox."""
MARK = PREFIX + "making"
"""Finds a sandbox whose request was never answered."""
OF_AN_OWNER = frozenset({OWNED, OWNER, MARK})
"""The labels that a detached sandbox does not have."""
LANGUAGE = "code-toolbox-language"
OWNER_MINUTES = 15
"""How long an owned sandbox lives after its owner was killed."""
KEEPALIVE_SECONDS = 240.0
_TOKEN_NAME = "corral-token-"
_SNAPSHOT_NAME = "corral-snapshot-"
_STOPPED = ("stopped", "stopping", "archived", "archiving", "error", "build_failed")
_STATES: Mapping[str, SandboxState] = {
    **dict.fromkeys(_STOPPED, "stopped"), **dict.fromkeys(("paused", "pausing"), "paused"),
}  # fmt: skip
GONE = frozenset({"destroyed", "destroying"})
RESTING = frozenset({"paused", "pausing", "resuming", "starting", "resizing", "snapshotting", "forking"})
"""States in which programs inside need not answer."""


def token_name(token: str) -> str:
    """The name of a sandbox with a client token: the service lets a name be taken once."""
    return _TOKEN_NAME + hashlib.sha256(token.encode()).hexdigest()[:32]


def snapshot_name(hexadecimal: str) -> str:
    """The name of a snapshot that the caller did not name."""
    return _SNAPSHOT_NAME + hexadecimal


def is_our_name(name: str) -> bool:
    """True for a name from `token_name` or `snapshot_name`."""
    return name.startswith((_TOKEN_NAME, _SNAPSHOT_NAME))


def owned_labels(spec: Spec, deadline: float | None, *, mark: str) -> dict[str, str]:
    """The labels of an owned sandbox."""
    owner = f"{socket.gethostname()[:40]}:{os.getpid()}"
    return {**labels_of(spec, deadline), OWNED: "true", OWNER: owner, MARK: mark}


def labels_of(spec: Spec, deadline: float | None, *, name: str | None = None) -> dict[str, str]:
    """The labels of a detached sandbox; `spec_of` restores the spec from them."""
    options: dict[str, Any] = {}
    if spec.exec_timeout is not None:
        options["exec_timeout"] = spec.exec_timeout
    if spec.output_limit_bytes != DEFAULT_OUTPUT_LIMIT_BYTES:
        options["output_limit_bytes"] = spec.output_limit_bytes
    if spec.lifetime.idle_seconds is not None:
        options["idle_seconds"] = spec.lifetime.idle_seconds
    labels = {LANGUAGE: "python", **spec.labels, OPTIONS: json.dumps(options)}
    if spec.workdir != HOME:
        labels[WORKDIR] = spec.workdir
    if deadline is not None:
        labels[DEADLINE] = f"{deadline:.3f}"
    if name is not None:
        labels[NAME] = name
    return labels


def deadline_of(labels: Mapping[str, str]) -> float | None:
    """The deadline of a sandbox, as Unix time."""
    with contextlib.suppress(ValueError):
        return float(labels[DEADLINE]) if DEADLINE in labels else None
    return None


def user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that a caller gave."""
    return {key: value for key, value in labels.items() if not key.startswith(PREFIX) and key != LANGUAGE}


def spec_of(remote: Any) -> Spec:
    """The spec of a sandbox, from what the service says about it; another program may have created it."""
    labels = dict(remote.labels or {})
    options: dict[str, Any] = {}
    with contextlib.suppress(ValueError, TypeError):
        options = dict(json.loads(labels.get(OPTIONS, "{}")))
    env = {name: value for name, value in (remote.env or {}).items() if not name.startswith("DAYTONA_")}
    deadline = deadline_of(labels)
    workdir = labels.get(WORKDIR, HOME)
    spec = Spec(env=env, labels=user_labels(labels), name=name_of(remote), workdir=workdir)
    with contextlib.suppress(Exception):  # others can write labels
        spec = replace(
            spec,
            network=network_of(remote),
            exec_timeout=options.get("exec_timeout"),
            output_limit_bytes=options.get("output_limit_bytes", DEFAULT_OUTPUT_LIMIT_BYTES),
            lifetime=Lifetime(
                seconds=max(0.001, deadline - time.time()) if deadline is not None else None,
                idle_seconds=options.get("idle_seconds"),
            ),
        )
    return spec


def name_of(remote: Any) -> str | None:
    """The name that a caller gave it."""
    label = (remote.labels or {}).get(NAME)
    if label:
        return str(label)
    return None if remote.name == remote.id or is_our_name(remote.name) else str(remote.name)


def describe(remote: Any, *, backend: str) -> SandboxInfo:
    """The `SandboxInfo` of a sandbox."""
    labels = remote.labels or {}
    deadline = deadline_of(labels)
    if deadline is None and getattr(remote, "auto_destroy_at", None):
        deadline = moment(remote.auto_destroy_at)
    return SandboxInfo(
        sandbox_id=remote.id,
        backend=backend,
        name=name_of(remote),
        state=_STATES.get(state_of(remote), "running"),
        created=moment(remote.created_at) or 0.0,
        deadline=max(0.0, deadline - time.time()) if deadline is not None else None,
        labels=user_labels(labels),
    )


def state_of(remote: Any) -> str:
    """The service's name for its state."""
    state = remote.state
    return str(getattr(state, "value", state) or "")


def is_owned(remote: Any) -> bool:
    """True for an owned sandbox, which only its owner may use."""
    return (remote.labels or {}).get(OWNED) == "true"


def moment(text: object) -> float | None:
    """Unix time from a time of the service."""
    if isinstance(text, datetime):
        return text.timestamp()
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(str(text)).timestamp()
    return None


def minutes(seconds: float) -> int:
    """Seconds as the service's whole minutes, and one more: the owner, if it lives, ends the sandbox in time."""
    return math.ceil(seconds / 60) + 1
