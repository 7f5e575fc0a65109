"""A folder for a measurement, and its end."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

_REMOVALS = 20


def make_folder() -> Path:
    """With a data folder in it, whose path must not have a link: TMPDIR may be one."""
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-")).resolve()
    (folder / "data").mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Keepers put their folders away when the server has gone already: what comes up meanwhile is met again."""
    for _ in range(_REMOVALS):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
