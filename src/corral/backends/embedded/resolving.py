"""pip in a sandbox whose network is the package registries of this machine: what it fetches or builds stays there."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral.backends.embedded.pipoutput import Tell, Watched, explain, find_broken
from corral.backends.embedded.registries import find_registries_of
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError
from corral.protocol import SandboxPrimitives
from corral.results import ExecResult
from corral.spec import Lifetime, NetworkPolicy, Resources, Spec

_SECONDS = 800.0
_MAX_BYTES = 12 << 30
_RESOURCES = Resources(cpus=2, memory_bytes=2 << 30, disk_bytes=16 << 30, processes=512, inodes=1_000_000).as_usual()
_RETRIES = "2"
"""Fewer than pip's own five: an index that does not answer takes 15 seconds each time."""
_NO_PIP = 77
_PIP_AT = "/tmp/pip.zip"

# Inside, in isolated mode. pip itself, or the copy of it that Python brings for `ensurepip`, or the host's.
_PIP = f"""\
import pathlib, runpy, sys
try:
    import pip
except ImportError:
    found = [pathlib.Path({_PIP_AT!r})] if pathlib.Path({_PIP_AT!r}).exists() else []
    try:
        import ensurepip
        folders = [getattr(ensurepip, "_WHEEL_PKG_DIR", None), pathlib.Path(ensurepip.__file__).parent / "_bundled"]
        found += [each for folder in folders if folder for each in pathlib.Path(folder).glob("pip-*.whl")]
    except ImportError:
        pass
    if not found:
        sys.exit({_NO_PIP})
    sys.path.insert(0, str(found[0]))
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

Make = Callable[[Spec], Awaitable[SandboxPrimitives]]


async def resolve_in_sandbox(
    make: Make, packages: tuple[str, ...], folder: Path, *, hosts: tuple[str, ...] = (), tell: Tell
) -> bool:
    """Put the wheels of these packages and of all that they need into a folder. True if any was built from source.

    `hosts` may be reached beside the registries. `tell` gets what pip is doing.

    Raises:
        SpecError: pip can't find or build one.
        BackendUnavailableError: an index can't be reached, or there is no pip; or as `create`.
    """
    spec = Spec(
        network=NetworkPolicy("packages", hosts),
        resources=_RESOURCES,
        lifetime=Lifetime(_SECONDS),
        exec_timeout=_SECONDS,
    )
    async with contextlib.AsyncExitStack() as stack:
        box = AsyncSandbox.around(await make(spec))
        await stack.enter_async_context(box)
        usual = ["--no-input", "--no-cache-dir", "--no-color", "--progress-bar=off", "--disable-pip-version-check"]
        watched = Watched(tell)
        # Only wheels first: this also says whether any had to be built.
        first = [*usual, "--retries", _RETRIES, "--only-binary=:all:"]
        done = await _pip(box, watched, "download", *first, "--dest", "wheels", "--", *packages)
        built, broken = not done.ok, find_broken(done)
        if built:
            # An index that does not answer was asked often enough; another one may have sources.
            then = [*usual, "--retries", "0" if broken else _RETRIES, "--prefer-binary"]
            done = await _pip(box, watched, "wheel", *then, "--wheel-dir", "built", "--", *packages)
        if not done.ok:
            raise explain(done, packages, await find_registries_of(spec.network), broken=broken)
        await box.exec(["mkdir", "-p", "wheels", "built"])
        await box.files.download("built" if built else "wheels", folder, max_bytes=_MAX_BYTES)
    return built


async def _pip(box: AsyncSandbox, watched: Watched, *arguments: str) -> ExecResult:
    command = ["python3", "-I", "-c", _PIP, *arguments]
    done = await box.exec(command, on_output=watched.take)
    if done.exit_code == _NO_PIP:
        await box.files.write(_PIP_AT, _pack_pip())
        done = await box.exec(command, on_output=watched.take)
    return done


def _pack_pip() -> bytes:
    """The pip of the Python that runs Corral, as an archive that Python can import. Raises: BackendUnavailableError."""
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        raise BackendUnavailableError(
            "packages= needs pip, and neither this Python nor the one of sandboxes has it",
            op="create",
            hint="python3 -m ensurepip, or install the package python3-pip",
        )
    root = Path(found.origin).parent
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, Path("pip", path.relative_to(root)))
    return target.getvalue()
