"""Wheels by hand: a folder of them stands in for an index, so that pip and uv are real and need no network."""

import io
import tarfile
import textwrap
import zipfile
from collections.abc import Iterable
from pathlib import Path

EVIL_BACKEND = """\
import pathlib
pathlib.Path({mark!r}).touch()
"""
BUILDING_BACKEND = """\
import os, socket, subprocess, zipfile

def build():
{build}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "{name}-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "{name}-{version}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("{name}.py", "version = " + repr(build()))
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return "{name}-{version}-py3-none-any.whl"
"""
EVIL_PROJECT = """\
[build-system]
requires = []
build-backend = "evil_backend"
backend-path = ["."]
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Iterable[str] = (),
    more: str = "",
    metadata: bool = True,
    program: str = "",
) -> Path:
    """A wheel with one module of its name, and these `Requires-Dist` lines; `more` are other lines of METADATA.

    `program` is the name of a program that prints the version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        module = f"version = {version!r}\n" + ("def tell():\n    print(version)\n" if program else "")
        wheel.writestr(f"{name}.py", module)
        if metadata:
            wheel.writestr(f"{info}/METADATA", "".join(lines) + more)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if program:
            wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{program} = {name}:tell\n")
        names = [f"{name}.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        wheel.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in names))
    return path


def make_source(folder: Path, name: str, build: str, version: str = "1.0") -> Path:
    """A source distribution whose build runs the body `build`; what that returns is the package's `version`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    body = textwrap.indent(textwrap.dedent(build), "    ")
    files = {
        "pyproject.toml": EVIL_PROJECT,
        "evil_backend.py": BUILDING_BACKEND.format(name=name, version=version, build=body),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{file}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def make_evil_project(folder: Path, mark: Path) -> Path:
    """A source tree whose build backend, when it is only loaded, makes the file `mark`. It needs no network."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(EVIL_PROJECT)
    (folder / "evil_backend.py").write_text(EVIL_BACKEND.format(mark=str(mark)))
    return folder
