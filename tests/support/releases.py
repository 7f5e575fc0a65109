"""What earlier releases left on disk, made once with each of them and kept in `tests/fixtures/RELEASE`.

`data-root.tar.xz` and `data-user.tar.xz` are data folders, made as root and as an ordinary user, with the sandbox
`kept-box` (stopped; written to after its snapshot `before`; a recorded program `job` and a session `shell` ran in it).
Root's has a server's database as well, with the sandbox `served-box`, under the key of `support.serving`.
`run.tar.xz` is the folder of a contest between `one`, which wins, and `two`, which fails.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def restore_data(release: str, kind: str, target: Path) -> Path:
    """A data folder as that release left it, at `target`; the paths in it become those of this machine."""
    folder = _unpack(FIXTURES / release / f"data-{kind}.tar.xz", target) / "data"
    for state in folder.rglob("state.json"):
        text = state.read_text(encoding="utf-8").replace("@DATA@", str(folder)).replace("@PYTHON@", sys.base_prefix)
        state.write_text(text, encoding="utf-8")
    return folder


def restore_run(release: str, target: Path) -> Path:
    """The folder of a contest."""
    return _unpack(FIXTURES / release / "run.tar.xz", target) / "run"


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="fully_trusted")  # made here
    return target
