"""Ids of candidates and runs. They become names of files and snapshots, so few characters are allowed."""

from __future__ import annotations

import re
import secrets
import time

from corral.errors import SpecError

MAX_LENGTH = 63
# No dot: other files in a run's folder have one in their names, so no candidate can take their place.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_id(value: object, *, what: str = "a candidate's id") -> str:
    """The id itself. Raises: SpecError if it is invalid."""
    if not (isinstance(value, str) and _ID.fullmatch(value)):
        raise SpecError(f"{value!r} is not {what}", hint="letters, digits, '_' and '-', at most 63")
    return value


def id_from_name(name: str) -> str:
    """An id that resembles a file's name; `agent_alpha` is `alpha`, as those who name their files so expect.

    Raises:
        SpecError: the name has no character that an id may have.
    """
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")
    found = re.sub(r"(?i)^agent_+(?=[A-Za-z0-9])", "", found)[:MAX_LENGTH]
    if not found:
        raise SpecError(f"no id can be made from the name {name!r}", hint="give one: id=…")
    return found


def new_run_id() -> str:
    """A new run id. Ids sort by time and are unique."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
