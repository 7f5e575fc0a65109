"""Files of the base that the host's other users can't read can't be read in sandboxes either."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.ground import Grounds
from corral.backends.embedded.pipoutput import Tell
from corral.backends.embedded.settings import HostTools
from corral.engine.base import ToolFolder
from corral.engine.private import FRESH_SECONDS, name_of
from corral.engine.uidrange import lock_folder
from corral.spec import Spec


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    folder = tmp_path / "shown"
    for name, mode in (("open", 0o755), ("closed", 0o700)):
        (folder / name).mkdir(parents=True)
        for file, bits in (("readable", 0o644), ("secret", 0o600), ("for a group", 0o640)):
            (folder / name / file).write_text("kept by the host")
            (folder / name / file).chmod(bits)
        (folder / name).chmod(mode)
    (folder / "link").symlink_to("open/secret")
    folder.chmod(0o755)
    return folder


async def fetch_nothing(packages: tuple[str, ...], folder: Path) -> bool:
    raise AssertionError(f"{packages} are for {folder}, and none were asked for")


class Showing(Grounds):
    """Shows one more folder under its own name, as /usr is shown."""

    def __init__(self, data_folder: Path, shown: Path) -> None:
        super().__init__(data_folder, fetch_nothing)
        self._shown = ToolFolder(str(shown), str(shown))

    async def _find_tools(self, spec: Spec, tell: Tell) -> HostTools:
        tools = await super()._find_tools(spec, tell)
        description = replace(tools.description, tools=(*tools.description.tools, self._shown))
        return replace(tools, description=description)


def show(shown: Path, data_folder: Path) -> EmbeddedBackend:
    backend = EmbeddedBackend(data_folder=data_folder)
    backend.grounds = Showing(data_folder, shown)
    return backend


@pytest.mark.needs_root
@pytest.mark.needs_userns
async def test_root_inside_reads_what_everybody_may_read_and_nothing_else(shown: Path, tmp_path: Path) -> None:
    os.chown(shown / "open" / "secret", 1000, 1000)  # an id that is the code's own inside
    backend = show(shown, tmp_path / "data")
    async with await backend.create(Spec()) as box:
        for user in ("root", None):
            seen = await box.exec("cat */* link; ls closed", cwd=str(shown), user=user)
            assert seen.stdout == "kept by the host"
    await backend.aclose()
    for folder in (lock_folder(), tmp_path / "data"):
        if folder is not None:
            (folder / name_of(str(shown))).unlink(missing_ok=True)  # the machine's folder outlives this test


# In a process of its own: what is old is renewed by a fork.
FIND = """
import json, os, sys
from pathlib import Path
from corral.engine.private import find_private
print(json.dumps(find_private(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
try:
    os.wait()
except ChildProcessError:
    pass
"""


def find(shown: Path, kept_in: Path, *package_lists: Path) -> set[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-c", FIND, str(shown), str(kept_in), *map(str, package_lists)]
    return set(json.loads(subprocess.run(argv, env=env, capture_output=True, check=True, timeout=60).stdout))


def test_what_is_private_is_found_once_and_anew_after_a_while(shown: Path, tmp_path: Path) -> None:
    expected = {"closed", "open/secret", "open/for a group"}
    assert find(shown, tmp_path) == expected
    (kept,) = tmp_path.glob("private-*")
    (shown / "open" / "readable").chmod(0o600)
    assert find(shown, tmp_path) == expected
    kept.write_text(json.dumps({"made": time.time() - FRESH_SECONDS - 1, "paths": []}))
    assert find(shown, tmp_path) == set()  # and a child renews it meanwhile
    assert find(shown, tmp_path) == {*expected, "open/readable"}
    kept.write_text("torn")
    assert find(shown, tmp_path) == {*expected, "open/readable"}


def test_what_a_package_brings_is_found_before_the_next_sandbox(shown: Path, tmp_path: Path) -> None:
    packages = tmp_path / "status"
    packages.write_text("installed: nothing")
    os.utime(packages, (0, 0))
    expected = find(shown, tmp_path, packages)
    (shown / "open" / "readable").chmod(0o600)
    assert find(shown, tmp_path, packages, tmp_path / "missing") == expected
    packages.write_text("installed: one")
    assert find(shown, tmp_path, packages) == {*expected, "open/readable"}
    os.utime(packages, (time.time() + 1000,) * 2)  # a clock that was wrong
    (shown / "open" / "readable").chmod(0o644)
    assert find(shown, tmp_path, packages) == {*expected, "open/readable"}
