"""Pydantic AI: the sandbox protocol, a toolset, and a workspace, on any backend.

The toolset and the workspace need Pydantic AI (`pip install 'corral[pydantic-ai]'`); the sandbox classes do not.
Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.client.exports import load_lazily

if TYPE_CHECKING:
    from corral.adapters.pydantic_ai.capability import ConsoleCapability as ConsoleCapability
    from corral.adapters.pydantic_ai.capability import CorralWorkspaces as CorralWorkspaces
    from corral.adapters.pydantic_ai.daytona import AsyncDaytonaSandbox as AsyncDaytonaSandbox
    from corral.adapters.pydantic_ai.daytona import DaytonaSandbox as DaytonaSandbox
    from corral.adapters.pydantic_ai.protocols import AsyncBackendProtocol as AsyncBackendProtocol
    from corral.adapters.pydantic_ai.protocols import AsyncBackgroundSandboxProtocol as AsyncBackgroundSandboxProtocol
    from corral.adapters.pydantic_ai.protocols import AsyncSandboxProtocol as AsyncSandboxProtocol
    from corral.adapters.pydantic_ai.protocols import BackendProtocol as BackendProtocol
    from corral.adapters.pydantic_ai.protocols import BackgroundSandboxProtocol as BackgroundSandboxProtocol
    from corral.adapters.pydantic_ai.protocols import SandboxProtocol as SandboxProtocol
    from corral.adapters.pydantic_ai.results import BackgroundOutput as BackgroundOutput
    from corral.adapters.pydantic_ai.results import EditResult as EditResult
    from corral.adapters.pydantic_ai.results import ExecuteResponse as ExecuteResponse
    from corral.adapters.pydantic_ai.results import FileInfo as FileInfo
    from corral.adapters.pydantic_ai.results import GrepMatch as GrepMatch
    from corral.adapters.pydantic_ai.results import WriteResult as WriteResult
    from corral.adapters.pydantic_ai.rules import DANGEROUS_COMMANDS as DANGEROUS_COMMANDS
    from corral.adapters.pydantic_ai.rules import DEFAULT_RULESET as DEFAULT_RULESET
    from corral.adapters.pydantic_ai.rules import PERMISSIVE_RULESET as PERMISSIVE_RULESET
    from corral.adapters.pydantic_ai.rules import READONLY_RULESET as READONLY_RULESET
    from corral.adapters.pydantic_ai.rules import SECRETS_PATTERNS as SECRETS_PATTERNS
    from corral.adapters.pydantic_ai.rules import STRICT_RULESET as STRICT_RULESET
    from corral.adapters.pydantic_ai.rules import SYSTEM_PATTERNS as SYSTEM_PATTERNS
    from corral.adapters.pydantic_ai.rules import OperationPermissions as OperationPermissions
    from corral.adapters.pydantic_ai.rules import PermissionAskError as PermissionAskError
    from corral.adapters.pydantic_ai.rules import PermissionChecker as PermissionChecker
    from corral.adapters.pydantic_ai.rules import PermissionDeniedError as PermissionDeniedError
    from corral.adapters.pydantic_ai.rules import PermissionRule as PermissionRule
    from corral.adapters.pydantic_ai.rules import PermissionRuleset as PermissionRuleset
    from corral.adapters.pydantic_ai.rules import create_ruleset as create_ruleset
    from corral.adapters.pydantic_ai.runtime import BUILTIN_RUNTIMES as BUILTIN_RUNTIMES
    from corral.adapters.pydantic_ai.runtime import RuntimeConfig as RuntimeConfig
    from corral.adapters.pydantic_ai.runtime import get_runtime as get_runtime
    from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox as AsyncCorralSandbox
    from corral.adapters.pydantic_ai.sessions import SessionManager as SessionManager
    from corral.adapters.pydantic_ai.source import ConsoleDeps as ConsoleDeps
    from corral.adapters.pydantic_ai.sync import CorralSandbox as CorralSandbox
    from corral.adapters.pydantic_ai.toolset import CorralToolset as CorralToolset
    from corral.adapters.pydantic_ai.toolset import create_console_toolset as create_console_toolset
    from corral.adapters.pydantic_ai.workspace import CorralWorkspace as CorralWorkspace
    from corral.tools.background import BackgroundHandle as BackgroundHandle
    from corral.tools.background import BackgroundProcessInfo as BackgroundProcessInfo
    from corral.tools.hashline import apply_hashline_edit as apply_hashline_edit
    from corral.tools.hashline import apply_hashline_edit_with_summary as apply_hashline_edit_with_summary
    from corral.tools.hashline import format_hashline_output as format_hashline_output
    from corral.tools.hashline import line_hash as line_hash
else:
    _load, __dir__, __all__ = load_lazily(
        __name__,
        {
            ".capability": "ConsoleCapability CorralWorkspaces",
            ".daytona": "AsyncDaytonaSandbox DaytonaSandbox",
            ".protocols": (
                "AsyncBackendProtocol AsyncBackgroundSandboxProtocol AsyncSandboxProtocol BackendProtocol "
                "BackgroundSandboxProtocol SandboxProtocol"
            ),
            ".results": "BackgroundOutput EditResult ExecuteResponse FileInfo GrepMatch WriteResult",
            ".rules": (
                "DANGEROUS_COMMANDS DEFAULT_RULESET PERMISSIVE_RULESET READONLY_RULESET SECRETS_PATTERNS "
                "STRICT_RULESET SYSTEM_PATTERNS OperationPermissions PermissionAskError PermissionChecker "
                "PermissionDeniedError PermissionRule PermissionRuleset create_ruleset"
            ),
            ".runtime": "BUILTIN_RUNTIMES RuntimeConfig get_runtime",
            ".sandbox": "AsyncCorralSandbox",
            ".sessions": "SessionManager",
            ".source": "ConsoleDeps",
            ".sync": "CorralSandbox",
            ".toolset": "CorralToolset create_console_toolset",
            ".workspace": "CorralWorkspace",
            "corral.tools.background": "BackgroundHandle BackgroundProcessInfo",
            "corral.tools.hashline": (
                "apply_hashline_edit apply_hashline_edit_with_summary format_hashline_output line_hash"
            ),
        },
    )

    def __getattr__(name: str) -> object:
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pydantic_ai":
                raise
            raise ImportError(
                f"{name} needs Pydantic AI: pip install 'corral[pydantic-ai]'", name=error.name
            ) from error
