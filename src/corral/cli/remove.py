"""`corral sandbox rm`: finds the sandboxes, checks their owners, and deletes them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from corral.cli.display import plain
from corral.cli.failure import ERROR, say
from corral.cli.run import note
from corral.cli.whose import explain
from corral.errors import CorralError, SandboxGoneError
from corral.protocol import Backend
from corral.results import SandboxInfo


async def remove_all(backend: Backend, *, asking: bool) -> int:
    """Delete all sandboxes without another owner; returns the exit code."""
    infos = await backend.list()
    mine = [info.sandbox_id for info in infos if info.owner is None]
    others = [info for info in infos if info.owner is not None]
    code = ERROR
    if not mine or not asking or _confirm(f"end {_count(mine)}, with all that runs and lies in them?"):
        code = await _end(backend, mine, quiet=True)
    if others:
        note(
            f"{_count(others)} of `corral serve` ({', '.join(sorted({plain(str(info.owner)) for info in others}))}) "
            "not deleted: delete them through the server, or give their IDs"
        )
    return code


async def remove(backend: Backend, wanted: Sequence[str], *, asking: bool, quiet: bool) -> int:
    """Delete these; returns the exit code."""
    infos = await backend.list() if asking else ()
    others = [info for info in infos if info.owner is not None and _is_meant(info, wanted)]
    if others:
        whose = ", ".join(sorted({plain(str(info.owner)) for info in others}))
        if not _confirm(f"{_count(others)} of `corral serve` ({whose}), whose clients may use them. End them?"):
            return ERROR
    return await _end(backend, wanted, quiet=quiet)


def is_terminal() -> bool:
    """True if there is a terminal to ask at."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _is_meant(info: SandboxInfo, wanted: Sequence[str]) -> bool:
    names = [each for each in wanted if each in (info.sandbox_id, info.name)]
    return bool(names) or any(len(each) >= 4 and info.sandbox_id.startswith(each) for each in wanted)


def _confirm(question: str) -> bool:
    return click.confirm(question, default=False, err=True)


def _count(things: Sequence[object]) -> str:
    return f"{len(things)} sandbox" if len(things) == 1 else f"{len(things)} sandboxes"


async def _end(backend: Backend, wanted: Sequence[str], *, quiet: bool) -> int:
    outcomes = await asyncio.gather(*(backend.delete(each) for each in wanted), return_exceptions=True)
    failures = 0
    for each, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, SandboxGoneError):
            better = await explain(backend, each, outcome)
            if quiet and better is outcome:
                continue
            outcome = better  # noqa: PLW2901 - the same, said better
        if isinstance(outcome, CorralError):
            say(outcome.message, hint=outcome.hint)
            failures += 1
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            click.echo(each)
    return ERROR if failures else 0
