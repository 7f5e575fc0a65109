"""Pydantic AI: the sandbox protocol, a toolset, and a workspace, on any backend.

The sandbox classes need nothing of Pydantic AI; the toolset and the workspace do (`pip install 'corral[pydantic-ai]'`).
Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.adapters.pydantic_ai.capability import ConsoleCapability, CorralWorkspaces
    from corral.adapters.pydantic_ai.checker import PermissionAskError, PermissionChecker, PermissionDeniedError
    from corral.adapters.pydantic_ai.daytona import AsyncDaytonaSandbox, DaytonaSandbox
    from corral.adapters.pydantic_ai.hashline import (
        apply_hashline_edit,
        apply_hashline_edit_with_summary,
        format_hashline_output,
        line_hash,
    )
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

_HOME_OF = {
    "AsyncBackendProtocol": "protocols",
    "AsyncBackgroundSandboxProtocol": "protocols",
    "AsyncCorralSandbox": "sandbox",
    "AsyncDaytonaSandbox": "daytona",
    "AsyncSandboxProtocol": "protocols",
    "BUILTIN_RUNTIMES": "runtime",
    "BackendProtocol": "protocols",
    "BackgroundHandle": "results",
    "BackgroundOutput": "results",
    "BackgroundProcessInfo": "results",
    "BackgroundSandboxProtocol": "protocols",
    "ConsoleCapability": "capability",
    "ConsoleDeps": "source",
    "CorralSandbox": "sync",
    "CorralToolset": "toolset",
    "CorralWorkspace": "workspace",
    "CorralWorkspaces": "capability",
    "DANGEROUS_COMMANDS": "rules",
    "DEFAULT_RULESET": "rules",
    "DaytonaSandbox": "daytona",
    "EditResult": "results",
    "ExecuteResponse": "results",
    "FileInfo": "results",
    "GrepMatch": "results",
    "OperationPermissions": "rules",
    "PERMISSIVE_RULESET": "rules",
    "PermissionAskError": "checker",
    "PermissionChecker": "checker",
    "PermissionDeniedError": "checker",
    "PermissionRule": "rules",
    "PermissionRuleset": "rules",
    "READONLY_RULESET": "rules",
    "RuntimeConfig": "runtime",
    "SECRETS_PATTERNS": "rules",
    "STRICT_RULESET": "rules",
    "SYSTEM_PATTERNS": "rules",
    "SandboxProtocol": "protocols",
    "SessionManager": "sessions",
    "WriteResult": "results",
    "apply_hashline_edit": "hashline",
    "apply_hashline_edit_with_summary": "hashline",
    "create_console_toolset": "toolset",
    "create_ruleset": "rules",
    "format_hashline_output": "hashline",
    "get_runtime": "runtime",
    "line_hash": "hashline",
}

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
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pydantic_ai":
            raise
        raise ImportError(f"{name} needs Pydantic AI: pip install 'corral[pydantic-ai]'", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
