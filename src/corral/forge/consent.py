"""The permissions that a file from a stranger asks for: all beyond a sandbox on this machine without a network.

A run's folder, a `contest.toml` and a `.env` may come from a stranger. They choose nothing that is run on the host,
fetched or contacted: the user is shown what is asked for and grants it by a flag. What runs inside a sandbox needs no
permission.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corral.errors import CorralError, RunFolderError, SpecError
from corral.forge.candidate import Candidate
from corral.forge.contestfile import ContestFile
from corral.forge.git import run_git
from corral.forge.sources import FolderSource, GitSource, ScriptSource, Source
from corral.spec import NetworkPolicy

TRUST = "--trust"
SAFE_BACKEND = "embedded"
"""On this machine, isolated, without a network: it needs no permission."""
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing that a file asks for."""

    what: str
    words: tuple[str, ...] = ()
    """The flag that grants it. Empty: only `--trust` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What flags have granted already."""

    packages: frozenset[str] = frozenset()
    image: str | None = None
    network: NetworkPolicy | None = None


def permission_for_backend(name: str) -> Permission:
    """To create sandboxes on another backend."""
    return Permission(f"backend {name}", ("--backend", name))


def permissions_of_candidates(candidates: Iterable[Candidate], granted: Granted) -> list[Permission]:
    """Packages, images and networks of candidates."""
    found: list[Permission] = []
    for each in candidates:
        image = each.image if each.image is None or isinstance(each.image, str) else asdict(each.image)
        found += _permissions_of(each.packages, image, each.network_policy.to_json(), granted)
    return list(dict.fromkeys(found))


def permissions_of_run(definition: Mapping[str, Any], granted: Granted) -> list[Permission]:
    """The same from a run's folder, whose values may have any type.

    Raises:
        RunFolderError: a key is missing.
    """
    found: list[Permission] = []
    try:
        for item in definition["candidates"]:
            found += _permissions_of(item["packages"], item["image"], item["network"], granted)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"the run's candidates can't be read: {error}", hint="give them again") from error
    return list(dict.fromkeys(found))


def permissions_of_contest(
    contest: ContestFile, candidates: Iterable[Candidate], granted: Granted, *, judge: bool
) -> list[Permission]:
    """Those of its candidates, for files and artifacts outside the contest's folder, and with `judge` for its judge.

    A judge from a file is a program that runs on this machine, not in a sandbox.
    """
    found: list[Permission] = []
    if judge and contest.judge is not None and ":" in contest.judge:
        path = str(contest.path.parent / contest.judge)
        found.append(Permission(f"judge {path}, to be run on this machine", ("--judge", path)))
    root = contest.path.parent.resolve()
    if contest.artifacts is not None and not contest.artifacts.resolve().is_relative_to(root):
        found.append(Permission(f"artifacts in {contest.artifacts.resolve()}", ("--artifacts", str(contest.artifacts))))
    for candidate in contest.candidates:
        found += [Permission(f"files from {path}") for path in _places_outside(candidate.source, root)]
    return list(dict.fromkeys([*found, *permissions_of_candidates(candidates, granted)]))


def refuse(permissions: Sequence[Permission], *, who: str, error: type[CorralError] = SpecError) -> None:
    """Refuse permissions that were not granted, with the flags that grant them.

    Raises:
        CorralError: of the given class, unless there are no permissions.
    """
    if not permissions:
        return
    words = flags_for(permissions)
    hint = f"if you trust the author: {TRUST}"
    if words != [TRUST]:
        hint = f"if you want that, add: {shlex.join(words)}; {hint}"
    raise error(f"{who} asks for more than a sandbox here: {show(permissions)}", hint=hint)


def show(permissions: Sequence[Permission]) -> str:
    """As text."""
    more = f" and {len(permissions) - _MAX_SHOWN} more" if len(permissions) > _MAX_SHOWN else ""
    return ", ".join(permission.what for permission in permissions[:_MAX_SHOWN]) + more


def flags_for(permissions: Sequence[Permission]) -> list[str]:
    """The flags that grant them all."""
    several = any(
        sum(permission.words[:1] == (flag,) for permission in permissions) > 1 for flag in ("--image", "--network")
    )
    if several or any(not permission.words for permission in permissions):
        return [TRUST]  # one flag holds for all candidates, so it can't say two things
    return [word for permission in permissions for word in permission.words]


def _permissions_of(
    packages: Iterable[object], image: object, network: object, granted: Granted
) -> Iterator[Permission]:
    for package in packages:
        if package not in granted.packages if isinstance(package, str) else True:
            yield Permission(f"package {package}", ("--package", str(package)))
    if image is not None and image != granted.image:
        named = isinstance(image, str)
        yield Permission(
            f"image {image}" if named else "an image that is built", ("--image", str(image)) if named else ()
        )
    policy = _read_policy(network)
    if policy is None:
        yield Permission(f"network {network!r}")
    elif policy.permits_something and policy != granted.network:
        # The flag can't say other limits than the usual ones.
        words = ("--network", str(policy)) if policy == NetworkPolicy.parse(str(policy)) else ()
        yield Permission(f"network {policy}", words)


def _read_policy(network: object) -> NetworkPolicy | None:
    """A policy from a stranger's file; None if it is none."""
    try:
        return NetworkPolicy.from_json(network)  # type: ignore[arg-type] # anything else raises
    except (SpecError, KeyError, TypeError, AttributeError):
        return None


def _places_outside(source: Source, root: Path) -> Iterator[Path]:
    """Paths that it reads outside the folder, with links resolved."""
    if not isinstance(source, ScriptSource | FolderSource | GitSource):
        return
    path = source.path.resolve()
    if not path.is_relative_to(root):
        yield path
    elif isinstance(source, GitSource):
        folder = (path / run_git(path, "rev-parse", "--git-common-dir").strip()).resolve()
        # A repository around the folder is the user's own; a file `.git` inside could lead to any other.
        if not folder.is_relative_to(root) and not _is_around(path, root):
            yield folder


def _is_around(path: Path, root: Path) -> bool:
    try:
        top = Path(run_git(path, "rev-parse", "--show-toplevel").strip()).resolve()
    except SpecError:
        return False  # one without a working tree
    return top != root and root.is_relative_to(top)
