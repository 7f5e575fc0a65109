"""The wheels of a request and their dependencies, resolved without pip.

A wheel may depend on a URL (`evil @ file:///folder`), and pip builds what it finds there, on the host, even if it is
told to use wheels only. So pip never resolves dependencies here: it downloads wheels by name, we read their
dependencies, and download those by name in turn, until nothing is missing. A URL among them is an error.
"""

from __future__ import annotations

import asyncio
import posixpath
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from corral.errors import SpecError
from corral.requirement import check_named, is_file_name, parse_requirement

_MAX_ROUNDS = 100  # the depth of the tree, and every version that is tried and dropped
_MAX_WHEELS = 500
_MAX_METADATA_BYTES = 8 << 20  # descriptions are long, and some hold whole changelogs
_MAX_REQUIREMENTS = 2000
_OTHER = "ask for another version"

Fetch = Callable[[list[str], Path], Awaitable[str | None]]
"""Downloads the newest wheel of each name into a folder; returns the reason if one is missing."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A downloaded wheel, and its dependencies as written."""

    path: Path
    name: str
    version: Version
    requires: tuple[Requirement, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(slots=True)
class _Request:
    """All requirements for one package."""

    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    extras: set[str] = field(default_factory=set)
    askers: dict[str, str] = field(default_factory=dict)
    """The wheels that require it, with their requirement; "" is the user."""


async def gather_wheels(packages: Iterable[str], folder: Path, fetch: Fetch) -> list[Wheel]:
    """The wheels for these packages and their dependencies, each checked, in folders below `folder`.

    The newest matching version is used. If two requirements conflict, an older version of a wheel that has one of them
    is tried: simpler than pip's way, and enough for sets with a solution near the newest versions.

    Raises:
        SpecError: a package is missing, versions conflict, or a wheel is unreadable or depends on a URL.
    """
    asked = [check_named(parse_requirement(text)) for text in packages]
    roots = [(requirement, "") for requirement in asked if _applies(requirement, ())]
    chosen: dict[str, Wheel] = {}
    given_up: dict[str, SpecifierSet] = {}
    reason = ""
    for number in range(_MAX_ROUNDS):
        requests = _find_requests(roots, chosen)
        chosen = {name: wheel for name, wheel in chosen.items() if name in requests}
        missing = {
            name: request.specifier & given_up.get(name, SpecifierSet())
            for name, request in requests.items()
            if name not in chosen or not request.specifier.contains(chosen[name].version, prereleases=True)
        }
        if not missing:
            return list(chosen.values())
        fetched = await _fetch_all(missing, folder / str(number), fetch)
        if not isinstance(fetched, _Lack):
            chosen |= fetched
            continue
        request = requests[fetched.name]
        reason = reason or f"{_tell(fetched.name, request)}: {fetched.reason}"
        askers = [chosen[name] for name in request.askers if name in chosen]
        if not askers:
            raise SpecError(
                reason, hint="check the names and versions; only packages with a wheel for this Python are supported"
            )
        last = askers[-1]
        given_up[last.name] = given_up.get(last.name, SpecifierSet()) & SpecifierSet(f"!={last.version}")
        del chosen[last.name]
    raise SpecError(
        reason or f"what {', '.join(map(str, asked))[:200]} depends on can't be resolved in a bounded number of steps",
        hint="ask for fewer packages, or for exact versions",
    )


@dataclass(frozen=True, slots=True)
class _Lack:
    """A package that can't be downloaded, and pip's reason."""

    name: str
    reason: str


async def _fetch_all(missing: Mapping[str, SpecifierSet], folder: Path, fetch: Fetch) -> dict[str, Wheel] | _Lack:
    wanted = {name: f"{name}{specifier}" for name, specifier in missing.items()}
    reason = await fetch(list(wanted.values()), folder)
    if reason is not None:
        for name, text in wanted.items():  # one at a time: pip's message does not name the package reliably
            alone = await fetch([text], folder / name) if len(wanted) > 1 else reason
            if alone is not None:
                return _Lack(name, alone)
        raise SpecError(f"can't get packages: {reason}", hint="try again")
    found = await asyncio.to_thread(_read_folder, folder)
    for name in missing:
        if name not in found:
            return _Lack(name, "no wheel was fetched")
    return {name: found[name] for name in missing}  # without what settings of the user may have added


def _read_folder(folder: Path) -> dict[str, Wheel]:
    return {wheel.name: wheel for wheel in map(read_wheel, sorted(folder.iterdir()))}


def _find_requests(roots: Iterable[tuple[Requirement, str]], chosen: Mapping[str, Wheel]) -> dict[str, _Request]:
    """The requirements for each package, of the user and of the wheels reached from there."""
    requests: dict[str, _Request] = {}
    queue = list(roots)
    while queue:
        requirement, asker = queue.pop(0)
        request = requests.setdefault(requirement.name, _Request())
        if len(requests) > _MAX_WHEELS:
            raise SpecError(f"packages need more than {_MAX_WHEELS} wheels", hint="ask for fewer packages")
        is_new = not request.askers
        new_extras = requirement.extras - request.extras
        request.specifier &= requirement.specifier
        request.extras |= requirement.extras
        request.askers.setdefault(asker, str(requirement))
        wheel = chosen.get(requirement.name)
        if wheel is not None and (is_new or new_extras):
            applying = (each for each in wheel.requires if _applies(each, request.extras))
            queue += [(_check_dependency(each, wheel), wheel.name) for each in applying]
    return requests


def read_wheel(path: Path) -> Wheel:
    """Read a wheel's metadata. Nothing in it is trusted.

    Raises:
        SpecError: not a wheel, or METADATA is missing, duplicated, too large or malformed; or a script is a path.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as file:
            entries = [each for each in file.infolist() if _is_of_info(each.filename, "METADATA")]
            if len(entries) != 1 or entries[0].file_size > _MAX_METADATA_BYTES:
                raise SpecError(f"{path.name}: its METADATA is missing, duplicated, or too large", hint=_OTHER)
            with file.open(entries[0]) as member:
                text = member.read(_MAX_METADATA_BYTES + 1)  # the size in the directory may be false
            for each in file.infolist():
                if _is_of_info(each.filename, "entry_points.txt"):
                    with file.open(each) as member:
                        _check_scripts(member.read(_MAX_METADATA_BYTES + 1), path.name)
    except (InvalidWheelFilename, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{path.name} is not a wheel that can be read: {error}", hint=_OTHER) from error
    if len(text) > _MAX_METADATA_BYTES:
        raise SpecError(f"{path.name}: its METADATA is too large", hint=_OTHER)
    if is_file_name(str(version)):  # the version goes to pip
        raise SpecError(f"{path.name}: its version looks like a path", hint=_OTHER)
    known, unknown = parse_email(text)
    requires = known.get("requires_dist", [])
    if "requires-dist" in unknown or len(requires) > _MAX_REQUIREMENTS:
        raise SpecError(f"{path.name} depends on too many packages", hint=_OTHER)
    try:
        return Wheel(path, name, version, tuple(map(parse_requirement, requires)))
    except SpecError as error:
        raise SpecError(f"{path.name} has an unreadable dependency: {error.message}", hint=_OTHER) from error


def _is_of_info(name: str, file: str) -> bool:
    folder, _, rest = posixpath.normpath(name).partition("/")  # pip also accepts `x.dist-info/./METADATA`
    return folder.endswith(".dist-info") and rest == file


def _check_scripts(text: bytes, wheel: str) -> None:
    """pip writes a program for each name in two sections, and newer versions accept `/etc/x` and `../x` as a name.

    Raises:
        SpecError: a name is a path, or the file is too large.
    """
    section = ""
    for line in map(str.strip, text.decode("utf-8", "replace").splitlines()):  # as importlib.metadata does
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]").strip()
        elif section in ("console_scripts", "gui_scripts") and "/" in line and not line.startswith("#"):
            raise SpecError(f"{wheel} has a script whose name is a path: {line[:100]!r}", hint=_OTHER)
    if len(text) > _MAX_METADATA_BYTES:
        raise SpecError(f"{wheel}: its entry points are too large", hint=_OTHER)


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    try:
        return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the marker of {str(requirement)!r} can't be evaluated", hint=_OTHER) from error


def _check_dependency(requirement: Requirement, wheel: Wheel) -> Requirement:
    try:
        return check_named(requirement)
    except SpecError as error:
        raise SpecError(
            f"{wheel} depends on {str(requirement)[:200]!r}, which is a URL or path and not a package name",
            hint="wheels that depend on URLs are rejected, because pip would build what it downloads",
        ) from error


def _tell(name: str, request: _Request) -> str:
    return " and ".join(f"{text} (for {asker})" if asker else text for asker, text in request.askers.items()) or name
