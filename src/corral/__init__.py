"""Corral runs the code that AI agents write, in sandboxes.

    from corral import Sandbox

    with Sandbox() as box:
        print(box.run_code("print(6 * 7)").stdout)

The names below are loaded when they are first used: importing `corral` executes nothing and works on any system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.client.exports import load_lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from corral.client.registry import backend_names as backend_names
    from corral.client.registry import get_backend as get_backend
    from corral.client.sandbox import AsyncSandbox as AsyncSandbox
    from corral.client.sync import Files as Files
    from corral.client.sync import Process as Process
    from corral.client.sync import Sandbox as Sandbox
    from corral.client.sync import ShellSession as ShellSession
    from corral.client.sync import Terminal as Terminal
    from corral.client.volume import AsyncVolume as AsyncVolume
    from corral.client.volume import Volume as Volume
    from corral.environment.environment import Environment as Environment
    from corral.environment.variable import Variable as Variable
    from corral.errors import ApplyConflictError as ApplyConflictError
    from corral.errors import BackendError as BackendError
    from corral.errors import BackendUnavailableError as BackendUnavailableError
    from corral.errors import CapabilityError as CapabilityError
    from corral.errors import CorralError as CorralError
    from corral.errors import EditConflictError as EditConflictError
    from corral.errors import EditError as EditError
    from corral.errors import EngineFaultError as EngineFaultError
    from corral.errors import EnvironmentFullError as EnvironmentFullError
    from corral.errors import ExecError as ExecError
    from corral.errors import ExecTimeoutError as ExecTimeoutError
    from corral.errors import ExitError as ExitError
    from corral.errors import HostExhaustedError as HostExhaustedError
    from corral.errors import InvalidCommandError as InvalidCommandError
    from corral.errors import JudgeError as JudgeError
    from corral.errors import LeftBehindError as LeftBehindError
    from corral.errors import MountError as MountError
    from corral.errors import NameTakenError as NameTakenError
    from corral.errors import NotRecordedError as NotRecordedError
    from corral.errors import PolicyError as PolicyError
    from corral.errors import PortClosedError as PortClosedError
    from corral.errors import RateLimitedError as RateLimitedError
    from corral.errors import RunFolderError as RunFolderError
    from corral.errors import SandboxClosedError as SandboxClosedError
    from corral.errors import SandboxError as SandboxError
    from corral.errors import SandboxFileError as SandboxFileError
    from corral.errors import SandboxFileExistsError as SandboxFileExistsError
    from corral.errors import SandboxFileInterruptedError as SandboxFileInterruptedError
    from corral.errors import SandboxFileKindError as SandboxFileKindError
    from corral.errors import SandboxFileNotFoundError as SandboxFileNotFoundError
    from corral.errors import SandboxFileTooLargeError as SandboxFileTooLargeError
    from corral.errors import SandboxGoneError as SandboxGoneError
    from corral.errors import SandboxIsFolderError as SandboxIsFolderError
    from corral.errors import SandboxLinkError as SandboxLinkError
    from corral.errors import SandboxNoSpaceError as SandboxNoSpaceError
    from corral.errors import SandboxNotFolderError as SandboxNotFolderError
    from corral.errors import SandboxPausedError as SandboxPausedError
    from corral.errors import SandboxPermissionError as SandboxPermissionError
    from corral.errors import SandboxStoppedError as SandboxStoppedError
    from corral.errors import SessionEndedError as SessionEndedError
    from corral.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from corral.errors import SpecError as SpecError
    from corral.errors import UnknownBackendError as UnknownBackendError
    from corral.errors import UnknownLanguageError as UnknownLanguageError
    from corral.errors import VariableError as VariableError
    from corral.errors import VolumeError as VolumeError
    from corral.errors import VolumeExistsError as VolumeExistsError
    from corral.errors import VolumeInUseError as VolumeInUseError
    from corral.errors import VolumeNotFoundError as VolumeNotFoundError
    from corral.errors import WorkdirError as WorkdirError
    from corral.image import Image as Image
    from corral.languages import Language as Language
    from corral.languages import Runtime as Runtime
    from corral.languages import register_language as register_language
    from corral.mount import Mount as Mount
    from corral.results import ApplyResult as ApplyResult
    from corral.results import Capabilities as Capabilities
    from corral.results import CodeResult as CodeResult
    from corral.results import Denial as Denial
    from corral.results import DownloadResult as DownloadResult
    from corral.results import EditResult as EditResult
    from corral.results import Event as Event
    from corral.results import ExecResult as ExecResult
    from corral.results import FileInfo as FileInfo
    from corral.results import FolderChange as FolderChange
    from corral.results import GlobResult as GlobResult
    from corral.results import GrepMatch as GrepMatch
    from corral.results import GrepResult as GrepResult
    from corral.results import OutputChunk as OutputChunk
    from corral.results import ReplaceResult as ReplaceResult
    from corral.results import SandboxInfo as SandboxInfo
    from corral.results import SandboxUsage as SandboxUsage
    from corral.results import SnapshotInfo as SnapshotInfo
    from corral.results import Usage as Usage
    from corral.results import VolumeInfo as VolumeInfo
    from corral.results import WatchEvent as WatchEvent
    from corral.secret import Secret as Secret
    from corral.sessions.interpreter.events import ContextInfo as ContextInfo
    from corral.sessions.interpreter.events import RunEvent as RunEvent
    from corral.sessions.interpreter.events import RunResult as RunResult
    from corral.spec import Lifetime as Lifetime
    from corral.spec import NetworkLimits as NetworkLimits
    from corral.spec import NetworkPolicy as NetworkPolicy
    from corral.spec import Resources as Resources
    from corral.spec import Spec as Spec
else:
    __getattr__, __dir__, __all__ = load_lazily(
        __name__,
        {
            ".client.registry": "backend_names get_backend",
            ".client.sandbox": "AsyncSandbox",
            ".client.sync": "Files Process Sandbox ShellSession Terminal",
            ".client.volume": "AsyncVolume Volume",
            ".environment.environment": "Environment",
            ".environment.variable": "Variable",
            ".errors": (
                "ApplyConflictError BackendError BackendUnavailableError CapabilityError CorralError "
                "EditConflictError EditError EngineFaultError EnvironmentFullError ExecError ExecTimeoutError "
                "ExitError HostExhaustedError InvalidCommandError JudgeError LeftBehindError MountError "
                "NameTakenError NotRecordedError PolicyError PortClosedError RateLimitedError RunFolderError "
                "SandboxClosedError SandboxError SandboxFileError SandboxFileExistsError SandboxFileInterruptedError "
                "SandboxFileKindError SandboxFileNotFoundError SandboxFileTooLargeError SandboxGoneError "
                "SandboxIsFolderError SandboxLinkError SandboxNoSpaceError SandboxNotFolderError SandboxPausedError "
                "SandboxPermissionError SandboxStoppedError SessionEndedError SnapshotNotFoundError SpecError "
                "UnknownBackendError UnknownLanguageError VariableError VolumeError VolumeExistsError "
                "VolumeInUseError VolumeNotFoundError WorkdirError"
            ),
            ".image": "Image",
            ".languages": "Language Runtime register_language",
            ".mount": "Mount",
            ".results": (
                "ApplyResult Capabilities CodeResult Denial DownloadResult EditResult Event ExecResult FileInfo "
                "FolderChange GlobResult GrepMatch GrepResult OutputChunk ReplaceResult SandboxInfo SandboxUsage "
                "SnapshotInfo Usage VolumeInfo WatchEvent"
            ),
            ".sessions.interpreter.events": "ContextInfo RunEvent RunResult",
            ".secret": "Secret",
            ".spec": "Lifetime NetworkLimits NetworkPolicy Resources Spec",
        },
    )
    __all__.append("__version__")
