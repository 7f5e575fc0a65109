"""What callers give, checked: paths, variables, users."""

from __future__ import annotations

import re
from collections.abc import Mapping

from corral.errors import SandboxFileError
from corral.paths import SandboxPath, inside
from corral.server.faults import Fault, bad_request
from corral.server.services import Held
from corral.spec import USER

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

OUTPUT_LIMIT_BYTES = 20 * 1024 * 1024
"""So much of each stream of one call is kept; beyond it the middle is cut out, and a line says how much. Less, if other
calls of the same key hold its memory and do not end."""


def parse_path(held: Held, path: str) -> SandboxPath:
    """An absolute path inside; relative ones are under the working folder.

    Raises:
        Fault: 400, it can't be the path of anything.
    """
    try:
        return inside(path, workdir=held.workdir)
    except (SandboxFileError, UnicodeEncodeError) as error:
        raise bad_request(f"{error}", code="INVALID_FILE_PATH") from error


def parse_folder(held: Held, path: str | None) -> SandboxPath:
    """Where to run something: the working folder unless another is named."""
    return parse_path(held, path or ".")


def parse_mode(text: str) -> int:
    """Permission bits, written in octal.

    Raises:
        Fault: 400.
    """
    if not re.fullmatch(r"(0o)?[0-7]{1,5}", text) or int(text.removeprefix("0o"), 8) > 0o7777:
        raise bad_request(f"mode {text[:20]!r} is not an octal mode such as 0644")
    return int(text.removeprefix("0o"), 8)


def check_variables(variables: Mapping[str, str]) -> None:
    """Raises: Fault, 400, for a name that no shell could use, or a value with a NUL."""
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise bad_request(f"{name[:100]!r} is not a name for an environment variable")
        if "\0" in value:
            raise bad_request(f"the value of environment variable {name!r} has a NUL character")


def environment(held: Held, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a program: those set for the sandbox, and over them those of the call.

    Raises:
        Fault: 400, as `check_variables`.
    """
    check_variables(variables or {})
    return {**{name: value for name, value in held.env.items() if value is not None}, **(variables or {})}


def program_user(held: Held) -> str | None:
    """The user whom programs run as, as the contract wants it: None for the usual one."""
    return None if held.user in ("", USER) else held.user


def seconds(value: float | None) -> float | None:
    """A timeout: 0 means none, as absent does."""
    return value or None


def denied(message: str) -> Fault:
    """403 for a file."""
    return Fault(403, message, code="FILE_ACCESS_DENIED")
