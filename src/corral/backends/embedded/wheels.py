"""What pip brought out of its sandbox: read, and compared with what was asked for. Nothing in a wheel is trusted."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from corral.errors import SpecError
from corral.requirement import check_named, parse_requirement

MAX_WHEELS = 500
_MAX_METADATA_BYTES = 8 << 20  # descriptions are long, and some hold whole changelogs
_MAX_DIRECTORY_BYTES = 64 << 20
_DIRECTORY_SIZE = 5
"""Where `zipfile` has it in its record of an archive's end."""
OTHER = "ask for another version"
UNREADABLE = (
    InvalidWheelFilename, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError,
    NotImplementedError,
)  # fmt: skip
"""What reading a damaged archive raises."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel, and what it says it is."""

    path: Path
    name: str
    version: Version

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def check_wheels(folder: Path, packages: Iterable[str]) -> list[Wheel]:
    """The wheels in a folder, each of them sound and for this machine, and all that was asked for among them.

    Raises:
        SpecError: also for a file that is not a wheel, and two wheels of one name.
    """
    found: dict[str, Wheel] = {}
    ours = set(sys_tags())
    for path in sorted(_list_wheels(folder)):
        wheel = read_wheel(path)
        if wheel.name in found:
            raise SpecError(f"there are two wheels of {wheel.name}: {found[wheel.name].version} and {wheel.version}")
        if ours.isdisjoint(parse_wheel_filename(path.name)[3]):
            raise SpecError(f"{path.name} is not for this Python and machine", hint=OTHER)
        found[wheel.name] = wheel
    for text in packages:
        requirement = check_named(parse_requirement(text))
        wheel_found = found.get(requirement.name)
        if wheel_found is None:
            if _applies(requirement):
                raise SpecError(f"no wheel was found for {text}", hint="check the name")
        elif not requirement.specifier.contains(wheel_found.version, prereleases=True):
            raise SpecError(f"{wheel_found} is not {text}", hint="try again")
    return list(found.values())


def _list_wheels(folder: Path) -> Iterator[Path]:
    for number, path in enumerate(folder.iterdir()):
        if number >= MAX_WHEELS:
            raise SpecError(f"packages need more than {MAX_WHEELS} wheels", hint="ask for fewer packages")
        if path.is_symlink() or not path.is_file() or path.suffix != ".whl":
            raise SpecError(f"{path.name[:200]!r} is not a wheel", hint=OTHER)
        yield path


def _applies(requirement: Requirement) -> bool:
    marker = requirement.marker
    try:
        return marker is None or marker.evaluate({"extra": ""})
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the marker of {str(requirement)!r} can't be evaluated", hint=OTHER) from error


def read_wheel(path: Path) -> Wheel:
    """Read a wheel's name and metadata.

    Raises:
        SpecError: not a wheel, or METADATA is missing, duplicated, too large, malformed, or of another package.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with open_wheel(path) as file:
            entries = [each for each in file.infolist() if _is_metadata(each.filename)]
            if len(entries) != 1 or entries[0].file_size > _MAX_METADATA_BYTES:
                raise SpecError(f"{path.name}: its METADATA is missing, duplicated, or too large", hint=OTHER)
            with file.open(entries[0]) as member:
                text = member.read(_MAX_METADATA_BYTES + 1)  # the size in the directory may be false
    except SpecError:
        raise
    except UNREADABLE as error:
        raise SpecError(f"{path.name} is not a wheel that can be read: {error}", hint=OTHER) from error
    if len(text) > _MAX_METADATA_BYTES:
        raise SpecError(f"{path.name}: its METADATA is too large", hint=OTHER)
    known, _ = parse_email(text)
    try:
        said = canonicalize_name(known.get("name", "")), Version(known.get("version", ""))
    except InvalidVersion:
        said = None
    if said != (name, version):
        raise SpecError(f"{path.name} holds another package than its name says", hint=OTHER)
    return Wheel(path, name, version)


def open_wheel(path: Path) -> zipfile.ZipFile:
    """The archive. Raises: SpecError if its directory is huge, which would all be read into memory; UNREADABLE."""
    with path.open("rb") as file:
        # The same record that ZipFile finds itself, whatever else looks like one.
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined] # noqa: SLF001
    if end is not None and end[_DIRECTORY_SIZE] > _MAX_DIRECTORY_BYTES:
        raise SpecError(f"{path.name} has too many files", hint=OTHER)
    return zipfile.ZipFile(path)


def _is_metadata(name: str) -> bool:
    folder, _, rest = posixpath.normpath(name).partition("/")
    return folder.endswith(".dist-info") and rest == "METADATA"
