"""Folders in which foreign clients are installed as their users install them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.serving import ServedProcess

SCRIPTS = Path(__file__).parent / "scripts"

_INSTALL_SECONDS = 900
_SCRIPT_SECONDS = 1800  # a suite of hundreds of commands, on a machine with other work

RunClient = Callable[..., str]


@pytest.fixture
def run_python(server: ServedProcess, tmp_path: Path) -> Iterator[RunClient]:
    """Install packages into a venv of their own, run a script of `scripts/` in it, and give what it printed."""
    folder = tmp_path / "client"

    def run(script: str, *packages: str, runner: tuple[str, ...] = ()) -> str:
        python = _make_venv(folder, packages)
        return _run([str(python), "-I", *runner, str(SCRIPTS / script)], server=server, folder=tmp_path)

    yield run
    shutil.rmtree(folder, ignore_errors=True)  # some have a hundred megabytes of dependencies


@pytest.fixture
def run_node(server: ServedProcess, tmp_path: Path) -> Iterator[RunClient]:
    """The same with npm: the script is copied beside `node_modules`, where Node looks for what it imports."""
    folder = tmp_path / "client"

    def run(script: str, *packages: str) -> str:
        folder.mkdir()
        npm = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--ignore-scripts",
            "--prefix",
            str(folder),
            *packages,
        ]
        _install(npm)
        copy = shutil.copy(SCRIPTS / script, folder)
        return _run(["node", str(copy)], server=server, folder=folder)

    yield run
    shutil.rmtree(folder, ignore_errors=True)


def _make_venv(folder: Path, packages: tuple[str, ...]) -> Path:
    python = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        _install([str(uv), "venv", "--quiet", "--python", sys.executable, str(folder)])
        _install([str(uv), "pip", "install", "--quiet", "--python", str(python), *packages])
    else:
        _install([sys.executable, "-m", "venv", str(folder)])
        _install([str(python), "-m", "pip", "install", "--quiet", *packages])
    return python


def _install(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"


def _run(argv: list[str], *, server: ServedProcess, folder: Path) -> str:
    """What any user of Daytona sets: two variables. The script ends by saying that it came to its end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DAYTONA_", "CORRAL_", "PYTHON"))}
    env |= {"DAYTONA_API_URL": server.url, "DAYTONA_API_KEY": server.key}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd=folder, timeout=_SCRIPT_SECONDS
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
