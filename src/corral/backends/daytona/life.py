"""What is written at the service about a sandbox: its labels, and how long it lives when nobody cares for it.

Whoever made a sandbox may be killed at any moment. So each one that is owned is ephemeral there: it stops after some
minutes in which nobody used it, and a stopped one is deleted. While its owner lives, it says so now and then.
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
from typing import Any

from corral.results import SandboxInfo, SandboxState
from corral.spec import DEFAULT_OUTPUT_LIMIT_BYTES, HOME, Lifetime, Spec

PREFIX = "corral."
OWNED, OWNER, NAME, WISH, DEADLINE = (PREFIX + word for word in ("owned", "owner", "name", "wish", "deadline"))
WORKDIR = PREFIX + "workdir"
"""Told beside the wish, for a server that can make any folder while it makes a sandbox."""
MARK = PREFIX + "making"
"""By this, one whose making was not heard of again is found."""
OF_AN_OWNER = frozenset({OWNED, OWNER, MARK})
"""What a detached one has not."""
LANGUAGE = "code-toolbox-language"
OWNER_MINUTES = 15
"""So long an owned sandbox lives after its owner was killed."""
KEEPALIVE_SECONDS = 240.0
_TOKEN_NAME = "corral-token-"
_SNAPSHOT_NAME = "corral-snapshot-"
_STATES: Mapping[str, SandboxState] = {
    "stopped": "stopped",
    "stopping": "stopped",
    "archived": "stopped",
    "archiving": "stopped",
    "error": "stopped",
    "build_failed": "stopped",
    "paused": "paused",
    "pausing": "paused",
}
GONE = frozenset({"destroyed", "destroying"})
RESTING = frozenset({"paused", "pausing", "resuming", "starting", "resizing", "snapshotting", "forking"})
"""Nothing inside need answer."""


def token_name(token: str) -> str:
    """The name of a sandbox that is made by a token: the service lets a name be taken once."""
    return _TOKEN_NAME + hashlib.sha256(token.encode()).hexdigest()[:32]


def snapshot_name(hexadecimal: str) -> str:
    """The name of a snapshot that was given none."""
    return _SNAPSHOT_NAME + hexadecimal


def is_our_name(name: str) -> bool:
    """Whether nobody but us chose it."""
    return name.startswith((_TOKEN_NAME, _SNAPSHOT_NAME))


def owned_labels(spec: Spec, deadline: float | None, *, mark: str) -> dict[str, str]:
    """For a sandbox that ends with its owner."""
    owner = f"{socket.gethostname()[:40]}:{os.getpid()}"
    return {**labels_of(spec, deadline), OWNED: "true", OWNER: owner, MARK: mark}


def labels_of(spec: Spec, deadline: float | None, *, name: str | None = None) -> dict[str, str]:
    """For one that is detached; with what is needed to make a spec of it again."""
    wish: dict[str, Any] = {}
    if spec.exec_timeout is not None:
        wish["exec_timeout"] = spec.exec_timeout
    if spec.output_limit_bytes != DEFAULT_OUTPUT_LIMIT_BYTES:
        wish["output_limit_bytes"] = spec.output_limit_bytes
    if spec.lifetime.idle_seconds is not None:
        wish["idle_seconds"] = spec.lifetime.idle_seconds
    labels = {LANGUAGE: "python", **spec.labels, WISH: json.dumps(wish)}
    if spec.workdir != HOME:
        labels[WORKDIR] = spec.workdir
    if deadline is not None:
        labels[DEADLINE] = f"{deadline:.3f}"
    if name is not None:
        labels[NAME] = name
    return labels


def deadline_of(labels: Mapping[str, str]) -> float | None:
    """When it ends, as Unix time."""
    with contextlib.suppress(ValueError):
        return float(labels[DEADLINE]) if DEADLINE in labels else None
    return None


def user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Those that a caller gave."""
    return {key: value for key, value in labels.items() if not key.startswith(PREFIX) and key != LANGUAGE}


def spec_of(remote: Any) -> Spec:
    """The wish of a sandbox that somebody else may have made, from what the service says of it."""
    labels = dict(remote.labels or {})
    wish: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        told = json.loads(labels.get(WISH, "{}"))
        if isinstance(told, dict):
            wish = told
    env = {name: value for name, value in (remote.env or {}).items() if not name.startswith("DAYTONA_")}
    deadline = deadline_of(labels)
    workdir = labels.get(WORKDIR, HOME)
    spec = Spec(env=env, labels=user_labels(labels), name=name_of(remote), workdir=workdir)
    with contextlib.suppress(Exception):  # labels can be written by others
        spec = replace(
            spec,
            exec_timeout=wish.get("exec_timeout"),
            output_limit_bytes=wish.get("output_limit_bytes", DEFAULT_OUTPUT_LIMIT_BYTES),
            lifetime=Lifetime(
                seconds=max(0.001, deadline - time.time()) if deadline is not None else None,
                idle_seconds=wish.get("idle_seconds"),
            ),
        )
    return spec


def name_of(remote: Any) -> str | None:
    """The name that somebody gave it."""
    label = (remote.labels or {}).get(NAME)
    if label:
        return str(label)
    return None if remote.name == remote.id or is_our_name(remote.name) else str(remote.name)


def describe(remote: Any, *, backend: str) -> SandboxInfo:
    """What a list says of it."""
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
    """The service's word for its state."""
    state = remote.state
    return str(getattr(state, "value", state) or "")


def is_owned(remote: Any) -> bool:
    """Whether it is somebody's own, and not to be seen by others."""
    return (remote.labels or {}).get(OWNED) == "true"


def moment(text: object) -> float | None:
    """Unix time from the service's."""
    from datetime import datetime

    if isinstance(text, datetime):
        return text.timestamp()
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(str(text)).timestamp()
    return None


def minutes(seconds: float) -> int:
    """The service counts in minutes: one more, since whoever lives ends it to the moment."""
    return math.ceil(seconds / 60) + 1
