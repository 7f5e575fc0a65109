"""Names of candidates and of runs. They become names of files and of snapshots, so little is allowed in them."""

from __future__ import annotations

import re
import secrets
import time

from corral.errors import SpecError

MAX_LENGTH = 63
# No dot: what else lies in a run's folder has one in its name, so no candidate can pose as it.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_id(value: object, *, what: str = "a candidate's id") -> str:
    """The id itself. Raises: SpecError for anything that is not one."""
    if not (isinstance(value, str) and _ID.fullmatch(value)):
        raise SpecError(f"{value!r} is not {what}", hint="letters, digits, '_' and '-', at most 63")
    return value


def id_from_name(name: str) -> str:
    """An id that resembles a file's name; `agent_alpha` is `alpha`, as those who name their files so expect.

    Raises:
        SpecError: nothing of the name can be in an id.
    """
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")
    found = re.sub(r"(?i)^agent_+(?=[A-Za-z0-9])", "", found)[:MAX_LENGTH]
    if not found:
        raise SpecError(f"no id can be made from the name {name!r}", hint="give one: id=…")
    return found


def new_run_id() -> str:
    """A run's id: sorts by time, and never comes twice."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
