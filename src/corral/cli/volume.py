"""`corral volume`: named folders that outlive sandboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from corral.cli import options
from corral.cli.display import plain, print_table, show_seconds, show_size
from corral.cli.failure import ERROR, say
from corral.cli.run import to_json
from corral.client.registry import get_backend
from corral.client.volume import AsyncVolume
from corral.errors import VolumeError
from corral.protocol import Backend
from corral.results import VolumeInfo, timestamp


@click.group()
def volume() -> None:
    """Create, list and remove volumes: named folders that sandboxes mount and that outlive them.

    \b
    corral volume create data --size 2GiB
    corral run --volume data:/data script.py
    corral volume rm data
    """


@volume.command()
@click.argument("name", metavar="NAME")
@click.option("--size", metavar="SIZE", help="Writes beyond it fail. Default: 10GiB as root, else no limit.")
@options.backend_option
@options.json_option
def create(name: str, size: str | None, backend: str | Backend, as_json: bool) -> None:
    """Create an empty volume, and print its name."""
    made = asyncio.run(AsyncVolume.create(name, size_bytes=size, backend=backend))
    click.echo(to_json(_describe(made.info)) if as_json else made.name)


@volume.command("list")
@options.backend_option
@click.option("--quiet", "-q", is_flag=True, help="Print only the names.")
@options.json_option
def list_volumes(backend: str | Backend, quiet: bool, as_json: bool) -> None:
    """List the volumes."""
    infos = asyncio.run(_list(get_backend(backend)))
    if as_json:
        click.echo(to_json([_describe(info) for info in infos]))
    elif quiet:
        for info in infos:
            click.echo(info.name)
    elif not infos:
        click.echo("no volumes")
    else:
        rows = [
            [plain(info.name), info.volume_id, show_seconds(max(0.0, time.time() - info.created)),
             _show(info.size_bytes), _show(info.used_bytes), str(len(info.sandboxes))]
            for info in infos
        ]  # fmt: skip
        print_table(rows, headers=["NAME", "ID", "AGE", "SIZE", "USED", "SANDBOXES"])


@volume.command()
@click.argument("name", metavar="NAME")
@options.backend_option
@options.json_option
def inspect(name: str, backend: str | Backend, as_json: bool) -> None:
    """Print what is known of a volume, and which sandboxes use it."""
    info = asyncio.run(AsyncVolume.get(name, backend=backend)).info
    if as_json:
        click.echo(to_json(_describe(info)))
        return
    used = timestamp(info.used) if info.used is not None else "never"
    rows = [
        ["name", plain(info.name)],
        ["id", info.volume_id],
        ["created", timestamp(info.created)],
        ["mounted last", used],
        ["size", show_size(info.size_bytes) if info.size_bytes is not None else "no limit"],
        ["on disk", _show(info.used_bytes)],
        ["sandboxes", ", ".join(info.sandboxes) or "none"],
    ]
    for key, value in rows:
        click.echo(f"{key:13} {value}")


@volume.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@options.backend_option
def rm(names: tuple[str, ...], backend: str | Backend) -> int:
    """Delete volumes with their files. One that a sandbox uses, running or stopped, is not deleted."""
    maker = get_backend(backend)

    async def work() -> int:
        failures = 0
        for name in names:
            try:
                await maker.delete_volume(name)
            except VolumeError as error:
                say(error.message, hint=error.hint)
                failures += 1
            else:
                click.echo(name)
        return failures

    return ERROR if asyncio.run(work()) else 0


async def _list(maker: Backend) -> Sequence[VolumeInfo]:
    return await maker.list_volumes()


def _show(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else show_size(size_bytes)


def _describe(info: VolumeInfo) -> dict[str, Any]:
    used = None if info.used is None else timestamp(info.used)
    return {**asdict(info), "created": timestamp(info.created), "used": used}
