"""`corral sandbox diff` and `apply`: what a sandbox has changed in a mounted folder of this machine."""

from __future__ import annotations

from dataclasses import asdict

import click

from corral.cli import options
from corral.cli.display import plain
from corral.cli.owner import connected, run_on
from corral.cli.run import note_applied, to_json
from corral.protocol import Backend
from corral.results import ApplyResult, FolderChange

_SIGNS = {"added": "A", "modified": "M", "deleted": "D"}
_path_argument = click.argument("path", required=False, metavar="[PATH]")


@click.command()
@options.sandbox_argument
@_path_argument
@options.backend_option
@options.json_option
def diff(sandbox_id: str, path: str | None, backend: str | Backend, as_json: bool) -> None:
    """Show what was changed in a folder of this machine that is mounted with the mode copy or overlay.

    PATH is where it is mounted, if there is more than one. A: added, M: modified, D: deleted; !: this machine's own
    file has changed since then as well.
    """

    async def work(maker: Backend) -> tuple[FolderChange, ...]:
        async with connected(maker, sandbox_id) as box:
            return await box.diff(path)

    changes = run_on(backend, sandbox_id, work)
    if as_json:
        click.echo(to_json([asdict(change) for change in changes]))
        return
    for change in changes:
        click.echo(_show(change))


@click.command("apply")
@options.sandbox_argument
@_path_argument
@click.option("--overwrite", is_flag=True, help="Replace files of this machine that have changed meanwhile, too.")
@options.git_settings_option
@options.backend_option
@options.json_option
def apply_(
    sandbox_id: str, path: str | None, overwrite: bool, git_settings: bool, backend: str | Backend, as_json: bool
) -> None:
    """Make the same changes in this machine's folder. The sandbox stays as it is.

    Nothing is applied if files of this machine have changed since the sandbox was created, unless --overwrite.
    """

    async def work(maker: Backend) -> ApplyResult:
        async with connected(maker, sandbox_id) as box:
            return await box.apply(path, overwrite=overwrite, git_settings=git_settings)

    done = run_on(backend, sandbox_id, work)
    if as_json:
        click.echo(to_json(asdict(done)))
        return
    for change in done.changes:
        click.echo(_show(change))
    note_applied(done)


def _show(change: FolderChange) -> str:
    """One line of a list."""
    return f"{_SIGNS[change.kind]}{'!' if change.conflict else ' '} {plain(change.path)}"
