"""Where the embedded backend keeps its data, and which programs of the host its sandboxes can use."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from corral.backends.embedded.certificates import find_certificates
from corral.engine.base import BIN, BaseDescription, ToolFolder

PYTHON_AT = "/opt/corral/python"
NODE_AT = "/opt/corral/node"
TYPESCRIPT_AT = "/opt/corral/typescript"
TOOLS_AT = "/opt/corral/tools"
PACKAGES_AT = "/opt/corral/packages"
VENV_AT = "/opt/corral/venv"
VENV_PROGRAMS_AT = "/opt/corral/venv-programs"
PATH = f"{BIN}:/home/daytona/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SINGLE_BINARIES = ("bun", "deno")


def default_data_folder(*, configured: bool = True) -> Path:
    """`CORRAL_DATA_DIR` (if `configured`), else /var/lib/corral as root, else the user's data folder.

    Paths with links are refused, and on some systems /home is a link: so the default is the real path.
    """
    chosen = os.environ.get("CORRAL_DATA_DIR")
    if chosen and configured:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/corral")
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local/share").resolve() / "corral"


@dataclass(frozen=True, slots=True)
class HostTools:
    """The interpreters of this machine, as sandboxes see them."""

    description: BaseDescription
    env: dict[str, str] = field(default_factory=dict)


def find_host_tools(*, owned: bool, typescript: Path | None) -> HostTools:
    """Find Python (the running one), Node, bun and deno; `typescript` is Corral's own small runtime."""
    tools: list[ToolFolder] = []
    commands: dict[str, str] = {}
    env: dict[str, str] = {}
    _add_python(tools, commands, env)
    _add_node(tools, commands)
    for name in _SINGLE_BINARIES:
        _add_binary(name, tools, commands)
    if typescript is not None:
        tools.append(ToolFolder(str(typescript), TYPESCRIPT_AT))
        commands["ts-node"] = f'#!/bin/sh\nexec node {TYPESCRIPT_AT}/ts-node.js "$@"\n'
    return HostTools(BaseDescription(tuple(tools), commands, owned, find_certificates()), env)


def python_inside() -> str:
    """The path of the Python that sandboxes run, which is the one that runs Corral."""
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return executable if _inside_usr(prefix) else f"{PYTHON_AT}/{os.path.relpath(executable, prefix)}"


def _add_python(tools: list[ToolFolder], commands: dict[str, str], env: dict[str, str]) -> None:
    prefix = os.path.realpath(sys.base_prefix)
    python = python_inside()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not _inside_usr(prefix):
        tools.append(ToolFolder(prefix, PYTHON_AT))
        env["PATH"] = PATH.replace(BIN, f"{BIN}:{PYTHON_AT}/bin", 1)
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            env["LD_LIBRARY_PATH"] = f"{PYTHON_AT}/lib"  # its own search path does not exist inside
    else:
        # Debian has no `python`. Elsewhere the folder itself is on PATH: a link would mislead `python -m venv`.
        for name in ("python", "python3", f"python{version}"):
            commands[name] = python
    for name in ("pip", "pip3"):
        # The host's pip script begins with a path of the host; `-m pip` is the same program.
        commands[name] = f'#!/bin/sh\nexec {python} -m pip "$@"\n'


def _add_node(tools: list[ToolFolder], commands: dict[str, str]) -> None:
    node = _which_outside_usr("node")
    if node is None:
        return
    prefix = node.parent.parent
    if not (prefix / "include/node/node_version.h").is_file() and not (prefix / "lib/node_modules").is_dir():
        return  # a single binary in some folder, whose other files must not be shown
    tools.append(ToolFolder(str(prefix), NODE_AT))
    for name in ("node", "npm", "npx", "corepack"):
        if (prefix / "bin" / name).exists():
            commands[name] = f"{NODE_AT}/bin/{name}"


def _add_binary(name: str, tools: list[ToolFolder], commands: dict[str, str]) -> None:
    path = _which_outside_usr(name)
    if path is None or path.parent.parent.name not in (f".{name}", name):
        return  # only from its own installation folder
    tools.append(ToolFolder(str(path.parent), f"{TOOLS_AT}/{name}"))
    commands[name] = f"{TOOLS_AT}/{name}/{path.name}"


def _which_outside_usr(name: str) -> Path | None:
    found = shutil.which(name)
    if found is None:
        return None
    path = Path(found).resolve()
    return None if _inside_usr(str(path)) or not os.access(path, os.X_OK) else path


def _inside_usr(path: str) -> bool:
    return path == "/usr" or path.startswith("/usr/")
