"""Background programs: `corral sandbox exec --detach` and `corral sandbox logs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from corral.cli.display import plain, table, whole_in_a_pipe
from corral.cli.run import to_json
from corral.cli.stdio import Outlet
from corral.client.registry import get_backend
from corral.protocol import Backend
from corral.sessions.detached import DetachedProgram, choose


def show_logs(
    backend: str | Backend, sandbox_id: str, number: int | None, *, follow: bool, as_list: bool, as_json: bool
) -> int:
    """Print the output of a program, or a list of programs."""
    maker = get_backend(backend)
    if as_list or (as_json and number is None):
        programs = asyncio.run(maker.list_detached(sandbox_id))
        click.echo(to_json([_describe(each) for each in programs]) if as_json else _tabulate(programs))
        return 0
    if as_json:
        click.echo(to_json(asyncio.run(_read(maker, sandbox_id, number))))
        return 0
    outlet = Outlet()

    async def work() -> None:
        async for data in maker.follow_detached(sandbox_id, number, follow=follow):
            outlet.write("stdout", data)

    asyncio.run(work())
    outlet.finish()
    return 0


async def _read(maker: Backend, sandbox_id: str, number: int | None) -> dict[str, Any]:
    output = b"".join([data async for data in maker.follow_detached(sandbox_id, number, follow=False)])
    program = choose(await maker.list_detached(sandbox_id), sandbox_id, number)
    return {**_describe(program), "output": output.decode("utf-8", "replace")}


def _tabulate(programs: Sequence[DetachedProgram]) -> str:
    rows = [
        [str(each.number), _state(each), "-" if each.exit_code is None else str(each.exit_code), plain(each.text)]
        for each in programs
    ]
    headers = ["NUMBER", "STATE", "CODE", "COMMAND"]
    return "\n".join(table(rows, headers=headers, align=["right"], limit=whole_in_a_pipe())) or "no programs"


def _state(program: DetachedProgram) -> str:
    return "running" if program.running else "ended"


def _describe(program: DetachedProgram) -> dict[str, Any]:
    about: dict[str, Any] = {"number": program.number, "text": program.text}
    if program.argv is not None:
        about["argv"] = list(program.argv)
    about |= {"state": _state(program), "exit_code": program.exit_code}
    if program.record_bytes is not None:
        about["log_bytes"] = program.record_bytes
    return about
