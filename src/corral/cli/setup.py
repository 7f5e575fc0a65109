"""`corral setup`: installs optional runtimes."""

from __future__ import annotations

import time

import click

from corral.cli.display import Progress, paint, plain, show_seconds


@click.group()
def setup() -> None:
    """Install optional runtimes for sandboxes into Corral's data folder."""


@setup.command()
@click.option("--force", is_flag=True, help="Install it again, even if it is already installed.")
def typescript(force: bool) -> None:
    """Install a small TypeScript runtime from npm, for machines whose Node.js can't run TypeScript by itself."""
    from corral.backends.embedded.settings import default_data_folder
    from corral.backends.embedded.typescript import setup as runtime

    folder = default_data_folder()
    if runtime.installed(folder) is not None and not force:
        click.echo("typescript is already installed")
        return
    begun = time.monotonic()
    with Progress() as progress:
        progress.show("asking npm …")
        runtime.install(folder, on_progress=lambda text: progress.show(plain(str(text))))
    click.echo(f"{paint('installed', 'green')} typescript in {show_seconds(time.monotonic() - begun)}")
