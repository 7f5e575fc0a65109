"""What a file that somebody sent asks for beyond a sandbox on this machine that has no network.

A run's folder and a `contest.toml` may come from a stranger. Neither chooses what is run on the host, fetched or
contacted: whoever uses it says so by a flag, and is shown what is asked for. What runs inside a sandbox needs no leave.
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
from corral.forge.sources import Folder, GitFolder, Script, Source
from corral.spec import NetworkPolicy

TRUST = "--trust"
SAFE_BACKEND = "embedded"
"""On this machine, isolated, without a network: it needs no leave."""
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a file asks for."""

    what: str
    words: tuple[str, ...] = ()
    """The flag that says the same. Empty: only `--trust` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """What flags have asked for already."""

    packages: frozenset[str] = frozenset()
    image: str | None = None
    network: NetworkPolicy | None = None


def ask_for_backend(name: str) -> Ask:
    """Sandboxes that are made elsewhere."""
    return Ask(f"backend {name}", ("--backend", name))


def asks_of_candidates(candidates: Iterable[Candidate], leave: Leave) -> list[Ask]:
    """Packages, images and networks of candidates."""
    found: list[Ask] = []
    for each in candidates:
        image = each.image if each.image is None or isinstance(each.image, str) else asdict(each.image)
        found += _asks_of(each.packages, image, _describe(each.network_policy), leave)
    return list(dict.fromkeys(found))


def asks_of_run(definition: Mapping[str, Any], leave: Leave) -> list[Ask]:
    """The same as a run's folder has it. Its values may be of any kind.

    Raises:
        RunFolderError: there is something missing.
    """
    found: list[Ask] = []
    try:
        for item in definition["candidates"]:
            found += _asks_of(item["packages"], item["image"], item["network"], leave)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"the run's candidates can't be read: {error}", hint="give them again") from error
    return list(dict.fromkeys(found))


def asks_of_contest(contest: ContestFile, candidates: Iterable[Candidate], leave: Leave, *, judge: bool) -> list[Ask]:
    """The candidates' needs, files from outside the contest's folder, a place for runs there; with `judge` its judge.

    A judge from a file is a program that is run here, not in a sandbox.
    """
    found: list[Ask] = []
    if judge and contest.judge is not None and ":" in contest.judge:
        path = str(contest.path.parent / contest.judge)
        found.append(Ask(f"judge {path}, to be run on this machine", ("--judge", path)))
    root = contest.path.parent.resolve()
    if contest.artifacts is not None and not contest.artifacts.resolve().is_relative_to(root):
        found.append(Ask(f"artifacts in {contest.artifacts.resolve()}", ("--artifacts", str(contest.artifacts))))
    for candidate in contest.candidates:
        found += [Ask(f"files from {path}") for path in _places_outside(candidate.source, root)]
    return list(dict.fromkeys([*found, *asks_of_candidates(candidates, leave)]))


def refuse(asks: Sequence[Ask], *, who: str, error: type[CorralError] = SpecError) -> None:
    """Say what is asked for, and how to give it.

    Raises:
        CorralError: of the kind that was given, unless nothing is asked for.
    """
    if not asks:
        return
    words = flags_for(asks)
    hint = f"if you trust whoever wrote it: {TRUST}"
    if words != [TRUST]:
        hint = f"if you want that, add: {shlex.join(words)}; {hint}"
    raise error(f"{who} asks for more than a sandbox here: {show(asks)}", hint=hint)


def show(asks: Sequence[Ask]) -> str:
    """For people."""
    more = f" and {len(asks) - _MAX_SHOWN} more" if len(asks) > _MAX_SHOWN else ""
    return ", ".join(ask.what for ask in asks[:_MAX_SHOWN]) + more


def flags_for(asks: Sequence[Ask]) -> list[str]:
    """What a command line needs that grants them all."""
    several = any(sum(ask.words[:1] == (flag,) for ask in asks) > 1 for flag in ("--image", "--network"))
    if several or any(not ask.words for ask in asks):
        return [TRUST]  # one flag holds for all candidates, so it can't say two things
    return [word for ask in asks for word in ask.words]


def _asks_of(packages: Iterable[object], image: object, network: object, leave: Leave) -> Iterator[Ask]:
    for package in packages:
        if package not in leave.packages if isinstance(package, str) else True:
            yield Ask(f"package {package}", ("--package", str(package)))
    if image is not None and image != leave.image:
        named = isinstance(image, str)
        yield Ask(f"image {image}" if named else "an image by a recipe", ("--image", str(image)) if named else ())
    if network != _describe(NetworkPolicy()) and (leave.network is None or network != _describe(leave.network)):
        text = _policy_text(network)
        yield Ask(f"network {text or repr(network)}", ("--network", text) if text else ())


def _describe(policy: NetworkPolicy) -> dict[str, Any]:
    return {"mode": policy.mode, "hosts": list(policy.hosts)}


def _policy_text(network: object) -> str:
    """As a flag says it; empty if none does."""
    if not isinstance(network, Mapping):
        return ""
    mode, hosts = network.get("mode"), network.get("hosts")
    if mode == "open":
        return "open"
    if mode == "allow" and isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts):
        return ",".join(hosts)
    return ""


def _places_outside(source: Source, root: Path) -> Iterator[Path]:
    """What it is taken from that is not below the folder, links and all."""
    if not isinstance(source, Script | Folder | GitFolder):
        return
    path = source.path.resolve()
    if not path.is_relative_to(root):
        yield path
    elif isinstance(source, GitFolder):
        folder = (path / run_git(path, "rev-parse", "--git-common-dir").strip()).resolve()
        # The repository around the folder is its user's; a file `.git` inside could lead to any other.
        if not folder.is_relative_to(root) and not _is_around(path, root):
            yield folder


def _is_around(path: Path, root: Path) -> bool:
    try:
        top = Path(run_git(path, "rev-parse", "--show-toplevel").strip()).resolve()
    except SpecError:
        return False  # one without a working tree
    return top != root and root.is_relative_to(top)
