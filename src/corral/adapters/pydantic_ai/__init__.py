"""Pydantic AI: the sandbox protocol, a toolset, and a workspace, on any backend.

The sandbox classes need nothing of Pydantic AI; the toolset and the workspace do (`pip install 'corral[pydantic-ai]'`).
Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.adapters.pydantic_ai.capability import ConsoleCapability, CorralWorkspaces
    from corral.adapters.pydantic_ai.daytona import AsyncDaytonaSandbox, DaytonaSandbox
    from corral.adapters.pydantic_ai.protocols import (
        AsyncBackendProtocol,
        AsyncBackgroundSandboxProtocol,
        AsyncSandboxProtocol,
        BackendProtocol,
        BackgroundSandboxProtocol,
        SandboxProtocol,
    )
    from corral.adapters.pydantic_ai.results import (
        BackgroundHandle,
        BackgroundOutput,
        BackgroundProcessInfo,
        EditResult,
        ExecuteResponse,
        FileInfo,
        GrepMatch,
        WriteResult,
    )
    from corral.adapters.pydantic_ai.rules import (
        DANGEROUS_COMMANDS,
        DEFAULT_RULESET,
        PERMISSIVE_RULESET,
        READONLY_RULESET,
        SECRETS_PATTERNS,
        STRICT_RULESET,
        SYSTEM_PATTERNS,
        OperationPermissions,
        PermissionAskError,
        PermissionChecker,
        PermissionDeniedError,
        PermissionRule,
        PermissionRuleset,
        create_ruleset,
    )
    from corral.adapters.pydantic_ai.runtime import BUILTIN_RUNTIMES, RuntimeConfig, get_runtime
    from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
    from corral.adapters.pydantic_ai.sessions import SessionManager
    from corral.adapters.pydantic_ai.source import ConsoleDeps
    from corral.adapters.pydantic_ai.sync import CorralSandbox
    from corral.adapters.pydantic_ai.toolset import CorralToolset, create_console_toolset
    from corral.adapters.pydantic_ai.workspace import CorralWorkspace
    from corral.tools.hashline import (
        apply_hashline_edit,
        apply_hashline_edit_with_summary,
        format_hashline_output,
        line_hash,
    )

_ROOM = "corral.adapters.pydantic_ai"
_NAMES = {
    f"{_ROOM}.capability": "ConsoleCapability CorralWorkspaces",
    f"{_ROOM}.daytona": "AsyncDaytonaSandbox DaytonaSandbox",
    f"{_ROOM}.protocols": "AsyncBackendProtocol AsyncBackgroundSandboxProtocol AsyncSandboxProtocol BackendProtocol "
    "BackgroundSandboxProtocol SandboxProtocol",
    f"{_ROOM}.results": "BackgroundHandle BackgroundOutput BackgroundProcessInfo EditResult ExecuteResponse FileInfo "
    "GrepMatch WriteResult",
    f"{_ROOM}.rules": "DANGEROUS_COMMANDS DEFAULT_RULESET PERMISSIVE_RULESET READONLY_RULESET SECRETS_PATTERNS "
    "STRICT_RULESET SYSTEM_PATTERNS OperationPermissions PermissionAskError PermissionChecker PermissionDeniedError "
    "PermissionRule PermissionRuleset create_ruleset",
    f"{_ROOM}.runtime": "BUILTIN_RUNTIMES RuntimeConfig get_runtime",
    f"{_ROOM}.sandbox": "AsyncCorralSandbox",
    f"{_ROOM}.sessions": "SessionManager",
    f"{_ROOM}.source": "ConsoleDeps",
    f"{_ROOM}.sync": "CorralSandbox",
    f"{_ROOM}.toolset": "CorralToolset create_console_toolset",
    f"{_ROOM}.workspace": "CorralWorkspace",
    "corral.tools.hashline": "apply_hashline_edit apply_hashline_edit_with_summary format_hashline_output line_hash",
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BUILTIN_RUNTIMES",
    "DANGEROUS_COMMANDS",
    "DEFAULT_RULESET",
    "PERMISSIVE_RULESET",
    "READONLY_RULESET",
    "SECRETS_PATTERNS",
    "STRICT_RULESET",
    "SYSTEM_PATTERNS",
    "AsyncBackendProtocol",
    "AsyncBackgroundSandboxProtocol",
    "AsyncCorralSandbox",
    "AsyncDaytonaSandbox",
    "AsyncSandboxProtocol",
    "BackendProtocol",
    "BackgroundHandle",
    "BackgroundOutput",
    "BackgroundProcessInfo",
    "BackgroundSandboxProtocol",
    "ConsoleCapability",
    "ConsoleDeps",
    "CorralSandbox",
    "CorralToolset",
    "CorralWorkspace",
    "CorralWorkspaces",
    "DaytonaSandbox",
    "EditResult",
    "ExecuteResponse",
    "FileInfo",
    "GrepMatch",
    "OperationPermissions",
    "PermissionAskError",
    "PermissionChecker",
    "PermissionDeniedError",
    "PermissionRule",
    "PermissionRuleset",
    "RuntimeConfig",
    "SandboxProtocol",
    "SessionManager",
    "WriteResult",
    "apply_hashline_edit",
    "apply_hashline_edit_with_summary",
    "create_console_toolset",
    "create_ruleset",
    "format_hashline_output",
    "get_runtime",
    "line_hash",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pydantic_ai":
            raise
        raise ImportError(f"{name} needs Pydantic AI: pip install 'corral[pydantic-ai]'", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
