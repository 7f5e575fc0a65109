"""The programs of packages and virtual environments, as commands of a sandbox.

A script that pip or uv wrote begins with the path of the host's Python, which does not exist inside. So it becomes a
command of the base: the same text with the sandbox's Python in its first line. Other programs (compiled ones, shell
scripts) become links to the folder as the sandbox sees it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MAX_PROGRAMS = 2000
_MAX_SCRIPT_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,100}")
_NOT_SHOWN = re.compile(r"(python|pypy|pip)[0-9.]*|activate.*|Activate\.ps1|deactivate.*")
"""Parts of a virtual environment itself: links to the host's Python, and scripts for shells of the host."""
_PYTHON = re.compile(rb"#![^\n]*python[^\n]*|#!/bin/sh\n'''exec' [^\n]*python[^\n]*\n' '''")
"""pip writes the second form when the path of its Python is too long for the kernel."""


def find_programs(folder: Path, *, shown_at: str, python: str) -> dict[str, str]:
    """Commands for `BaseDescription`, by name, for the programs of a folder that a sandbox sees at `shown_at`.

    Unusual names are left out, and so are files that can't be read or are not executable.
    """
    found: dict[str, str] = {}
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return found  # none of the packages has a program
    for name in names:
        if len(found) < _MAX_PROGRAMS and _NAME.fullmatch(name) and not _NOT_SHOWN.fullmatch(name):
            command = _make_command(folder / name, shown_at=f"{shown_at}/{name}", python=python)
            if command is not None:
                found[name] = command
    return found


def _make_command(path: Path, *, shown_at: str, python: str) -> str | None:
    try:
        real = path.resolve(strict=True)
        if real.parent != path.parent.resolve() or not real.is_file() or not os.access(real, os.X_OK):
            return None
        with real.open("rb") as file:
            text = file.read(_MAX_SCRIPT_BYTES + 1)
    except OSError:
        return None
    begin = _PYTHON.match(text)
    if begin is None or len(text) > _MAX_SCRIPT_BYTES:
        return shown_at
    try:
        return f"#!{python}{text[begin.end() :].decode()}"
    except UnicodeDecodeError:
        return shown_at
