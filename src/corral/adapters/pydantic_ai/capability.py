"""Capabilities for agents: the console tools, and workspaces."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef

from corral.adapters.pydantic_ai.opening import LIFETIME_SECONDS
from corral.adapters.pydantic_ai.rules import AskCallback, AskFallback, PermissionRuleset
from corral.adapters.pydantic_ai.source import AnySource
from corral.adapters.pydantic_ai.toolset import CorralToolset, EditFormat
from corral.adapters.pydantic_ai.workspace import CorralWorkspace
from corral.protocol import Backend
from corral.spec import Spec
from corral.tools.permission import Permissions


@dataclass
class ConsoleCapability(AbstractCapability[Any]):
    """The console tools for an agent. Arguments are those of `CorralToolset`."""

    include_execute: bool = True
    edit_format: EditFormat = "str_replace"
    permissions: Permissions | PermissionRuleset | None = None
    _: KW_ONLY
    sandbox: AnySource | None = None
    include_background: bool = False
    hide_denied: bool = False
    image_support: bool = True
    ask_callback: AskCallback | None = None
    ask_fallback: AskFallback = "error"

    def get_toolset(self) -> AbstractToolset[Any]:
        """The toolset for an agent."""
        return CorralToolset(
            self.sandbox,
            include_execute=self.include_execute,
            include_background=self.include_background,
            hide_denied=self.hide_denied,
            edit_format=self.edit_format,
            permissions=self.permissions,
            image_support=self.image_support,
            ask_callback=self.ask_callback,
            ask_fallback=self.ask_fallback,
        )


@dataclass
class CorralWorkspaces(AbstractCapability[Any]):
    """Gives every run a `CorralWorkspace`: a new one, or the one named by its history or `workspace=`."""

    _: KW_ONLY
    backend: str | Backend = "embedded"
    spec: Spec = field(default_factory=Spec)
    lifetime_seconds: float | None = LIFETIME_SECONDS

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The workspace of a run. None for a ref of another capability or backend."""
        try:
            return CorralWorkspace(ref, backend=self.backend, spec=self.spec, lifetime_seconds=self.lifetime_seconds)
        except ValueError:  # not our ref
            return None
