"""`corral run`: a file or a snippet in a new sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from corral.base.denials import NEW_SANDBOX_FLAG
from corral.base.needs import describe_needs
from corral.cli import options
from corral.cli.display import Progress, plain, show_seconds, show_size
from corral.cli.failure import RunsProgram
from corral.cli.runfile import DEFAULT, explain_unknown, guess_language, place_file
from corral.cli.stdio import Outlet, has_input, read_all_input, read_input
from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError, VolumeError
from corral.protocol import Backend, Command
from corral.results import ApplyResult, CodeResult, DownloadResult, ExecResult
from corral.spec import DEFAULT_OUTPUT_LIMIT_BYTES, Spec, make_spec, parse_size

_COPY_WORKDIR = "/workspace"


@click.command(cls=RunsProgram)
@click.argument("words", nargs=-1, metavar="[FILE|-] [-- ARGS…]", shell_complete=options.complete_file)
@click.option("--code", "-c", metavar="CODE", help="Run this text instead of a file.")
@options.language_option
@options.backend_option
@options.timeout_option
@click.option("--copy-in", multiple=True, type=click.Path(exists=True, path_type=Path), metavar="DIR",
              help=f"Copy a folder's content (or a file) in first. The working folder is {_COPY_WORKDIR}.")  # fmt: skip
@click.option("--copy-out", type=click.Path(path_type=Path), metavar="DIR",
              help="Copy the working folder out afterwards, also after a failure.")  # fmt: skip
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="Afterwards, make the changes of a --mount with the mode copy or overlay in this machine's folder.",
)
@options.git_settings_option
@options.spec_option_flags
@click.option("--interactive", "-i", is_flag=True, help="Pass the terminal's input on too, not only a pipe's.")
@click.option("--no-input", "-n", is_flag=True, help="Pass no input to the program.")
@click.option("--keep-on-failure", is_flag=True, help="If the program fails, keep the sandbox for inspection.")
@options.setting_option("output_limit", metavar="SIZE")
@options.json_option
def run(
    words: tuple[str, ...], code: str | None, language: str | None, backend: str | Backend, timeout: float | None,
    copy_in: tuple[Path, ...], copy_out: Path | None, applies: bool, git_settings: bool, interactive: bool,
    no_input: bool, keep_on_failure: bool, output_limit: str | None, as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Run a file or a snippet in a new sandbox.

    Its output, input and exit code are those of the program. 124: it timed out. 125: the sandbox failed, not
    the program.

    FILE is copied into the working folder under its own name. A file inside a --copy-in folder is run from its
    place there, next to the files it imports and reads. The language comes from its extension, or else its #! line.

    \b
    corral run script.py -- first second          arguments go after --
    corral run -c 'console.log(6 * 7)' -l js
    curl … | corral run - -l bash                 the program from a pipe
    corral run --timeout 10 --memory 256MiB -p numpy sums.py < data.csv
    corral run --copy-in . --copy-out out build.sh
    corral run --mount .:/work:overlay --apply -w /work -l bash -c 'make clean'
    """
    source, name, args = _find_source(words, code)
    if (copy_in or copy_out) and not given.get("workdir"):
        given["workdir"] = _COPY_WORKDIR
    language = language or _guess_language(name, source)
    file = Path(name) if name not in ("", "-") else None
    spec = make_spec(**options.read_spec_options(given), keep_on_failure=keep_on_failure)
    changing = _find_changing(spec) if applies else []
    outlet = None if as_json else Outlet()
    call: dict[str, Any] = {
        "args": args,
        "timeout": timeout,
        "stdin": read_input() if not no_input and name != "-" and has_input(terminal=interactive) else None,
        "on_output": outlet.take if outlet else None,
        "output_limit_bytes": parse_size(output_limit or DEFAULT_OUTPUT_LIMIT_BYTES, what="--output-limit"),
    }

    async def work() -> tuple[CodeResult, DownloadResult, list[ApplyResult], str | None]:
        with Progress() as progress:
            opened = await AsyncSandbox(backend=backend, spec=spec, on_event=progress.take)
        async with opened as box:
            for path in copy_in:
                await box.files.upload(path, ".")
            placed = await place_file(box, source, file, language, copied=copy_in)
            result = await box.run_code(source, language, file=placed.path, **call)
            if outlet is not None:
                outlet.finish()
            copied = DownloadResult()
            if copy_out is not None:
                await placed.leave(box)
                copied = await box.files.download(".", copy_out, git_settings=git_settings)
            applied = await _apply(box, changing, git_settings=git_settings)
            return result, copied, applied, await box.detach() if keep_on_failure and not result.ok else None

    result, copied, applied, kept = asyncio.run(work())
    if as_json:
        left_out = (*copied.left_out, *(path for done in applied for path in done.left_out))
        changed = [asdict(change) for done in applied for change in done.changes]
        more = {"language": result.language, "kept": kept, "left_out": left_out, "applied": changed}
        click.echo(to_json({**describe(result), **more}))
    else:
        explain(result, timeout=timeout, spec=spec)
    note_left_out(copied)
    for done in applied:
        note_applied(done)
    if kept is not None:
        note(f"the sandbox was kept; to inspect it: corral shell {kept}")
    return result.exit_code & 0xFF


def _find_changing(spec: Spec) -> list[str]:
    """Where folders are mounted that may be changed. Raises: SpecError."""
    found = [mount.path for mount in spec.mounts if mount.mode in ("copy", "overlay")]
    if not found:
        raise SpecError("--apply: no folder is mounted to be changed", hint="use --mount DIR:PATH:overlay")
    return found


async def _apply(box: AsyncSandbox, paths: Sequence[str], *, git_settings: bool) -> list[ApplyResult]:
    try:
        return [await box.apply(path, git_settings=git_settings) for path in paths]
    except VolumeError:
        note(f"the sandbox was kept; to see what it has changed: corral sandbox diff {await box.detach()}")
        raise


def _find_source(words: tuple[str, ...], code: str | None) -> tuple[bytes, str, tuple[str, ...]]:
    """The program, its name, and its arguments."""
    if code is not None:
        return code.encode("utf-8", "surrogateescape"), "", words
    if not words:
        if not has_input():
            raise click.UsageError(
                "nothing to run: pass a FILE, `-` for standard input, or -c CODE", click.get_current_context()
            )
        words = ("-",)
    name, args = words[0], words[1:]
    if name == "-":
        return read_all_input(), "-", args
    try:
        return Path(name).read_bytes(), name, args
    except OSError as error:
        if name and isinstance(error, IsADirectoryError):
            raise SpecError(f"{name!r} is a folder", hint="pass a file, and the folder with --copy-in") from error
        if not name or isinstance(error, FileNotFoundError):
            hint = "use -c for a snippet, and `-` for a program from a pipe"
            raise SpecError(f"file not found: {name!r}", hint=hint) from error
        raise SpecError(f"can't read {name!r}: {error.strerror}", hint="check its permissions") from error


def _guess_language(name: str, source: bytes) -> str:
    found = guess_language(name, source) if name else DEFAULT
    if found is None:
        raise click.UsageError(explain_unknown(name, source), click.get_current_context())
    return found


async def run_inside(
    box: AsyncSandbox,
    command: Command,
    *,
    terminal: bool,
    interactive: bool,
    timeout: float | None = None,
    flag: str = NEW_SANDBOX_FLAG,
    **call: Any,
) -> int:
    """Run a program, connected to this terminal or to our streams; returns its exit code."""
    if terminal:
        from corral.cli.terminal import lend  # which Windows can't import

        result = await lend(box, command, timeout=timeout, **call)
    else:
        outlet = Outlet()
        stdin = read_input() if interactive else None
        result = await box.exec(command, stdin=stdin, on_output=outlet.take, timeout=timeout, **call)
        outlet.finish()
    explain(result, timeout=timeout, spec=box.spec, flag=flag)
    return result.exit_code & 0xFF


def explain(result: ExecResult, *, timeout: float | None, spec: Spec, flag: str = NEW_SANDBOX_FLAG) -> None:
    """Print why a program ended, if its exit code does not say it, and what it lacked."""
    if result.reason == "timeout":
        limit = timeout if timeout is not None else spec.exec_timeout
        note(f"timed out after {show_seconds(limit)}; it was killed with all its processes")
    elif result.reason == "oom":
        note(f"out of memory: the sandbox has {show_size(spec.resources.memory)} (--memory gives more)")
    elif result.limit == "disk":
        note(f"out of disk: the sandbox has {show_size(spec.resources.disk)} (--disk gives more)")
    if line := describe_needs(result, spec.network, door="command line", flag=flag):
        note(line)


def note(text: str) -> None:
    """Print a message of Corral on stderr."""
    sys.stdout.flush()
    click.echo(f"corral: {plain(text)}", err=True)


def note_left_out(copied: DownloadResult) -> None:
    """Print which files were not copied out."""
    if copied.left_out:
        note(f"{copied.describe()} (--git-settings copies them)")


def note_applied(done: ApplyResult) -> None:
    """Print what was changed on this machine, and what was not."""
    count = len(done.changes)
    note("1 change was applied" if count == 1 else f"{count} changes were applied")
    if done.left_out:
        names = ", ".join(map(plain, done.left_out))
        note(f"left out: {names} (links out of the folder, what git would run, what this machine has changed)")


def describe(result: ExecResult) -> dict[str, Any]:
    """A result for scripts."""
    return {
        "exit_code": result.exit_code,
        "reason": result.reason,
        "signal": result.signal,
        "limit": result.limit,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_bytes": result.stdout_total_bytes,
        "stderr_bytes": result.stderr_total_bytes,
        "truncated": result.truncated,
        "replaced_bytes": result.replaced_bytes,
        "denied": [asdict(denial) for denial in result.denied],
        "usage": asdict(result.usage),
    }


def to_json(value: Any) -> str:
    """One JSON text, whose ASCII is safe to show anywhere."""
    import json

    return json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str)
