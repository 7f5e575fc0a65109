"""What programs that run on have printed: behind `corral sandbox logs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from corral.base.command import show_command
from corral.cli import kept
from corral.cli.display import plain, table, whole_in_a_pipe
from corral.cli.loop import run_async
from corral.cli.run import to_json
from corral.cli.stdio import Outlet
from corral.client.registry import get_backend
from corral.protocol import Backend


def show_logs(
    backend: str | Backend, sandbox_id: str, number: int | None, *, follow: bool, as_list: bool, as_json: bool
) -> int:
    """Print them, or a list of them."""
    maker = get_backend(backend)
    if isinstance(maker, kept.KeepsPrograms):
        return _show_served(maker, sandbox_id, number, follow=follow, as_list=as_list, as_json=as_json)
    embedded = kept.find_embedded(maker, what="logs")
    if as_list or (as_json and number is None):
        programs = kept.list_kept(embedded, sandbox_id)
        if as_json:
            click.echo(to_json([_describe_kept(program) for program in programs]))
        else:
            _list([(each.number, each.state, each.exit_code, show_command(each.argv)) for each in programs])
        return 0
    program = kept.find_kept(embedded, sandbox_id, number)
    if as_json:
        output = b"".join(kept.read_log(program)).decode("utf-8", "replace")
        click.echo(to_json({**_describe_kept(program), "output": output}))
        return 0
    outlet = Outlet()

    async def work() -> None:
        async for data in kept.follow_log(embedded, sandbox_id, program):
            outlet.write("stdout", data)

    if follow:
        run_async(work())
    else:
        for data in kept.read_log(program):
            outlet.write("stdout", data)
    outlet.finish()
    return 0


def _list(programs: Sequence[tuple[int, str, int | None, str]]) -> None:
    rows = [
        [str(number), state, "-" if code is None else str(code), plain(text)] for number, state, code, text in programs
    ]
    headers = ["NUMBER", "STATE", "CODE", "COMMAND"]
    lines = table(rows, headers=headers, align=["right"], limit=whole_in_a_pipe())
    click.echo("\n".join(lines) or "no programs")


def _show_served(
    maker: kept.KeepsPrograms, sandbox_id: str, number: int | None, *, follow: bool, as_list: bool, as_json: bool
) -> int:
    """Of a service, which keeps them as text."""
    outlet = Outlet()

    async def work() -> None:
        if as_list or (as_json and number is None):
            programs = await maker.list_kept(sandbox_id)
            if as_json:
                click.echo(to_json([_describe_served(program) for program in programs]))
            else:
                _list([(each.number, each.state, each.exit_code, each.text) for each in programs])
            return
        stream = maker.follow_kept(sandbox_id, number, follow=follow and not as_json)
        if as_json:
            output = b"".join([data async for data in stream]).decode("utf-8", "replace")
            program = next(each for each in await maker.list_kept(sandbox_id) if each.number == number)
            click.echo(to_json({**_describe_served(program), "output": output}))
            return
        async for data in stream:
            outlet.write("stdout", data)

    run_async(work())
    outlet.finish()
    return 0


def _describe_served(program: Any) -> dict[str, Any]:
    return {"number": program.number, "text": program.text, "state": program.state, "exit_code": program.exit_code}


def _describe_kept(program: Any) -> dict[str, Any]:
    size = program.log.stat().st_size if program.log.exists() else 0
    return {
        "number": program.number, "argv": list(program.argv), "state": program.state, "exit_code": program.exit_code,
        "log_bytes": size,
    }  # fmt: skip
