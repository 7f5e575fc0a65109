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

from typing import Any

from corral.client.exports import load_lazily

_load, __dir__, __all__ = load_lazily(
    __name__,
    {
        ".code": "CodeRunner DaytonaCodeEnvironment DockerCodeEnvironment",
        ".coding": "BlockResult CodeBlock DaytonaCodeResult MarkdownCodeExtractor SandboxCodeResult",
        ".daytona": "DaytonaCodeExecutor",
        ".environments": "CorralEnvironment DaytonaEnvironment DockerEnvironment LocalEnvironment",
        ".executor": "SandboxCodeExecutor",
        ".framework": "CodeEnvironment CodeLanguage CodeRunResult ExecResult LanguageRunner Variable",
        ".owned": "DaytonaSandbox DockerSandbox LocalSandbox",
        ".service": "DaytonaResources DaytonaSandboxResources",
        ".tools": "SandboxCodeTool SandboxShellTool",
    },
)


def __getattr__(name: str) -> Any:  # for type checkers: which classes there are depends on the installed AG2
    return _load(name)
