"""`corral shell`: a terminal inside a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import click

from corral.base.command import bash_text, with_bash
from corral.cli import options
from corral.cli.failure import RunsProgram
from corral.cli.run import explain
from corral.cli.stdio import Outlet, read_input
from corral.cli.terminal import is_terminal, lend
from corral.cli.whose import explaining
from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.protocol import Backend

_PROMPT = r"\[\e[32m\]\u@\h\[\e[0m\]:\[\e[36m\]\w\[\e[0m\]\$ "


@click.command(cls=RunsProgram)
@click.argument("sandbox_id", required=False, metavar="[ID]", shell_complete=options.complete_sandbox)
@click.option("--command", "-c", metavar="TEXT", help="Run this command in bash (in sh, if there is no bash).")
@click.option("--user", "-u", metavar="NAME", help="Run as this user: daytona, root, nobody or a user id.")
@options.backend_option
@options.spec_option_flags
def shell(sandbox_id: str | None, command: str | None, user: str | None, backend: str | Backend, **given: Any) -> int:
    """Open a terminal in a sandbox: a new one, or the one with this ID or name.

    A new sandbox is deleted when its shell exits. The exit code is the shell's; 125 if the sandbox failed.

    \b
    corral shell
    corral shell --memory 512MiB -p numpy
    corral shell my-box -c 'python3 -i setup.py'
    """
    from corral.spec import make_spec

    spec_options = options.read_spec_options(given)
    if sandbox_id is None:
        fresh = AsyncSandbox(backend=backend, spec=make_spec(**spec_options))
        return asyncio.run(_shell(fresh, command, user, spec_options["env"]))
    _refuse_wishes(click.get_current_context())
    with explaining(backend, sandbox_id):
        return asyncio.run(_connect(sandbox_id, command, user, backend, spec_options["env"]))


def _refuse_wishes(context: click.Context) -> None:
    """Reject options of new sandboxes for an existing one."""
    from click.core import ParameterSource

    fixed = ("image", "network", "memory", "cpus", "disk", "processes", "packages", "venv", "ephemeral")
    for name in fixed:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "package" if name == "packages" else name
            raise SpecError(f"--{flag} only applies to a new sandbox", hint="remove the option or the ID")


async def _connect(
    sandbox_id: str, command: str | None, user: str | None, backend: str | Backend, env: dict[str, str]
) -> int:
    async with contextlib.aclosing(await AsyncSandbox.connect(sandbox_id, backend=backend)) as box:
        return await _serve(box, command, user, env)


async def _shell(fresh: AsyncSandbox, command: str | None, user: str | None, env: dict[str, str]) -> int:
    async with fresh as box:
        return await _serve(box, command, user, env)


async def _serve(box: AsyncSandbox, command: str | None, user: str | None, env: dict[str, str]) -> int:
    wanted = with_bash() if command is None else bash_text(command)
    if is_terminal():
        result = await lend(box, wanted, env={"PS1": _PROMPT, **env}, user=user)
    else:  # in a script: the same, without a terminal
        outlet = Outlet()
        result = await box.exec(wanted, stdin=read_input(), env=env, user=user, on_output=outlet.take)
        outlet.finish()
    explain(result, timeout=None, spec=box.spec)
    return result.exit_code & 0xFF
