"""A run's definition (`run.json`): what a contest is, whether a resumed run is the same contest, rebuilding it.

Values of environment variables are never written, only a hash that is slow to guess from; so a contest that is rebuilt
needs them again. Neither are functions and judges.
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
from pathlib import Path
from typing import Any, cast

from corral.errors import RunFolderError, SpecError
from corral.forge.candidate import Candidate
from corral.forge.plan import Turn
from corral.forge.settings import Settings, Take, Timeouts
from corral.forge.sources import CommandSource, FolderSource, GitSource, ScriptSource, Source
from corral.spec import NetworkPolicy, Resources

FORMAT = 1
_FREE_SETTINGS = ("jobs", "meter_seconds", "retries")
"""Settings that may differ when a run is resumed: they change nothing that is measured or judged."""


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
    """The differences that keep a run from being resumed as this contest; empty if it can be.

    As long as nothing is judged, the judge may differ: that is how a judge that failed is replaced.
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
    return found + [
        f"candidate {name}"
        for name in sorted({*theirs, *ours})
        if not _is_same(theirs.get(name, {}), ours.get(name, {}))
    ]


def _is_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a candidate is the recorded one. An agent's hash that was recorded as null is unknown, and fits any:
    earlier releases recorded null for callable objects."""
    source = new.get("source", {})
    if source.get("kind") == "agent" and old.get("source") == {**source, "sha256": None}:
        old = {**old, "source": source}
    return old == new


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
        "network": candidate.network_policy.to_json(),
    }


def _hash(value: str, salt: str) -> str:
    """Slow on purpose: a short value must not be found by brute force."""
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


def rebuild_settings(definition: Mapping[str, Any]) -> Settings:
    """The settings of a run. Raises: RunFolderError."""
    try:
        values = dict(definition["settings"])
        resources, usual = Resources(**values["resources"]), Settings().resources
        return Settings(
            **values | {
                "resources": usual if resources == usual else resources, "timeouts": Timeouts(**values["timeouts"]),
                "take": Take(**values["take"]),
            }
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"the run's settings can't be read: {error}", hint="give the contest's options again"
        ) from error


def rebuild_candidates(definition: Mapping[str, Any], env: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The candidates, with the values of their variables from `env`, which flags gave.

    Raises:
        RunFolderError: a candidate can't be rebuilt: it is a function, has an image recipe, lacks a variable's value,
            or has something that no candidate may have, such as a package by URL.
    """
    try:
        return tuple(_rebuild(item, env) for item in definition["candidates"])
    except SpecError as error:  # the folder may come from a stranger, with anything in it
        raise RunFolderError(f"the run's candidates can't be used: {error.message}", hint=error.hint) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"the run's candidates can't be read: {error}", hint="give them again") from error


def _rebuild(item: Mapping[str, Any], env: Mapping[str, str]) -> Candidate:
    missing = sorted(set(item["env"]) - set(env))
    if missing:
        raise RunFolderError(
            f"candidate {item['id']!r} had environment variables whose values are not stored: {', '.join(missing)}",
            hint=f"give them again: --env {missing[0]}=…, or --env {missing[0]} for its value in this environment",
        )
    if isinstance(item["image"], dict):
        raise RunFolderError(
            f"candidate {item['id']!r} had an image that was built for it", hint="resume it from the program"
        )
    return Candidate(
        source=_rebuild_source(item["id"], item["source"]),
        id=item["id"],
        name=item["name"],
        description=item["description"],
        packages=tuple(item["packages"]),
        resources=Resources(**item["resources"]) if item["resources"] else None,
        env={name: env[name] for name in item["env"]},
        image=item["image"],
        network=NetworkPolicy.from_json(item["network"]),
    )


def _rebuild_source(candidate_id: str, source: Mapping[str, Any]) -> Source:
    kind = source["kind"]
    if kind == "script":
        return ScriptSource(Path(source["path"]))
    if kind == "folder":
        return FolderSource(Path(source["path"]), tuple(source["command"]))
    if kind == "git":
        return GitSource(Path(source["path"]), source["ref"], tuple(source["command"]))
    if kind == "command":
        return CommandSource(tuple(source["command"]))
    raise RunFolderError(f"candidate {candidate_id!r} is a function in a program", hint="resume it from that program")
