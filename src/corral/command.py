"""A program to start: what callers may give, checked, and what a backend gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corral.errors import InvalidCommandError
from corral.protocol import Command

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The kernel's own limit for one argument or environment entry, less its closing NUL."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A program to start, with everything resolved and checked: what a backend's `_spawn` gets."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str
    timeout: float | None
    stdin: bool
    output_limit_bytes: int
    pty: bool = False
    rows: int = 24
    columns: int = 80
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    listened: bool = False
    """Somebody will read the output as it comes, in this event loop: nothing may be dropped before they begin."""


def check_argv(command: Command) -> tuple[str, ...]:
    """An argv from a list, or for /bin/sh from a text.

    Raises:
        InvalidCommandError: empty, with a NUL, too long, or not made of texts.
    """
    if isinstance(command, str):
        if not command.strip():
            raise InvalidCommandError("the command is empty", hint="give a shell text or a list of arguments")
        argv: tuple[str, ...] = ("/bin/sh", "-c", command)
    elif isinstance(command, bytes) or not isinstance(command, Sequence):
        raise InvalidCommandError(f"a command is a text or a list of texts, not {type(command).__name__}")
    else:
        argv = tuple(command)
    if not argv or not argv[0]:
        raise InvalidCommandError("the command is empty", hint="give a shell text or a list of arguments")
    for index, argument in enumerate(argv):
        if not isinstance(argument, str):
            raise InvalidCommandError(f"argument {index} is {type(argument).__name__}, not a text", hint="use str(...)")
        if "\0" in argument:
            raise InvalidCommandError(f"argument {index} has a NUL character: {argument[:40]!r}", hint="remove it")
        check_size(argument, f"argument {index}")
    return argv


def check_size(text: str, what: str) -> None:
    """One argument or variable must fit into what the kernel takes. Raises: InvalidCommandError."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_ARGUMENT_BYTES:
        raise InvalidCommandError(
            f"{what} has {size} bytes, and the kernel takes {MAX_ARGUMENT_BYTES}",
            hint="pass it as stdin=, or write it to a file first",
        )
