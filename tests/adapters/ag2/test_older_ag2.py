"""The same tests with ag2 0.14, the last with `autogen`. It can't be installed beside 1.x, so it has its own folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT
from support.serving import ServedProcess

PACKAGES = ("ag2==0.14.0", "daytona==0.226.1", "pytest>=9.0,<10", "anyio>=4.12")
FILES = ("test_executor.py", "test_environments.py", "test_state_table.py", "classic_checks.py", "compared_checks.py")
HERE = "not (daytona or docker)"
"""Of the rows that other backends have, those of the embedded engine."""


@pytest.mark.clients
@pytest.mark.needs_userns
@pytest.mark.needs_network
@pytest.mark.timeout(1200)  # sixty packages first
def test_ag2_0_14(tmp_path: Path, service: ServedProcess) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    run([str(uv), "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")])
    run([str(uv), "pip", "install", "--quiet", "--python", str(python), *PACKAGES, "-e", str(ROOT)])
    tests = [str(Path(__file__).parent / name) for name in FILES]
    settings = ["-c", os.devnull, f"--rootdir={ROOT}", "-o", f"pythonpath={ROOT / 'tests'}", "-o", "anyio_mode=auto"]
    quiet = ["-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore"]
    printed = run([str(python), "-m", "pytest", *settings, *quiet, "-k", HERE, *tests])
    assert " passed" in printed
    assert " skipped" not in printed
    for example in find_examples():
        assert "execution succeeded" in run([str(python), str(example)]), example.name


@pytest.mark.parametrize("name", FILES)
def test_these_files_need_nothing_of_conftest(name: str) -> None:
    """It is not loaded there: it imports backends whose packages are not installed beside ag2 0.14."""
    imported = r"^(?:from \S*conftest import|import \S*conftest)"
    assert not re.search(imported, (Path(__file__).parent / name).read_text(encoding="utf-8"), flags=re.MULTILINE)


def find_examples() -> list[Path]:
    """Those that are written for this ag2."""
    found = [path for path in sorted((ROOT / "examples").glob("*.py")) if "ag2==0.14" in path.read_text()]
    assert found
    return found


def run(argv: list[str]) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "VIRTUAL_ENV"))}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=1100)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-8000:]}{done.stderr[-4000:]}"
    return done.stdout
