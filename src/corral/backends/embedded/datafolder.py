"""The data folder as the backend uses it: checked before anything in it is read, created or removed."""

from __future__ import annotations

from pathlib import Path

from corral.backends.embedded.seam import mapped
from corral.engine import datafolder
from corral.engine.state import DataFolder


def open_data(path: Path, *, op: str) -> DataFolder:
    """A data folder, which need not exist yet.

    Raises:
        BackendUnavailableError: another user could change it; the hint says what to do.
    """
    with mapped(op=op):
        datafolder.secure(path, make=False)
    return DataFolder(path)


def make_part(path: Path, name: str, *, op: str) -> Path:
    """One of the folders in a data folder, created if it is missing. Raises: as `open_data`."""
    with mapped(op=op):
        return datafolder.make_part(path, name)
