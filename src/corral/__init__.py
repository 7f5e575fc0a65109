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
        NameTakenError,
        NotRecordedError,
        PolicyError,
        SandboxClosedError,
        SandboxError,
        SandboxFileError,
        SandboxFileExistsError,
        SandboxFileInterruptedError,
        SandboxFileKindError,
        SandboxFileNotFoundError,
        SandboxFileTooLargeError,
        SandboxGoneError,
        SandboxIsFolderError,
        SandboxNoSpaceError,
        SandboxNotFolderError,
        SandboxPausedError,
        SandboxPermissionError,
        SandboxStoppedError,
        SessionEndedError,
        SnapshotNotFoundError,
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
        SnapshotInfo,
        Usage,
        WatchEvent,
    )
    from corral.spec import Lifetime, NetworkPolicy, Resources, Spec
    from corral.sync import Files, Process, Sandbox, ShellSession, Terminal

__version__ = "0.1.0"

_HOME_OF = {
    "AsyncSandbox": "corral.door",
    "BackendError": "corral.errors",
    "BackendUnavailableError": "corral.errors",
    "Capabilities": "corral.results",
    "CapabilityError": "corral.errors",
    "CodeResult": "corral.results",
    "CorralError": "corral.errors",
    "EditConflictError": "corral.errors",
    "EditError": "corral.errors",
    "EditResult": "corral.results",
    "EngineFaultError": "corral.errors",
    "Event": "corral.results",
    "ExecError": "corral.errors",
    "ExecResult": "corral.results",
    "ExecTimeoutError": "corral.errors",
    "ExitError": "corral.errors",
    "FileInfo": "corral.results",
    "Files": "corral.sync",
    "GlobResult": "corral.results",
    "GrepMatch": "corral.results",
    "GrepResult": "corral.results",
    "InvalidCommandError": "corral.errors",
    "Language": "corral.languages",
    "Lifetime": "corral.spec",
    "NameTakenError": "corral.errors",
    "NetworkPolicy": "corral.spec",
    "NotRecordedError": "corral.errors",
    "OutputChunk": "corral.results",
    "PolicyError": "corral.errors",
    "Process": "corral.sync",
    "ReplaceResult": "corral.results",
    "Resources": "corral.spec",
    "Runtime": "corral.languages",
    "Sandbox": "corral.sync",
    "SandboxClosedError": "corral.errors",
    "SandboxError": "corral.errors",
    "SandboxFileError": "corral.errors",
    "SandboxFileExistsError": "corral.errors",
    "SandboxFileInterruptedError": "corral.errors",
    "SandboxFileKindError": "corral.errors",
    "SandboxFileNotFoundError": "corral.errors",
    "SandboxFileTooLargeError": "corral.errors",
    "SandboxGoneError": "corral.errors",
    "SandboxInfo": "corral.results",
    "SandboxIsFolderError": "corral.errors",
    "SandboxNoSpaceError": "corral.errors",
    "SandboxNotFolderError": "corral.errors",
    "SandboxPausedError": "corral.errors",
    "SandboxPermissionError": "corral.errors",
    "SandboxStoppedError": "corral.errors",
    "SandboxUsage": "corral.results",
    "SessionEndedError": "corral.errors",
    "ShellSession": "corral.sync",
    "SnapshotInfo": "corral.results",
    "SnapshotNotFoundError": "corral.errors",
    "Spec": "corral.spec",
    "SpecError": "corral.errors",
    "Terminal": "corral.sync",
    "UnknownBackendError": "corral.errors",
    "UnknownLanguageError": "corral.errors",
    "Usage": "corral.results",
    "WatchEvent": "corral.results",
    "WorkdirError": "corral.errors",
    "backend_names": "corral.backends.registry",
    "get_backend": "corral.backends.registry",
    "register_language": "corral.languages",
}

__all__ = [
    "AsyncSandbox",
    "BackendError",
    "BackendUnavailableError",
    "Capabilities",
    "CapabilityError",
    "CodeResult",
    "CorralError",
    "EditConflictError",
    "EditError",
    "EditResult",
    "EngineFaultError",
    "Event",
    "ExecError",
    "ExecResult",
    "ExecTimeoutError",
    "ExitError",
    "FileInfo",
    "Files",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "InvalidCommandError",
    "Language",
    "Lifetime",
    "NameTakenError",
    "NetworkPolicy",
    "NotRecordedError",
    "OutputChunk",
    "PolicyError",
    "Process",
    "ReplaceResult",
    "Resources",
    "Runtime",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileExistsError",
    "SandboxFileInterruptedError",
    "SandboxFileKindError",
    "SandboxFileNotFoundError",
    "SandboxFileTooLargeError",
    "SandboxGoneError",
    "SandboxInfo",
    "SandboxIsFolderError",
    "SandboxNoSpaceError",
    "SandboxNotFolderError",
    "SandboxPausedError",
    "SandboxPermissionError",
    "SandboxStoppedError",
    "SandboxUsage",
    "SessionEndedError",
    "ShellSession",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "Spec",
    "SpecError",
    "Terminal",
    "UnknownBackendError",
    "UnknownLanguageError",
    "Usage",
    "WatchEvent",
    "WorkdirError",
    "__version__",
    "backend_names",
    "get_backend",
    "register_language",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
