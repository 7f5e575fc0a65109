"""Unpacking wheels into one folder, as `pip install --target` does. Nothing in them runs, and none writes elsewhere."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from corral.backends.embedded.wheels import OTHER, UNREADABLE, Wheel, open_wheel
from corral.errors import SpecError

_MAX_BYTES = 24 << 30
_MAX_FILES = 500_000
_MAX_TEXT_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,100}")
_OBJECT = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(\[.*\])?")
_PROGRAM = """\
#!python
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({function}())
"""


def unpack_wheels(wheels: Iterable[Wheel], folder: Path) -> None:
    """Unpack these wheels into a new folder, readable for everybody: modules at its top, programs in `bin`.

    Raises:
        SpecError: a wheel is damaged, too large, leads out of the folder, or is not what its RECORD says.
    """
    folder.mkdir(parents=True)
    budget = _Budget()
    for wheel in wheels:
        try:
            with open_wheel(wheel.path) as archive:
                _unpack(archive, folder, budget)
        except SpecError as error:
            raise SpecError(f"{wheel}: {error.message}", hint=error.hint or OTHER) from error
        except UNREADABLE as error:
            raise SpecError(f"{wheel} can't be unpacked: {error}", hint=OTHER) from error
    for path, folders, files in os.walk(folder):  # sandboxes run under other user ids, whatever the umask here
        for name in (*folders, *files):
            found = Path(path, name)
            executable = found.is_dir() or found.stat().st_mode & stat.S_IXUSR
            found.chmod(0o755 if executable else 0o644)
    folder.chmod(0o755)


class _Budget:
    """What may still be written."""

    def __init__(self) -> None:
        self.bytes = _MAX_BYTES
        self.files = _MAX_FILES

    def take(self, count: int) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise SpecError("the packages are too large", hint="ask for fewer packages")

    def take_file(self) -> None:
        self.files -= 1
        if self.files < 0:
            raise SpecError("the packages have too many files", hint="ask for fewer packages")


def _unpack(archive: zipfile.ZipFile, folder: Path, budget: _Budget) -> None:
    hashes = _read_record(archive)
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        name = _check_name(entry.filename)
        target, is_program = _find_place(name)
        if target is None:
            continue
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        budget.take_file()
        _write(archive, entry, path, budget, expected=hashes.get(name))
        mode = entry.external_attr >> 16
        if is_program or mode & stat.S_IXUSR:
            path.chmod(0o755)
    for script, text in _read_programs(archive):
        budget.take_file()
        path = folder / "bin" / script
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def _check_name(name: str) -> str:
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise SpecError(f"it has a file with an odd path: {name[:100]!r}")
    return name


def _find_place(name: str) -> tuple[str | None, bool]:
    """Where a file goes, and whether it is a program. `x.data/purelib/…` and the like go where pip puts them."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name, False
    kind, _, rest = rest.partition("/")
    if kind in ("purelib", "platlib", "data"):
        return rest or None, False
    if kind == "scripts":
        return f"bin/{rest}" if rest else None, True
    return (f"include/{rest}" if rest else None) if kind == "headers" else None, False


def _write(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, budget: _Budget, *, expected: str | None
) -> None:
    """One file. A regular one, whatever the archive says; a later wheel's replaces an earlier one's."""
    path.unlink(missing_ok=True)
    digest = hashlib.sha256()
    with archive.open(entry) as source, path.open("xb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            budget.take(len(chunk))
            digest.update(chunk)
            target.write(chunk)
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if expected is not None and found != expected:
        raise SpecError(f"{entry.filename[:200]} is not the file that its RECORD lists")


def _read_record(archive: zipfile.ZipFile) -> Mapping[str, str]:
    """The sha256 of files, as RECORD has it."""
    hashes = {}
    for row in csv.reader(_read_info(archive, "RECORD").splitlines()):
        if len(row) >= 2 and row[1].startswith("sha256="):
            hashes[row[0]] = row[1].removeprefix("sha256=").rstrip("=")
    return hashes


def _read_programs(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Name and text of the programs that entry points stand for. Raises: SpecError for a name that is a path."""
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    points.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    try:
        points.read_string(_read_info(archive, "entry_points.txt"))
    except configparser.Error as error:
        raise SpecError("its entry points can't be read") from error
    for section in ("console_scripts", "gui_scripts"):
        for name, value in points.items(section) if points.has_section(section) else ():
            found = _OBJECT.fullmatch(value.strip())
            if not _SCRIPT.fullmatch(name) or found is None:
                raise SpecError(f"it has a program with an odd name or function: {name[:100]!r}")
            module, function = found[1], found[2]
            yield name, _PROGRAM.format(module=module, first=function.partition(".")[0], function=function)


def _read_info(archive: zipfile.ZipFile, file: str) -> str:
    """A text in the wheel's `.dist-info`; empty if there is none."""
    for entry in archive.infolist():
        folder, _, rest = entry.filename.partition("/")
        if folder.endswith(".dist-info") and rest == file:
            with archive.open(entry) as member:
                text = member.read(_MAX_TEXT_BYTES + 1)
            if len(text) > _MAX_TEXT_BYTES:
                raise SpecError(f"its {file} is too large")
            return text.decode("utf-8", "replace")
    return ""
