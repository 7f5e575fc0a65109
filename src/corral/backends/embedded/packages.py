"""Python packages without a network inside: fetched once on the host, wheels only, and shown read-only.

Wheels only, because building a source distribution would run its code on the host.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from corral.errors import BackendUnavailableError, SpecError

_INSTALL_SECONDS = 600


def packages_folder(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """Where a set of packages is kept: one folder for each set and Python."""
    wish = "\n".join([sys.implementation.cache_tag or "python", *sorted(packages)])
    return data_folder / "packages" / hashlib.sha256(wish.encode()).hexdigest()[:24]


async def provide_packages(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """The folder with these packages, fetched if it is not there yet.

    Raises:
        SpecError: there is no such package, or no wheel of it.
        BackendUnavailableError: neither pip nor uv is here, or it took too long.
    """
    folder = packages_folder(data_folder, packages)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    unfinished = folder.parent / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        await _install(packages, unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # somebody else may have been faster
                raise
    finally:
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
    return folder


async def _install(packages: tuple[str, ...], target: Path) -> None:
    options = ["install", "--quiet", "--only-binary=:all:", "--target", str(target)]
    if importlib.util.find_spec("pip") is not None:
        argv = [sys.executable, "-m", "pip", *options, "--no-input", "--disable-pip-version-check", "--no-compile"]
    elif (uv := shutil.which("uv")) is not None:
        argv = [uv, "pip", *options, "--python", sys.executable]
    else:
        raise BackendUnavailableError(
            "packages= needs pip or uv on the host", op="create", hint=f"{sys.executable} -m ensurepip, or install uv"
        )
    process = await asyncio.create_subprocess_exec(
        *argv,
        "--",
        *packages,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        umask=0o022,  # sandboxes run under other users' ids, whatever ours was
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), _INSTALL_SECONDS)
    except TimeoutError:
        raise BackendUnavailableError("fetching packages took too long", op="create", hint="try again") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
        raise SpecError(
            f"packages={list(packages)} can't be had: {last[0][:300]}",
            op="create",
            hint="check the names; only packages with a wheel for this Python work",
        )


def venv_site_packages(venv: str | os.PathLike[str]) -> Path:
    """The packages of a virtual environment of the host.

    Raises:
        SpecError: not one, or of another Python.
    """
    root = Path(venv)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (root / "pyvenv.cfg").is_file():
        raise SpecError(
            f"venv={str(venv)!r} is not a virtual environment", hint="give the folder that has pyvenv.cfg in it"
        )
    site = root / "lib" / f"python{version}" / "site-packages"
    if not site.is_dir():
        raise SpecError(
            f"venv={str(venv)!r} is not of Python {version}, which sandboxes here run",
            hint=f"make one with python{version} -m venv",
        )
    return site.resolve()


def path_file() -> str:
    """The user's own .pth file inside, which Python reads at every start, after its standard library."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"/home/daytona/.local/lib/python{version}/site-packages/corral.pth"
