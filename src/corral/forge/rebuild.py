"""A contest from what its run's folder says of it, so that a run can be resumed without all its options being repeated.

What is not written there can't come from there: values of variables, and what judges are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.errors import RunFolderError, SpecError
from corral.forge.candidate import Candidate
from corral.forge.settings import Settings, Take, Timeouts
from corral.forge.sources import Command, Folder, GitFolder, Script, Source
from corral.spec import NetworkPolicy, Resources


def rebuild_settings(definition: Mapping[str, Any]) -> Settings:
    """The rules. Raises: RunFolderError."""
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
    """The candidates, with the values of their variables from `env`: what flags gave, not what happens to be set here.

    Raises:
        RunFolderError: one can't be made from what is written: a function, an image by recipe, a variable's value, or
            something that no candidate can have, such as a package by address.
    """
    try:
        return tuple(_rebuild(item, env) for item in definition["candidates"])
    except SpecError as error:  # the folder may be a stranger's, with anything written in it
        raise RunFolderError(f"the run's candidates can't be used: {error.message}", hint=error.hint) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"the run's candidates can't be read: {error}", hint="give them again") from error


def _rebuild(item: Mapping[str, Any], env: Mapping[str, str]) -> Candidate:
    missing = sorted(set(item["env"]) - set(env))
    if missing:
        raise RunFolderError(
            f"candidate {item['id']!r} had variables whose values are not written down: {', '.join(missing)}",
            hint=f"give them again: --env {missing[0]}=…, or --env {missing[0]} for the value that it has here",
        )
    if isinstance(item["image"], dict):
        raise RunFolderError(f"candidate {item['id']!r} had an image of its own", hint="resume it from the program")
    network = item["network"]
    return Candidate(
        source=_rebuild_source(item["id"], item["source"]),
        id=item["id"],
        name=item["name"],
        description=item["description"],
        packages=tuple(item["packages"]),
        resources=Resources(**item["resources"]) if item["resources"] else None,
        env={name: env[name] for name in item["env"]},
        image=item["image"],
        network=NetworkPolicy(network["mode"], tuple(network["hosts"])),
    )


def _rebuild_source(candidate_id: str, source: Mapping[str, Any]) -> Source:
    kind = source["kind"]
    if kind == "script":
        return Script(Path(source["path"]))
    if kind == "folder":
        return Folder(Path(source["path"]), tuple(source["command"]))
    if kind == "git":
        return GitFolder(Path(source["path"]), source["ref"], tuple(source["command"]))
    if kind == "command":
        return Command(tuple(source["command"]))
    raise RunFolderError(f"candidate {candidate_id!r} is a function of a program", hint="resume it from that program")
