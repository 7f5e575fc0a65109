"""Shell commands as argv; long ones are run from a file."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from corral.errors import InvalidCommandError
from corral.protocol import Command

MAX_SHELL_TEXT_BYTES = 64 * 1024
"""Longer shell text is put into a file."""

# Models and people write bash, even if the sandbox has other shells (/bin/sh is often dash, and zsh does not split
# words). Arguments are not changed, and no variable is set: the caller may have exported one of that name.
_BASH = 'command -v bash >/dev/null 2>&1 && exec bash "$@"; exec /bin/sh "$@"'
_WITH_BASH = ("/bin/sh", "-c", _BASH, "sh")
# Runs the file $0 in the shell "$@". The text's first command removes the file's folder, unless the shell can't parse
# the text: then it runs nothing of it. In that case this shell waits, and removes the folder at the end. Any other text
# is run in place of this shell: its pid, `$0` and line numbers are the same as without it.
_CHECKED = (
    'if "$@" -n "$0" 2>/dev/null; then exec "$@" "$0"; fi; "$@" "$0"; set -- "$?"; rm -rf -- "${0%/*}"; exit "$1"'
)


def with_bash(*args: str) -> list[str]:
    """The argv of bash with these arguments; of /bin/sh, if the sandbox has no bash."""
    return [*_WITH_BASH, *args]


def bash_text(text: str) -> list[str]:
    """The argv that runs a text in bash, or in /bin/sh if the sandbox has no bash.

    Raises:
        InvalidCommandError: empty, or not a string.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidCommandError("the command is empty or not a string", hint="pass a shell command")
    return with_bash("-c", "--", text)


def long_text(command: Command) -> str | None:
    """The shell text of a command, if it is too long for an argument; else None."""
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
    """The same for a file whose folder is removed by the time the program ends, even if its shell can't parse it."""
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
    """The command to run in this block, with its text in a file of that folder if it is too long for an argument.

    The folder is removed at the end of the block. A `background` program continues after it: its shell removes the
    folder first, and reads on from the open file. If it never starts, the folder is removed at the end of the block.

    If the program is killed before its shell removes the folder, or may not remove it (as another user, or with a
    read-only view), the caller has to call `drop` again after its end.
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
    """The plain shell command behind an argv of `with_bash` or `checked_script_argv`; any other argv unchanged."""
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
