"""Install and remove the small TypeScript runtime in Corral's data folder.

It is in `<data folder>/runtimes/typescript/`, which sandboxes see read-only: a copy of our `ts-node.js`, and esbuild's
native binary in `node_modules/@esbuild/`, downloaded by npm and checked against the hashes of our lock file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corral.backends.embedded.datafolder import make_part, open_data
from corral.errors import BackendUnavailableError

_SHIPPED = Path(__file__).parent
_SHIM = "ts-node.js"
_MANIFESTS = ("package.json", "package-lock.json")
_INSTALL_TIMEOUT = 300.0  # 4 MB over a slow line
_TRIAL_TIMEOUT = 60.0

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed runtime."""

    folder: Path
    esbuild_version: str
    size_bytes: int


def install(data_folder: Path, *, on_progress: OnProgress | None = None) -> Installed:
    """Download the runtime, test it, and replace the old one in one step.

    Raises:
        BackendUnavailableError: npm or Node.js is missing, npm fails, the runtime does not run here, or the data folder
            can't be written.
    """
    tell = on_progress or (lambda _: None)
    version = _pinned_version()
    target = _folder(data_folder)
    npm, node = _find_program("npm"), _find_program("node")
    try:
        with _temporary_folder(data_folder) as folder:
            for name in (_SHIM, *_MANIFESTS):
                shutil.copyfile(_SHIPPED / name, folder / name)
            tell(f"fetching esbuild {version}")
            _fetch(npm, folder)
            tell("trying it")
            _try(node, folder)
            _open_to_all(folder)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            _put_in_place(folder, data_folder)
    except OSError as error:
        raise BackendUnavailableError(
            f"can't write to the data folder: {error.strerror}",
            op="setup",
            hint="set CORRAL_DATA_DIR to a writable folder with free space",
        ) from error
    return Installed(folder=target, esbuild_version=version, size_bytes=size)


def installed(data_folder: Path) -> Path | None:
    """The runtime's folder; None if it is missing, incomplete, or not of this Corral's version.

    Raises:
        BackendUnavailableError: another user could change the data folder.
    """
    open_data(data_folder, op="setup")
    folder = _folder(data_folder)
    try:
        if (folder / _SHIM).read_bytes() != (_SHIPPED / _SHIM).read_bytes():
            return None
        packages = list(folder.glob("node_modules/@esbuild/*/package.json"))
        versions = {json.loads(package.read_bytes())["version"] for package in packages}
        complete = all((package.parent / "bin" / "esbuild").is_file() for package in packages)
    except (OSError, ValueError, KeyError):
        return None
    return folder if complete and versions == {_pinned_version()} else None


def remove(data_folder: Path) -> bool:
    """Remove the runtime; returns True if there was one. Raises: as `installed`."""
    open_data(data_folder, op="setup")
    target = _folder(data_folder)
    if not target.is_dir():
        return False
    with _temporary_folder(data_folder) as trash:
        target.rename(trash / "old")
    return True


def _folder(data_folder: Path) -> Path:
    return data_folder / "runtimes" / "typescript"


def _pinned_version() -> str:
    wanted: dict[str, str] = json.loads((_SHIPPED / "package.json").read_bytes())["optionalDependencies"]
    (version,) = set(wanted.values())  # one version for all platforms
    return version


def _find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BackendUnavailableError(
            f"{name} is not on PATH", op="setup", hint="install Node.js 18 or newer with npm, then try again"
        )
    return path


@contextmanager
def _temporary_folder(data_folder: Path) -> Iterator[Path]:
    """A folder on the same file system, removed at the end unless it was moved into place."""
    parent = make_part(data_folder, _folder(data_folder).parent.name, op="setup")
    folder = Path(tempfile.mkdtemp(prefix=".typescript-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(npm: str, folder: Path) -> None:
    flags = ("--ignore-scripts", "--include=optional", "--no-audit", "--no-fund", "--no-update-notifier")
    done = _run([npm, "ci", *flags], folder=folder, timeout=_INSTALL_TIMEOUT, what="npm")
    # npm treats the package of a platform as optional: it succeeds without it, even if the network or the hash fails.
    if done.returncode == 0 and any(folder.glob("node_modules/@esbuild/*/bin/esbuild")):
        return
    # Only npm's code is shown: the rest may contain paths of this machine and a registry's password.
    code = re.search(r"^npm (?:error|ERR!) code (\w+)", done.stderr, re.MULTILINE)
    raise BackendUnavailableError(
        f"npm did not fetch esbuild {_pinned_version()}{f' ({code[1]})' if code else ''}",
        op="setup",
        hint="check that `npm ping` succeeds and that this is Linux on x86_64 or aarch64, then try again",
    )


def _try(node: str, folder: Path) -> None:
    """Test a type, an enum and the native binary, in one line."""
    argv = [node, str(folder / _SHIM), "--print", "--eval", "enum Answer { Yes = 42 }; Answer.Yes as number"]
    done = _run(argv, folder=folder, timeout=_TRIAL_TIMEOUT, what="Node.js")
    if done.returncode != 0 or done.stdout != "42\n":
        raise BackendUnavailableError(
            "the TypeScript runtime was downloaded but does not run on this machine",
            op="setup",
            hint="it needs Node.js 18 or newer on x86_64 or aarch64",
        )


def _run(argv: list[str], *, folder: Path, timeout: float, what: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        hint = "check the network, then try again"
        raise BackendUnavailableError(f"{what} did not end within {timeout:.0f} s", op="setup", hint=hint) from error
    except OSError as error:
        raise BackendUnavailableError(f"{what} can't be started", op="setup", hint="reinstall Node.js") from error


def _put_in_place(folder: Path, data_folder: Path) -> None:
    remove(data_folder)
    try:
        folder.rename(_folder(data_folder))
    except OSError:
        if installed(data_folder) is None:  # else another process has installed it meanwhile
            raise


def _open_to_all(folder: Path) -> None:
    """Make it readable for all: sandboxes run under other user ids."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():  # links in npm's .bin, whose targets are changed themselves
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
