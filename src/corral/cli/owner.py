"""Acting on an existing sandbox, and the names of sandboxes of `corral serve` in the same data folder.

These names are shown in lists and errors, and never accepted as arguments. The server's clients choose them, so a
client could choose the name of one of the user's own sandboxes and receive what was meant for that one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from corral.cli.display import plain
from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, SandboxGoneError
from corral.protocol import Backend
from corral.results import OWNER_ID_LABEL, OWNER_LABELS, OWNER_NAME_LABEL, SandboxInfo

T = TypeVar("T")


def show_owner(info: SandboxInfo) -> str:
    """For a list: `server:default/web` is the sandbox that clients of the server know as `web`."""
    if info.owner is None:
        return "-"
    name = info.labels.get(OWNER_NAME_LABEL) or info.labels.get(OWNER_ID_LABEL)
    return plain(f"{info.owner}/{name}" if name else info.owner)


def show_labels(info: SandboxInfo) -> str:
    """For a list: the labels that users set."""
    return plain(" ".join(f"{key}={value}" for key, value in info.labels.items() if key not in OWNER_LABELS))


def show_owners(infos: Iterable[SandboxInfo]) -> str:
    """For messages: the servers that these sandboxes belong to."""
    return ", ".join(sorted({plain(str(info.owner)) for info in infos}))


def run_on(backend: str | Backend, sandbox_id: str, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, which is given the backend.

    If the sandbox is not found, the error says whether the server has one of that name or id.
    """
    maker = get_backend(backend)

    async def run() -> T:
        try:
            return await work(maker)
        except SandboxGoneError as error:
            better = await explain_gone(maker, sandbox_id, error)
            if better is error:
                raise
            raise better from error

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def connected(backend: Backend, sandbox_id: str) -> AsyncIterator[AsyncSandbox]:
    """An existing sandbox, for as long as the block lasts. Raises: as `connect`."""
    async with contextlib.aclosing(await AsyncSandbox.connect(sandbox_id, backend=backend)) as box:
        yield box


async def explain_gone(backend: Backend, wanted: str, error: SandboxGoneError) -> SandboxGoneError:
    """The error that says what to do; `error` itself, if the server has no such sandbox."""
    if error.sandbox_id is not None or backend.name == "daytona":
        return error  # it exists; or the server itself was asked
    try:
        infos = await backend.list()
    except (CorralError, OSError):
        return error
    found = [info for info in infos if wanted in map(info.labels.get, (OWNER_ID_LABEL, OWNER_NAME_LABEL))]
    found = [info for info in found if info.owner is not None]
    if not found:
        return error
    ids = " or ".join(sorted(info.sandbox_id for info in found))
    return SandboxGoneError(
        f"{wanted!r} belongs to `corral serve` ({show_owners(found)})",
        op=error.op,
        hint=f"use its id here, {ids}, or --url with the server's address and a key",
    )
