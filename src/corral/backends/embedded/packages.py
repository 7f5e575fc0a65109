"""Python packages without a network inside: fetched once on the host, wheels only, and shown read-only.

Wheels only, because building a source distribution would run its code on the host. `--only-binary` is not enough for
that: pip builds what an address or a path leads to all the same. Therefore

1. what is asked for, by users and by wheels, is parsed; only names and versions go on (corral.requirement);
2. pip follows no dependencies, we do, and read every wheel first (wheels.py); uv follows none to an address by itself;
3. pip can start no program, and so no build, whatever it may be led to (_NO_PROGRAMS);
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
# Settings of the user that name more to install, or another Python. All others (indexes, proxies, certificates) hold.
_NOT_OURS = ("PIP_REQUIREMENT", "PIP_EDITABLE", "PIP_PYTHON")

# A source is built by a process of its own, so pip may start none: an audit hook can't be taken back. keyring is how
# pip asks for the password of an index, if the user has set that.
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
    wish = "\n".join([sys.implementation.cache_tag or "python", *sorted(packages)])
    # Absolute: pip and uv are run in another folder.
    return data_folder.absolute() / "packages" / hashlib.sha256(wish.encode()).hexdigest()[:24]


async def provide_packages(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """The folder with these packages, fetched if it is not there yet.

    Raises:
        SpecError: there is no such package, or no wheel of it; or it is more than a name and versions, or depends on
            something that is.
        BackendUnavailableError: neither pip nor uv is here, or it took too long.
    """
    packages = check_packages(packages)  # again: this is where it matters
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
    """How pip is run: without the working folder among its modules (-P), and without other programs."""
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
            # Only these wheels, which have been read: no index and no setting of the user can bring in another one, nor
            # can what they depend on, which pip may read and judge in another way than we have (--no-deps).
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
    """pip and uv leave a note for each package that they had by an address. The steps above should have stopped it."""
    for note in folder.glob("*.dist-info/direct_url.json"):
        raise SpecError(f"{note.parent.name} came from an address", op="create", hint=_HINT)


def _expect(packages: Iterable[str], reason: str | None) -> None:
    if reason is not None:
        raise SpecError(f"packages={list(packages)} can't be installed: {reason}", op="create", hint=_HINT)


async def _run(argv: list[str], env: Mapping[str, str]) -> str | None:
    """Run it; gives why it failed, or None."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env=env,
        umask=0o022,  # sandboxes run under other users' ids, whatever ours was
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
        SpecError: not one, or of another Python.
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
