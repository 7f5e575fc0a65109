"""Python packages without a network inside: downloaded once on the host, wheels only, and mounted read-only.

Wheels only, because building a source distribution would run its code on the host. `--only-binary` does not prevent
that: pip still builds what a URL or a path leads to. Therefore

1. all requirements, of users and of wheels, are parsed; only names and versions are passed on (corral.requirement);
2. pip resolves no dependencies: we do, and read every wheel first (wheels.py); uv itself follows none to a URL;
3. pip can't start programs, and so can't build anything (_NO_PROGRAMS);
4. it runs in `/`, where other users can't plant a `pip.py` or settings for uv.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from corral.backends.embedded.datafolder import make_part
from corral.errors import BackendUnavailableError, SpecError
from corral.requirement import check_packages

_INSTALL_SECONDS = 600
_HINT = "check the names; only packages with a wheel for this Python are supported"
_REASON_LINES = 3
_REASON_LENGTH = 500
_WHEELS_ONLY = "--only-binary=:all:"
# Settings of the user that add packages, or choose another Python. All others (indexes, proxies, certificates) apply.
_NOT_OURS = ("PIP_REQUIREMENT", "PIP_EDITABLE", "PIP_PYTHON")

# Sources are built by other processes, so pip may start none: an audit hook can't be removed. The exception is keyring,
# which pip asks for the password of an index if the user has configured that.
_NO_PROGRAMS = """\
import os, runpy, sys
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
def refuse(event, args):
    if event in STARTS and not (event == "subprocess.Popen" and os.path.basename(os.fsdecode(args[0])) == "keyring"):
        raise PermissionError(f"pip may not start programs here: {event}")
sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def packages_folder(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """Where a set of packages is kept: one folder for each set and Python."""
    key = "\n".join([sys.implementation.cache_tag or "python", *sorted(packages)])
    # Absolute: pip and uv are run in another folder.
    return data_folder.absolute() / "packages" / hashlib.sha256(key.encode()).hexdigest()[:24]


async def provide_packages(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """The folder with these packages, downloaded if it does not exist yet.

    Raises:
        SpecError: a package or its wheel does not exist; or a requirement, also of a dependency, is more than a name
            and versions.
        BackendUnavailableError: neither pip nor uv is installed, or it took too long.
    """
    packages = check_packages(packages)  # checked again where it matters
    folder = packages_folder(data_folder, packages)
    if folder.is_dir():
        return folder
    make_part(data_folder, folder.parent.name, op="create")
    unfinished = folder.parent / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        await _install(packages, unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster
                raise
    finally:
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
    return folder


def pip_command() -> list[str]:
    """The argv of pip: without modules from the working folder (-P), and unable to start programs."""
    return [sys.executable, "-P", "-c", _NO_PROGRAMS]


async def _install(packages: tuple[str, ...], unfinished: Path) -> None:
    try:
        async with asyncio.timeout(_INSTALL_SECONDS):
            if importlib.util.find_spec("pip") is not None:
                await _install_by_pip(packages, unfinished)
            elif (uv := shutil.which("uv")) is not None and uv.startswith("/"):  # else PATH names the working folder
                await _install_by_uv(uv, packages, unfinished)
            else:
                raise BackendUnavailableError(
                    "packages= needs pip or uv on the host",
                    op="create",
                    hint=f"{sys.executable} -m ensurepip, or install uv",
                )
    except TimeoutError:
        raise BackendUnavailableError("downloading packages timed out", op="create", hint="try again") from None
    await asyncio.to_thread(_refuse_addresses, unfinished)


async def _install_by_pip(packages: tuple[str, ...], unfinished: Path) -> None:
    from corral.backends.embedded.wheels import gather_wheels

    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", _WHEELS_ONLY]

    async def fetch(names: list[str], folder: Path) -> str | None:
        env = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        return await _run([*pip_command(), "download", *quiet, "--no-deps", "--dest", str(folder), "--", *names], env)

    work = unfinished.with_name(f"{unfinished.name}-wheels")
    try:
        wheels = await gather_wheels(packages, work, fetch)
        chosen = work / "chosen"
        await asyncio.to_thread(_move, [wheel.path for wheel in wheels], chosen)
        await asyncio.to_thread(unfinished.mkdir)
        if wheels:
            # Only these wheels, which have been read: no index, user setting or dependency can add another one. pip may
            # read dependencies differently than we do (--no-deps).
            env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
            options = [*quiet, "--no-deps", "--no-compile", "--no-index", "--find-links", str(chosen)]
            options += ["--target", str(unfinished)]
            pins = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
            argv = [*pip_command(), "install", *options, "--", *pins]
            _expect(packages, await _run(argv, env | {"PIP_CONFIG_FILE": os.devnull}))
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _install_by_uv(uv: str, packages: tuple[str, ...], unfinished: Path) -> None:
    """uv builds nothing under --only-binary, follows no dependency to an address, and refuses the whole set instead."""
    options = ["--quiet", _WHEELS_ONLY, "--python", sys.executable, "--target", str(unfinished)]
    await asyncio.to_thread(unfinished.mkdir)
    _expect(packages, await _run([uv, "pip", "install", *options, "--", *packages], os.environ))


def _move(paths: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in paths:
        path.rename(folder / path.name)


def _refuse_addresses(folder: Path) -> None:
    """pip and uv mark each package that came from a URL. The steps above should have prevented it."""
    for note in folder.glob("*.dist-info/direct_url.json"):
        raise SpecError(f"{note.parent.name} was installed from a URL", op="create", hint=_HINT)


def _expect(packages: Iterable[str], reason: str | None) -> None:
    if reason is not None:
        raise SpecError(f"packages={list(packages)} can't be installed: {reason}", op="create", hint=_HINT)


async def _run(argv: list[str], env: Mapping[str, str]) -> str | None:
    """Run a program; returns why it failed, or None."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env=env,
        umask=0o022,  # sandboxes run under other user ids, and must be able to read it
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    marked = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]  # by pip, not by uv
    return " ".join(marked[-1:] or lines[-_REASON_LINES:])[-_REASON_LENGTH:] or "no reason given"


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


def path_file() -> str:
    """The user's own .pth file inside, which Python reads at every start, after its standard library."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"/home/daytona/.local/lib/python{version}/site-packages/corral.pth"
