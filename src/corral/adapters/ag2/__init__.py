"""AG2: its classic code executor, its environments and its tools, on any of Corral's backends.

- `autogen.coding` of ag2 0.12 to 0.14: `DaytonaCodeExecutor`, `DaytonaCodeResult`, `DaytonaSandboxResources`, and
  `SandboxCodeExecutor` on any backend.
- `CodeEnvironment` of ag2 0.12 and 0.13: `DaytonaCodeEnvironment`, `DockerCodeEnvironment`.
- `SandboxFactory` of ag2 0.13 and later: `DaytonaEnvironment`, `DockerEnvironment`, `LocalEnvironment`, and
  `CorralEnvironment` on any backend; and the sandboxes `DaytonaSandbox`, `DockerSandbox`, `LocalSandbox`.
- for agents: `SandboxCodeTool`, `SandboxShellTool`.

AG2 is imported when a name that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HERE = "corral.adapters.ag2"
_HOME_OF = {
    "BlockResult": "coding",
    "CodeBlock": "coding",
    "DaytonaCodeResult": "coding",
    "MarkdownCodeExtractor": "coding",
    "SandboxCodeResult": "coding",
    "SandboxCodeExecutor": "executor",
    "DaytonaCodeExecutor": "daytona",
    "DaytonaResources": "service",
    "DaytonaSandboxResources": "service",
    "CorralEnvironment": "environments",
    "DaytonaEnvironment": "environments",
    "DockerEnvironment": "environments",
    "LocalEnvironment": "environments",
    "DaytonaSandbox": "owned",
    "DockerSandbox": "owned",
    "LocalSandbox": "owned",
    "CodeRunner": "code",
    "DaytonaCodeEnvironment": "code",
    "DockerCodeEnvironment": "code",
    "SandboxCodeTool": "tools",
    "SandboxShellTool": "tools",
}
_THEIRS = {
    "CodeEnvironment": "tools.code.environment.base",
    "CodeLanguage": "tools.code.environment.base",
    "CodeRunResult": "tools.code.environment.base",
    "ExecResult": "tools.sandbox",
    "LanguageRunner": "tools.sandbox",
    "Variable": "annotations",
}

__all__ = [*_HOME_OF, *_THEIRS]  # noqa: PLE0604 - texts, all of them


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"{_HERE}.{_HOME_OF[name]}"), name)
    elif name in _THEIRS:
        from corral.adapters.ag2 import framework

        value = framework.get(_THEIRS[name], name)
    else:
        raise AttributeError(f"module {_HERE!r} has no attribute {name!r}")
    globals()[name] = value
    return value
