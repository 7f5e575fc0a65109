"""Asking for the package registries of this machine, once for each configuration."""

from __future__ import annotations

import asyncio
import netrc
import os
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corral.backends.embedded.registries.asking import ask_apt, ask_npm, ask_pip, ask_uv
from corral.backends.embedded.registries.combining import combine
from corral.backends.embedded.registries.registry import Registries
from corral.spec import NetworkPolicy

_VARIABLES = re.compile(r"(PIP|UV|NPM|npm)_.*|HOME|PATH|XDG_CONFIG_\w+|NETRC|APT_CONFIG|VIRTUAL_ENV")


async def find_registries_of(policy: NetworkPolicy) -> Registries:
    """The registries of this machine, if the policy permits them; else none."""
    return await asyncio.to_thread(find_registries) if policy.mode == "packages" else Registries()


def find_registries() -> Registries:
    """The registries that pip, uv, npm and apt of this machine are configured for. Starts programs, and so takes about
    a second, the first time and after a change of the configuration: never call it in an event loop.
    """
    known = _CACHE.get(_read_variables())
    if known is not None:
        return known
    with _LOCK:  # asked once, however many sandboxes are created at the same time
        variables = _read_variables()
        known = _CACHE.get(variables)
        if known is not None:
            return known
        with ThreadPoolExecutor(4, "corral-registries") as pool:
            asked = pool.submit(ask_pip), pool.submit(ask_uv), pool.submit(ask_npm), pool.submit(ask_apt)
            pip, uv, npm, apt = asked[0].result(), asked[1].result(), asked[2].result(), asked[3].result()
        found = combine(pip, uv, npm, apt, logins=_read_netrc())
        files = (*pip.files, *uv.files, *npm.files, *apt.files, _netrc_file())
        _CACHE.put(variables, files, found)
        return found


class _Cache:
    """One answer for each set of variables, until a settings file changes."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, str]], tuple[dict[str, object], Registries]] = {}

    def get(self, variables: frozenset[tuple[str, str]]) -> Registries | None:
        stamps, found = self._known.get(variables, (None, None))
        return found if stamps is not None and stamps == {path: _stamp(path) for path in stamps} else None

    def put(self, variables: frozenset[tuple[str, str]], files: Iterable[str], found: Registries) -> None:
        self._known = {variables: ({path: _stamp(path) for path in files}, found)}


def _read_variables() -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name))


def _stamp(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_CACHE = _Cache()
_LOCK = threading.Lock()


def _read_netrc() -> Callable[[str], tuple[str, str] | None]:
    """The logins of ~/.netrc, which pip uses for hosts without one in their URL."""
    try:
        known = netrc.netrc(_netrc_file())
    except (OSError, netrc.NetrcParseError, UnicodeError):
        return lambda host: None

    def find(host: str) -> tuple[str, str] | None:
        entry = known.hosts.get(host)
        return (entry[0], entry[2] or "") if entry is not None else None

    return find


def _netrc_file() -> str:
    return os.environ.get("NETRC") or str(Path("~/.netrc").expanduser())
