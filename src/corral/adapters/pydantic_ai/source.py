"""Where tools get their sandbox from: an argument, deps, the run's workspace, or an environment."""

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

AnySource = AsyncCorralSandbox | CorralSandbox | AsyncSandbox | Sandbox | Opener
"""A sandbox, or something that opens one for each call, such as `corral.Environment`."""
_SANDBOXES = AsyncCorralSandbox, CorralSandbox, AsyncSandbox, Sandbox


@runtime_checkable
class ConsoleDeps(Protocol):
    """The deps of an agent whose tools take the sandbox from there."""

    @property
    def backend(self) -> Any:
        """The sandbox, or an environment."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunVariables:
    """A run as the context of an environment: the named values of its deps, and its conversation."""

    variables: Mapping[str, Any]
    conversation_id: str | None = None


@contextlib.asynccontextmanager
async def open_for_run(ctx: RunContext[Any], source: AnySource | None) -> AsyncIterator[AsyncCorralSandbox]:
    """The sandbox of one call. Raises: UserError if there is none, and what opening an environment raises."""
    found = source if source is not None else await _find_source(ctx)
    if isinstance(found, CorralSandbox):
        found = found.async_sandbox
    if isinstance(found, AsyncCorralSandbox):
        yield found.raising()
    elif isinstance(found, AsyncSandbox | Sandbox):
        yield AsyncCorralSandbox.over(found)
    else:
        async with found.open(make_context(ctx)) as box:
            yield AsyncCorralSandbox.over(box)


def check_source(source: Any) -> AnySource:
    """The source itself. Raises: UserError if it is neither a sandbox of ours nor an environment."""
    if isinstance(source, _SANDBOXES) or (not isinstance(source, type) and callable(getattr(source, "open", None))):
        found: AnySource = source
        return found
    raise UserError(f"{type(source).__name__} is neither a Corral sandbox nor an environment")


def make_context(ctx: RunContext[Any]) -> RunVariables:
    """The context for an environment: the items of deps, of `deps.variables`, or the fields of deps."""
    return RunVariables(_name_values(ctx.deps), ctx.conversation_id)


def _name_values(deps: Any) -> Mapping[str, Any]:
    for candidate in (deps, getattr(deps, "variables", None)):
        if isinstance(candidate, Mapping):
            return candidate
    if dataclasses.is_dataclass(deps) and not isinstance(deps, type):
        return {each.name: getattr(deps, each.name) for each in dataclasses.fields(deps)}
    fields = getattr(type(deps), "model_fields", None)  # a Pydantic model
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
