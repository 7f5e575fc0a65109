"""The command `corral` itself: its subcommands, and the options before them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import click

import corral
from corral.cli import config, failure

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_COMMANDS = {
    "run": "corral.cli.run:run",
    "shell": "corral.cli.shell:shell",
    "sandbox": "corral.cli.sandbox:sandbox",
    "forge": "corral.cli.forge:forge",
    "serve": "corral.cli.serve:serve",
    "key": "corral.cli.key:key",
    "volume": "corral.cli.volume:volume",
    "doctor": "corral.cli.doctor:doctor",
    "bench": "corral_bench:bench",
    "setup": "corral.cli.setup:setup",
    "completion": "corral.cli.completion:completion",
}


class LazyGroup(click.Group):
    """Loads commands on demand: `corral --version` should not wait for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a broken pipe is left to `report`, since click would choose its own exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return failure.leave_quietly()


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.option(
    "--data-dir", envvar=config.SETTINGS["data_dir"].variable, metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"The data folder of the embedded engine. Default: {config.SETTINGS['data_dir'].default}.",
)  # fmt: skip
@click.option(
    "--host-folders", envvar=config.SETTINGS["host_folders"].variable, metavar="LIST",
    help="Folders of this machine that sandboxes may mount, such as ~/data,~/project:rw. Default: none.",
)  # fmt: skip
@click.version_option(corral.__version__, "-V", "--version", prog_name="corral", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context, data_dir: Path | None, host_folders: str | None) -> None:
    """Run untrusted code in sandboxes: no daemon, no image, no account.

    \b
    corral run script.py                    a file, in a new sandbox
    corral run -c 'print(6 * 7)'            a snippet
    corral shell                            a terminal inside
    corral doctor                           what this machine can do

    Settings come from flags, then CORRAL_* variables, then ~/.config/corral/config.toml.
    """
    values = config.read_config()
    chosen = data_dir or values.get("data_dir")
    if chosen is not None:
        # The engine reads it from there, in this process and in its children.
        os.environ["CORRAL_DATA_DIR"] = str(Path(chosen).expanduser().absolute())
    folders = host_folders or values.get("host_folders")
    if folders is not None:
        os.environ["CORRAL_HOST_FOLDERS"] = folders
    values.pop("data_dir", None)
    values.pop("host_folders", None)
    if values and ctx.invoked_subcommand in _COMMANDS:
        command = root.get_command(ctx, ctx.invoked_subcommand)
        assert command is not None
        ctx.default_map = {ctx.invoked_subcommand: config.spread(values, command, ctx)}
