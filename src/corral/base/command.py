"""A program to start: what callers may give, checked, and what a backend gets."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Required, TypedDict

from corral.errors import InvalidCommandError
from corral.protocol import Command, PathLike

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The kernel's own limit for one argument or environment entry, less its closing NUL."""
MAX_SHELL_TEXT_BYTES = 64 * 1024
"""A longer text for a shell is put into a file."""

# Models and people write bash, whatever else the sandbox has (/bin/sh is often dash, and zsh splits no words). The
# arguments stay as they are, and no variable is set: it might be one that the caller exported.
_BASH = 'command -v bash >/dev/null 2>&1 && exec bash "$@"; exec /bin/sh "$@"'
_WITH_BASH = ("/bin/sh", "-c", _BASH, "sh")
# Runs the file $0 in the shell "$@". The text's first command removes the file's folder, unless the shell can't parse
# it: then nothing of the text is run. So where the shell can't parse all of it, this one stays, and removes the folder
# at the end. Any other text is run in this shell's place: its pid, `$0` and line numbers are the same as without it.
_CHECKED = (
    'if "$@" -n "$0" 2>/dev/null; then exec "$@" "$0"; fi; "$@" "$0"; set -- "$?"; rm -rf -- "${0%/*}"; exit "$1"'
)


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
    quiet: bool = False
    """The output is not read before the end: what goes beyond the limit need not travel."""


class RequestOptions(TypedDict, total=False):
    """What `start` hands on as it came."""

    cwd: Required[PathLike | None]
    env: Required[Mapping[str, str] | None]
    stdin: Required[bool]
    timeout: Required[float | None]
    user: str | None
    pty: bool
    read_only: Sequence[PathLike]
    hidden: Sequence[PathLike]
    output_limit_bytes: int | None


def with_bash(*args: str) -> list[str]:
    """The argv of bash with these arguments; of /bin/sh, where the sandbox has no bash."""
    return [*_WITH_BASH, *args]


def bash_text(text: str) -> list[str]:
    """The argv that runs a text in bash, or in /bin/sh where the sandbox has no bash.

    Raises:
        InvalidCommandError: empty, or no text.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidCommandError("the command is empty or not a string", hint="pass a shell command")
    return with_bash("-c", "--", text)


def long_text(command: Command) -> str | None:
    """The text for a shell in a command, if it is too long for an argument; else None."""
    if isinstance(command, list | tuple) and list(command[:-1]) == with_bash("-c", "--"):
        command = command[-1]
    if not isinstance(command, str):
        return None
    fits = len(command.encode("utf-8", "surrogateescape")) <= MAX_SHELL_TEXT_BYTES
    return None if fits or "\0" in command else command


def script_argv(command: Command, path: str) -> list[str]:
    """The argv that runs the file with a command's long text, in the shell that the command is for."""
    return ["/bin/sh", path] if isinstance(command, str) else with_bash(path)


def checked_script_argv(command: Command, path: str) -> list[str]:
    """The same for a file in a folder that is to be gone when the program is, whether its shell can parse it or not."""
    return ["/bin/sh", "-c", _CHECKED, path, *script_argv(command, path)[:-1]]


@contextlib.asynccontextmanager
async def in_file(
    command: Command,
    folder: str,
    *,
    write: Callable[[str, bytes], Awaitable[object]],
    drop: Callable[[str], Awaitable[None]],
    background: bool = False,
) -> AsyncIterator[Command]:
    """The command to run within, its text in a file of that folder if it is too long for an argument.

    The folder goes at the end. In the background the program goes on after it, and its shell removes the folder before
    anything else: it goes on reading the file that it has open. If it never begins, the folder goes at the end, too.

    Where the program is ended before its shell came so far, or may not remove the folder (as another user, or with a
    view that is read-only), only the one who sees its end can do so: then the caller has to call `drop` again.
    """
    text = long_text(command)
    if text is None:
        yield command
        return
    if background:
        text = f"rm -rf -- {shlex.quote(folder)} 2>/dev/null; {text}"  # on the same line: the others keep their numbers
    script, begun = f"{folder}/script.sh", False
    try:
        await write(script, text.encode("utf-8", "surrogateescape"))
        yield checked_script_argv(command, script) if background else script_argv(command, script)
        begun = background
    finally:
        if not begun:
            await drop(folder)


def plain_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """What `with_bash` or `checked_script_argv` was asked for, as one would call the shell; any other argv as it is."""
    words = tuple(argv)
    if words[:3] == ("/bin/sh", "-c", _CHECKED):
        words = (*words[4:], words[3])
    return ("bash", *words[len(_WITH_BASH) :]) if words[: len(_WITH_BASH)] == _WITH_BASH else words


def show_command(argv: Sequence[str]) -> str:
    """A command as its caller wrote it: the text for the shell, or the arguments quoted."""
    words = plain_argv(argv)
    if words[:-1] in (("/bin/sh", "-c"), ("bash", "-c", "--")):
        return words[-1]
    return shlex.join(words)


def check_argv(command: Command) -> tuple[str, ...]:
    """An argv from a list, or for /bin/sh from a text.

    Raises:
        InvalidCommandError: empty, with a NUL, too long, or not made of texts.
    """
    if isinstance(command, str):
        if not command.strip():
            raise InvalidCommandError("the command is empty", hint="pass a shell command or a list of arguments")
        argv: tuple[str, ...] = ("/bin/sh", "-c", command)
    elif isinstance(command, bytes) or not isinstance(command, Sequence):
        raise InvalidCommandError(f"a command must be a string or a list of strings, not {type(command).__name__}")
    else:
        argv = tuple(command)
    if not argv or not argv[0]:
        raise InvalidCommandError("the command is empty", hint="pass a shell command or a list of arguments")
    for index, argument in enumerate(argv):
        if not isinstance(argument, str):
            raise InvalidCommandError(f"argument {index} is {type(argument).__name__}, not str", hint="use str(...)")
        if "\0" in argument:
            raise InvalidCommandError(f"argument {index} has a NUL byte: {argument[:40]!r}", hint="remove it")
        check_size(argument, f"argument {index}")
    return argv


def check_size(text: str, what: str) -> None:
    """One argument or variable must fit into what the kernel takes. Raises: InvalidCommandError."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_ARGUMENT_BYTES:
        raise InvalidCommandError(
            f"{what} has {size} bytes; the kernel's limit is {MAX_ARGUMENT_BYTES}",
            hint="pass it as stdin=, or write it to a file first",
        )
