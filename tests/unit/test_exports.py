"""What is exported is pinned: a name that appears or vanishes is a decision, not an accident."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import corral

PINNED = [
    "ApplyConflictError",
    "ApplyResult",
    "FolderChange",
    "AsyncVolume",
    "MountError",
    "Volume",
    "VolumeError",
    "VolumeExistsError",
    "VolumeInUseError",
    "VolumeInfo",
    "VolumeNotFoundError",
    "AsyncSandbox",
    "BackendError",
    "BackendUnavailableError",
    "Capabilities",
    "CapabilityError",
    "CodeResult",
    "ContextInfo",
    "CorralError",
    "EditConflictError",
    "EditError",
    "DownloadResult",
    "Denial",
    "EditResult",
    "EngineFaultError",
    "Environment",
    "EnvironmentFullError",
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
    "Image",
    "HostExhaustedError",
    "InvalidCommandError",
    "JudgeError",
    "Language",
    "LeftBehindError",
    "Lifetime",
    "Mount",
    "NameTakenError",
    "NetworkLimits",
    "NetworkPolicy",
    "NotRecordedError",
    "OutputChunk",
    "PolicyError",
    "PortClosedError",
    "Process",
    "RateLimitedError",
    "ReplaceResult",
    "Resources",
    "RunEvent",
    "RunFolderError",
    "RunResult",
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
    "SandboxLinkError",
    "SandboxNoSpaceError",
    "SandboxNotFolderError",
    "SandboxPausedError",
    "SandboxPermissionError",
    "SandboxStoppedError",
    "SandboxUsage",
    "Secret",
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
    "Variable",
    "VariableError",
    "WatchEvent",
    "WorkdirError",
    "__version__",
    "backend_names",
    "get_backend",
    "register_language",
]


def test_front_door_has_these_names() -> None:
    assert sorted(corral.__all__) == sorted(PINNED)
    assert sorted(dir(corral)) == sorted(PINNED)


def test_every_name_leads_to_the_thing_of_that_name() -> None:
    wrong = {name for name in PINNED if getattr(getattr(corral, name), "__name__", name) != name}
    assert wrong == set()


def test_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        corral.no_such_name  # noqa: B018 - asking is the test


@pytest.mark.parametrize("package", ["corral", "corral.forge", "corral.forge.judge", "corral.adapters.pydantic_ai"])
def test_type_checkers_see_the_same_names_from_the_same_modules(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (table,) = (node for found in block.orelse for node in ast.walk(found) if isinstance(node, ast.Dict))
    loaded = {
        name: importlib.util.resolve_name(home, package)
        for home, names in ast.literal_eval(table).items()
        for name in names.split()
    }
    assert seen == loaded
    assert {*module.__all__} - {"__version__"} == {*loaded}


def test_importing_executes_nothing() -> None:
    """No backend, no engine and no click: `import corral` is cheap and works everywhere."""
    script = (
        "import sys, corral; print([name for name in sys.modules if name.startswith(('corral.', 'click', 'asyncio'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['corral.client', 'corral.client.exports']\n"
