"""Where tools get their sandbox from: one that is given, deps, the run's workspace, or an environment."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic_ai import RunContext
from pydantic_ai.exceptions import UserError

from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.adapters.pydantic_ai.sync import CorralSandbox
from corral.adapters.pydantic_ai.workspace import CorralWorkspace
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.tools.tool import Opener

AnySandbox = AsyncCorralSandbox | CorralSandbox | AsyncSandbox | Sandbox
AnySource = AnySandbox | Opener
"""A sandbox, or something that opens one for each call: `corral.Environment`."""


@runtime_checkable
class ConsoleDeps(Protocol):
    """What an agent's deps have if its tools shall find the sandbox there."""

    @property
    def backend(self) -> Any:
        """The sandbox, or an environment."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunVariables:
    """A run as the context of an environment: what its deps hold by name, and which conversation it belongs to."""

    variables: Mapping[str, Any]
    conversation_id: str | None = None


@contextlib.asynccontextmanager
async def open_for_run(ctx: RunContext[Any], source: AnySource | None) -> AsyncIterator[AsyncCorralSandbox]:
    """The sandbox of one call. Raises: UserError if there is none, and whatever opening an environment raises."""
    found = source if source is not None else await _find_source(ctx)
    if not isinstance(found, AsyncCorralSandbox | CorralSandbox | AsyncSandbox | Sandbox):
        async with found.open(make_context(ctx)) as box:
            yield AsyncCorralSandbox.over(box)
        return
    yield _as_console(found)


def check_source(source: object) -> AnySource:
    """Raises: UserError for what is neither a sandbox of ours nor an environment."""
    if isinstance(source, AsyncCorralSandbox | CorralSandbox | AsyncSandbox | Sandbox):
        return source
    if not isinstance(source, type) and callable(getattr(source, "open", None)):
        opener: Opener = source  # type: ignore[assignment]  # whoever has `open` is asked
        return opener
    raise UserError(f"{type(source).__name__} is neither a Corral sandbox nor an environment")


def make_context(ctx: RunContext[Any]) -> RunVariables:
    """The variables of an environment: the items of deps that are a mapping, or their `.variables`, or their fields."""
    return RunVariables(_name_values(ctx.deps), ctx.conversation_id)


def _name_values(deps: Any) -> Mapping[str, Any]:
    for candidate in (deps, getattr(deps, "variables", None)):
        if isinstance(candidate, Mapping):
            return candidate
    if dataclasses.is_dataclass(deps) and not isinstance(deps, type):
        return {each.name: getattr(deps, each.name) for each in dataclasses.fields(deps)}
    fields = getattr(type(deps), "model_fields", None)  # a model of Pydantic's
    return {name: getattr(deps, name) for name in fields} if isinstance(fields, Mapping) else {}


async def _find_source(ctx: RunContext[Any]) -> AnySource:
    if isinstance(ctx.deps, ConsoleDeps):
        return check_source(ctx.deps.backend)
    workspace = ctx.workspace.backend if ctx.workspace is not None else None
    if isinstance(workspace, CorralWorkspace):
        return AsyncCorralSandbox.over(await workspace.sandbox(), work_dir=await workspace.working_dir())
    raise UserError(
        "no sandbox: pass one to CorralToolset, use deps with a `backend`, or give the run a CorralWorkspace"
    )


def _as_console(sandbox: AnySandbox) -> AsyncCorralSandbox:
    """Any sandbox of ours as the async class that raises when it is gone."""
    if isinstance(sandbox, AsyncCorralSandbox):
        return sandbox.raising()
    if isinstance(sandbox, CorralSandbox):
        return sandbox.async_sandbox.raising()
    return AsyncCorralSandbox.over(sandbox)
