"""A missing need that was required is a failure, and so is a skip without a reason."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT

TESTS = """
import pytest

@pytest.mark.needs_docker
def test_with_docker():
    pass

def test_that_skips_itself():
    pytest.skip("felt like it")

def test_that_passes():
    pass
"""

# Plugins of others take seconds to import, and none has a part in this.
ENV = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_pytest(folder: Path, *options: str) -> str:
    file = folder / "test_sample.py"
    file.write_text(TESTS, encoding="utf-8")
    # A PATH without docker, so that the answer is the same on every machine.
    env = ENV | {"PATH": ""}
    argv = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-rfs", *options, str(file)]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True).stdout


@pytest.mark.check
def test_a_lack_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    output = run_pytest(tmp_path)
    assert "1 passed, 2 skipped" in output
    assert "needs docker: docker is not on PATH" in output


def test_a_required_lack_is_a_failure(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "--require=docker,root")
    assert "--require=docker: docker is not on PATH" in output
    assert re.search(r"1 failed, 1 passed, (\d+ warnings?, )?1 error", output)


@pytest.mark.check
def test_a_lack_that_is_not_required_stays_a_skip_in_a_strict_run(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "--require=git", "-k", "docker or passes")
    assert "1 passed, 1 skipped" in output


def test_an_unknown_requirement_is_refused(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "-p", "conftest", "--require=dokcer"]
    done = subprocess.run(argv, cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 4
    assert "--require: unknown dokcer; there are root, " in done.stderr
