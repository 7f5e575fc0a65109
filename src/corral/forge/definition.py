"""What a run was: everything that is needed to hold it again, and to see whether a resumed one is the same.

Values of environment variables are never written, only a hash that is slow to guess from.
"""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from corral.forge.candidate import Candidate
from corral.forge.plan import Turn
from corral.forge.settings import Settings

FORMAT = 1
_FREE_SETTINGS = ("jobs", "meter_seconds", "retries")
"""What may differ when a run is resumed: it changes nothing that is measured or judged."""


def describe_run(
    *, run: str, started: str, objective: str, settings: Settings, candidates: Sequence[Candidate],
    judge: Mapping[str, Any], order: Sequence[Turn], jobs: int, salt: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The content of `run.json`. The same salt gives the same hashes."""
    salt = salt or secrets.token_hex(16)
    found = {
        "format": FORMAT,
        "run": run,
        "state": "running",
        "started": started,
        "versions": _versions(settings),
        "objective": objective,
        "settings": asdict(settings),
        "jobs": jobs,
        "order": [list(turn) for turn in order],
        "candidates": [_describe_candidate(candidate, salt) for candidate in candidates],
        "judge": dict(judge),
        "salt": salt,
    }
    return cast("dict[str, Any]", json.loads(json.dumps(found)))  # as it will be read: no tuples


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, judged: bool) -> list[str]:
    """What keeps a run from being resumed as this contest; empty if nothing does.

    Before anything was judged another judge may come: that is how one that failed is mended.
    """
    same = ("objective", "judge") if judged else ("objective",)
    found = [key for key in same if old.get(key) != new.get(key)]
    old_settings, new_settings = (dict(part.get("settings", {})) for part in (old, new))
    found += [
        f"settings.{key}"
        for key in sorted({*old_settings, *new_settings} - set(_FREE_SETTINGS))
        if old_settings.get(key) != new_settings.get(key)
    ]
    theirs, ours = ({item["id"]: item for item in part.get("candidates", ())} for part in (old, new))
    return found + [f"candidate {name}" for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]


def _describe_candidate(candidate: Candidate, salt: str) -> dict[str, Any]:
    image = candidate.image
    return {
        "id": candidate.id,
        "name": candidate.name,
        "description": candidate.description,
        "source": candidate.source.describe(),
        "packages": list(candidate.packages),
        "resources": asdict(candidate.resources) if candidate.resources else None,
        "env": {name: _hash(value, salt) for name, value in sorted(candidate.env.items())},
        "image": asdict(image) if is_dataclass(image) and not isinstance(image, type) else image and str(image),
        "network": asdict(candidate.network_policy) | {"hosts": list(candidate.network_policy.hosts)},
    }


def _hash(value: str, salt: str) -> str:
    """Slow on purpose: a short value must not be found by trying."""
    return hashlib.scrypt(
        value.encode("utf-8", "surrogateescape"), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16
    ).hex()


def _versions(settings: Settings) -> dict[str, str]:
    try:
        ours = version("corral")
    except PackageNotFoundError:
        ours = "unknown"
    return {
        "corral": ours,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "backend": settings.backend,
        "implementation": sys.implementation.name,
    }
