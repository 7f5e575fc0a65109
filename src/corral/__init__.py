"""Corral runs the code that AI agents write, in sandboxes.

    from corral import Sandbox

    with Sandbox() as box:
        print(box.run_code("print(6 * 7)").stdout)

The names below are loaded when they are first used: importing `corral` executes nothing and works on any system.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.backends.registry import backend_names, get_backend
    from corral.door import AsyncSandbox
    from corral.errors import (
        BackendError,
        BackendUnavailableError,
        CapabilityError,
        CorralError,
        EditConflictError,
        EditError,
        EngineFaultError,
        ExecError,
        ExecTimeoutError,
        ExitError,
        InvalidCommandError,
        PolicyError,
        SandboxClosedError,
        SandboxError,
        SandboxFileError,
        SandboxFileExistsError,
        SandboxFileKindError,
        SandboxFileNotFoundError,
        SandboxFileTooLargeError,
        SandboxGoneError,
        SandboxIsFolderError,
        SandboxNoSpaceError,
        SandboxNotFolderError,
        SandboxPermissionError,
        SpecError,
        UnknownBackendError,
        UnknownLanguageError,
        WorkdirError,
    )
    from corral.languages import Language, Runtime, register_language
    from corral.results import (
        Capabilities,
        CodeResult,
        EditResult,
        Event,
        ExecResult,
        FileInfo,
        GlobResult,
        GrepMatch,
        GrepResult,
        OutputChunk,
        ReplaceResult,
        SandboxInfo,
        SandboxUsage,
        Usage,
        WatchEvent,
    )
    from corral.spec import Lifetime, NetworkPolicy, Resources, Spec
    from corral.sync import Files, Process, Sandbox

__version__ = "0.1.0"

_HOMES = {
    "corral.backends.registry": ("backend_names", "get_backend"),
    "corral.door": ("AsyncSandbox",),
    "corral.errors": (
        "BackendError", "BackendUnavailableError", "CapabilityError", "CorralError", "EditConflictError", "EditError",
        "EngineFaultError", "ExecError", "ExecTimeoutError", "ExitError", "InvalidCommandError", "PolicyError",
        "SandboxClosedError", "SandboxError", "SandboxFileError", "SandboxFileExistsError", "SandboxFileKindError",
        "SandboxFileNotFoundError", "SandboxFileTooLargeError", "SandboxGoneError", "SandboxIsFolderError",
        "SandboxNoSpaceError", "SandboxNotFolderError", "SandboxPermissionError", "SpecError", "UnknownBackendError",
        "UnknownLanguageError", "WorkdirError",
    ),
    "corral.languages": ("Language", "Runtime", "register_language"),
    "corral.results": (
        "Capabilities", "CodeResult", "EditResult", "Event", "ExecResult", "FileInfo", "GlobResult", "GrepMatch",
        "GrepResult", "OutputChunk", "ReplaceResult", "SandboxInfo", "SandboxUsage", "Usage", "WatchEvent",
    ),
    "corral.spec": ("Lifetime", "NetworkPolicy", "Resources", "Spec"),
    "corral.sync": ("Files", "Process", "Sandbox"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - computed from the table above, which a test compares with the imports for type checkers
    "__version__",
    *sorted(_HOME_OF),
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
