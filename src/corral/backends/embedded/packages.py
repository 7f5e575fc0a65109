"""Python packages without a network inside: resolved in a sandbox of their own, kept on the host, mounted read-only.

1. All requirements are parsed; only names and versions are passed on (corral.requirement).
2. pip runs in a sandbox whose network is the registries of this machine (resolving.py). It may follow any dependency
   and build any source: what it runs can reach nothing else.
3. The wheels are copied out, and read here (wheels.py): their names, versions, tags and scripts.
4. They are kept by their hash, with a list of each set (wheelstore.py), and unpacked by us, not by pip (unpacking.py).
   A set that was unpacked once is unpacked again from the same wheels; a wheel whose content has changed is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral.backends.embedded.datafolder import make_part
from corral.backends.embedded.pipoutput import Tell
from corral.errors import BackendUnavailableError, CorralError
from corral.protocol import OnEvent
from corral.requirement import check_packages
from corral.results import Event

log = logging.getLogger("corral.embedded")

_SECONDS = 900.0

Resolve = Callable[[tuple[str, ...], Path], Awaitable[bool]]
"""Puts the wheels for requirements and their dependencies into a folder. True if any was built from source."""


def tell_as_events(on_event: OnEvent | None) -> Tell:
    """What is being done, as events `packages`, and in the log. The sandbox does not exist yet: they have no id of one.

    A listener's failure is logged only.
    """

    def tell(doing: str) -> None:
        log.debug("packages: %s", doing)
        if on_event is not None:
            try:
                on_event(Event("packages", "", "embedded", {"doing": doing}))
            except Exception:
                log.warning("on_event failed for packages", exc_info=True)

    return tell


def packages_folder(data_folder: Path, packages: tuple[str, ...]) -> Path:
    """Where a set of packages is kept: one folder for each set and Python."""
    tag = sys.implementation.cache_tag or "python"
    key = "\n".join([tag, sysconfig.get_platform(), *sorted(packages)])
    return data_folder.absolute() / "packages" / hashlib.sha256(key.encode()).hexdigest()[:24]


async def provide_packages(data_folder: Path, packages: tuple[str, ...], resolve: Resolve, *, tell: Tell) -> Path:
    """The folder with these packages, resolved if it does not exist yet. `tell` gets what is being done.

    Raises:
        SpecError: a package or its wheel does not exist, is not what it says, or has changed at its index.
        BackendUnavailableError: an index can't be reached, there is no pip, it took too long, or the disk is full.
    """
    packages = check_packages(packages)  # checked again where it matters
    folder = packages_folder(data_folder, packages)
    if folder.is_dir():
        return folder
    make_part(data_folder, folder.parent.name, op="create")
    try:
        async with asyncio.timeout(_SECONDS):
            await _provide(packages, folder, resolve, tell)
    except CorralError:
        raise
    except TimeoutError:
        raise BackendUnavailableError("resolving packages timed out", op="create", hint="try again") from None
    except OSError as error:
        raise BackendUnavailableError(
            f"packages={list(packages)} can't be kept on this machine: {error.strerror or error}",
            op="create",
            hint="free space on the disk of the data folder; its packages/ may be deleted while no sandbox runs",
        ) from error
    return folder


async def _provide(packages: tuple[str, ...], folder: Path, resolve: Resolve, tell: Tell) -> None:
    from corral.backends.embedded.unpacking import unpack_wheels
    from corral.backends.embedded.wheels import check_wheels
    from corral.backends.embedded.wheelstore import WheelStore, holding

    store = await asyncio.to_thread(WheelStore, folder.parent)
    unfinished = folder.parent / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    tell(f"getting {', '.join(packages)}")
    async with holding(store.folder / f"{folder.name}.lock"):  # others who want the same set wait for it
        if await asyncio.to_thread(folder.is_dir):
            return
        try:
            known = await asyncio.to_thread(store.read, folder.name)
            wheels = await asyncio.to_thread(store.find, known) if known is not None else None
            if wheels is None:
                built = await resolve(packages, unfinished / "wheels")
                found = await asyncio.to_thread(check_wheels, unfinished / "wheels", packages)
                wheels = await asyncio.to_thread(store.keep, folder.name, found, built=built, known=known)
            tell(f"unpacking {', '.join(map(str, wheels))}")
            tree = unfinished / "tree"
            await asyncio.to_thread(unpack_wheels, wheels, tree)
            tree.rename(folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)


def path_file() -> str:
    """The user's own .pth file inside, which Python reads at every start, after its standard library."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"/home/daytona/.local/lib/python{version}/site-packages/corral.pth"
