"""Failures of the command line: one line, a hint, and an exit code.

| code | meaning |
|---|---|
| 1 | Corral failed; or a check such as `doctor` failed |
| 2 | the command line is invalid: a flag, a value, or a combination |
| 70 | a bug in Corral |
| 124 | the program timed out (`run`, `exec`) |
| 125 | Corral failed, in a command that otherwise ends with its program's code (`run`, `exec`, `shell`) |
| 130 | Ctrl-C |
| 141 | the reader of the output closed the pipe |
| 143 | SIGTERM (`forge run`) |
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from corral.cli.display import paint, plain
from corral.cli.words import begin_in_cli_words, in_cli_words
from corral.errors import CorralError, EngineFaultError, SpecError, UnknownBackendError

ERROR, USAGE, BUG, SANDBOX, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 70, 125, 130, 141, 143
_BUG_HINT = "this is a bug in Corral: please report it with the output of CORRAL_DEBUG=1"


class Failed(Exception):  # noqa: N818 - it is no error, it carries one
    """An error for `report`, with the exit code of its command."""

    def __init__(self, error: Exception, *, exit_code: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.exit_code = exit_code


class RunsProgram(click.Command):
    """A command that exits with its program's code, so that Corral's own failures need another code than 1."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options, which may fail as well."""
        with _failing_beside_a_program():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with 125 for Corral's own failures."""
        with _failing_beside_a_program():
            return super().invoke(ctx)


@contextlib.contextmanager
def _failing_beside_a_program() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (CorralError, OSError) as error:
        raise Failed(error, exit_code=SANDBOX) from error


def report(error: BaseException) -> int:
    """Print the error on stderr; returns the exit code."""
    exit_code = ERROR
    if isinstance(error, Failed):
        exit_code = error.exit_code
        error = error.error
    if isinstance(error, BrokenPipeError):
        return leave_quietly()
    if os.environ.get("CORRAL_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    if isinstance(error, CorralError):
        hint = error.hint
        if isinstance(error, SpecError | UnknownBackendError):
            exit_code = USAGE  # found by click or by Corral
        if isinstance(error, EngineFaultError) and not hint:
            hint = _BUG_HINT
        say(error.message, hint=hint)
        return exit_code
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        say(f"{name}{error.strerror or error}")
        return exit_code
    say(f"unexpected {type(error).__name__}: {error}", hint=_BUG_HINT)
    return BUG


def _report_usage(error: click.ClickException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # by name: click has it only since 8.2
        click.echo(error.format_message(), err=True)
        return USAGE
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        what = "commands" if isinstance(error.ctx.command, click.Group) else "options"
        hint = f"`{error.ctx.command_path} --help` lists the {what}"
        if isinstance(error, click.NoSuchOption) and error.ctx.command.name in ("run", "exec"):
            hint = f"options for the program go after `--`; {hint}"
    message = error.format_message()
    say(message[:1].lower() + message[1:].rstrip("."), hint=hint)
    return USAGE


def say(message: str, *, hint: str = "") -> None:
    """Print an error and its hint, in the form of all errors."""
    lines = f"{paint('corral: error:', 'red', 'bold', stream=sys.stderr)} {plain(begin_in_cli_words(message))}\n"
    if hint:
        lines += f"{paint('hint:', 'cyan', stream=sys.stderr)} {plain(in_cli_words(hint))}\n"
    try:
        sys.stdout.flush()
        sys.stderr.write(lines)
        sys.stderr.flush()
    except OSError:
        leave_quietly()  # no reader; the exit code still tells


def leave_quietly() -> int:
    """The reader of the output has closed the pipe: write nothing more, not even at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        try:
            (sys.stdout if descriptor == 1 else sys.stderr).flush()
        except (OSError, ValueError):
            os.dup2(null, descriptor)
    os.close(null)
    return BROKEN_PIPE
