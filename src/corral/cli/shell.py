"""`corral shell`: a terminal inside a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import click

from corral.base.command import bash_text, with_bash
from corral.cli import options
from corral.cli.display import Progress
from corral.cli.failure import RunsProgram
from corral.cli.owner import connected, run_on
from corral.cli.run import run_inside
from corral.cli.terminal import is_terminal
from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.protocol import Backend

_PROMPT = r"\[\e[32m\]\u@\h\[\e[0m\]:\[\e[36m\]\w\[\e[0m\]\$ "


@click.command(cls=RunsProgram)
@click.argument("sandbox_id", required=False, metavar="[ID]", shell_complete=options.complete_sandbox)
@click.option("--command", "-c", metavar="TEXT", help="Run this command in bash (in sh, if there is no bash).")
@options.user_option
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

    async def work(opened: contextlib.AbstractAsyncContextManager[AsyncSandbox]) -> int:
        words = with_bash() if command is None else bash_text(command)
        env = {**({"PS1": _PROMPT} if is_terminal() else {}), **spec_options["env"]}
        async with opened as box:  # in a script: the same, without a terminal
            return await run_inside(box, words, terminal=is_terminal(), interactive=True, env=env, user=user)

    if sandbox_id is None:
        with Progress() as progress:
            new = AsyncSandbox(backend=backend, spec=make_spec(**spec_options), on_event=progress.take)
            return asyncio.run(work(new))
    _refuse_new_options(click.get_current_context())
    return run_on(backend, sandbox_id, lambda maker: work(connected(maker, sandbox_id)))


def _refuse_new_options(context: click.Context) -> None:
    """Reject options of new sandboxes for an existing one."""
    from click.core import ParameterSource

    fixed = ("image", "network", "memory", "cpus", "disk", "processes", "packages", "venv", "ephemeral", "secrets")
    for name in fixed:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = name.removesuffix("s") if name in ("packages", "secrets") else name
            raise SpecError(f"--{flag} only applies to a new sandbox", hint="remove the option or the ID")
