"""Virtual environments of the host, as sandboxes see them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from corral.errors import SpecError


def venv_site_packages(venv: str | os.PathLike[str]) -> Path:
    """The packages of a virtual environment of the host.

    Raises:
        SpecError: not a virtual environment, or of another Python.
    """
    root = Path(venv)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (root / "pyvenv.cfg").is_file():
        raise SpecError(
            f"venv={str(venv)!r} is not a virtual environment", hint="pass the folder that contains pyvenv.cfg"
        )
    site = root / "lib" / f"python{version}" / "site-packages"
    if not site.is_dir():
        raise SpecError(
            f"venv={str(venv)!r} is not of Python {version}, which sandboxes run here",
            hint=f"create one with python{version} -m venv",
        )
    return site.resolve()


def venv_programs(venv: str | os.PathLike[str]) -> Path:
    """The folder of a virtual environment's programs."""
    return Path(venv).resolve() / "bin"
