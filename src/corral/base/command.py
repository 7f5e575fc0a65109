"""A program to start: argv and texts for a shell, checked; long texts go into a file."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from corral.errors import InvalidCommandError
from corral.protocol import Command

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
