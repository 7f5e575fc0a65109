"""The default candidates: those in `./candidates`, else the five that ship with Corral."""

from __future__ import annotations

import ast
from pathlib import Path

from corral.errors import SpecError
from corral.forge.candidate import Candidate
from corral.forge.ids import id_from_name

OBJECTIVE = "Generate weekly 'AI Events in San Francisco' post for Discord"
"""The objective of the five. They need no network: their data is in them."""

FOLDER = Path(__file__).parent / "candidates"
_MAX_BYTES = 1024 * 1024


def list_shipped() -> tuple[Candidate, ...]:
    """The five, in their order."""
    return tuple(_describe(FOLDER / f"{name}.py", name) for name in ("alpha", "beta", "gamma", "delta", "epsilon"))


def find_scripts(folder: Path | None = None) -> tuple[Candidate, ...]:
    """`candidates/*.py` below the working folder, by name; without any, the five that ship.

    Raises:
        SpecError: a file name that gives no id, or two that give the same.
    """
    here = (folder or Path.cwd()) / "candidates"
    paths = sorted(path for path in here.glob("*.py") if path.is_file() and not path.name.startswith(("_", ".")))
    names: dict[str, str] = {}
    for path in paths:
        candidate_id = id_from_name(path.stem)
        if (other := names.setdefault(candidate_id.lower(), path.name)) != path.name:
            raise SpecError(f"{path.name} and {other} have the same id {candidate_id!r}", hint="rename one")
    return tuple(_describe(path, id_from_name(path.stem)) for path in paths) or list_shipped()


def _describe(path: Path, candidate_id: str) -> Candidate:
    """The description is the first line of the file's docstring. The file is not executed."""
    name = f"Agent {candidate_id.replace('_', ' ').replace('-', ' ').title()}"
    return Candidate.script(path, id=candidate_id, name=name, description=_first_line(path).rstrip("."))


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = ast.get_docstring(ast.parse(file.read(_MAX_BYTES))) or ""
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # if it is not Python, the contest will find out
    return text.strip().partition("\n")[0][:200]
