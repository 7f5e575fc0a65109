"""`corral key`: the API keys of the server. Works on its data folder, also while the server runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral.cli.display import plain, print_table
from corral.cli.options import TIME, ceiling_option, json_option
from corral.cli.run import to_json
from corral.cli.serve import FIRST_ORGANISATION, data_folder, data_option, need_server
from corral.results import timestamp

if TYPE_CHECKING:
    from corral.server.auth import Keyring
    from corral.server.store.rows import Key


_SCOPES = ("read", "write", "delete", "run")


@contextlib.contextmanager
def _keyring(data_dir: Path | None) -> Iterator[Keyring]:
    need_server()
    from corral.server.auth import Keyring
    from corral.server.settings import ServerSettings
    from corral.server.store.database import Database

    folder = ServerSettings(data_folder=data_folder(data_dir)).state_folder
    with contextlib.closing(Database(folder, serving=False)) as database:
        yield Keyring(database)


@click.group()
def key() -> None:
    """Create, list and revoke the API keys of `corral serve`.

    \b
    corral key create --name ci --expires 30d
    corral key create --name viewer --scope read --organisation team --max-sandboxes 20
    corral key revoke ci
    """


@key.command()
@click.option("--name", "-n", metavar="NAME", help="A name for it. Default: key, key-2, key-3 and so on.")
@click.option("--organisation", default=FIRST_ORGANISATION, show_default=True, metavar="NAME",
              help="The organisation that the key belongs to; created if needed.")  # fmt: skip
@click.option("--scope", "scopes", multiple=True, type=click.Choice(_SCOPES),
              help="A permission of the key; without this, all of them.")  # fmt: skip
@ceiling_option(
    "What sandboxes of the key may reach at most, and reach if they ask for nothing else; by default as `corral serve`."
)
@click.option("--expires", type=TIME, metavar="TIME", help="The key expires after this time.")
@click.option("--max-sandboxes", type=click.IntRange(0), metavar="N", help="Limit on the organisation's sandboxes.")
@click.option("--max-cpu", type=click.IntRange(0), metavar="N", help="Of the organisation's running sandboxes.")
@click.option("--max-memory", type=click.IntRange(0), metavar="GIB", help="Of the organisation's running sandboxes.")
@click.option("--max-disk", type=click.IntRange(0), metavar="GIB", help="Of the organisation's sandboxes.")
@data_option
@json_option
def create(data_dir: Path | None, as_json: bool, **given: Any) -> None:
    """Create a key and print it. It is not shown again."""
    from corral.spec import NetworkPolicy

    with _keyring(data_dir) as keyring:
        organisation = keyring.organisation_named(given["organisation"])
        keyring.set_quota(
            organisation,
            sandboxes=given["max_sandboxes"],
            cpu=given["max_cpu"],
            memory_gib=given["max_memory"],
            disk_gib=given["max_disk"],
        )
        scopes = {"scopes": given["scopes"]} if given["scopes"] else {}
        name = given["name"] or _free_name(keyring.names_taken(organisation))
        made, secret = keyring.create(
            organisation=organisation,
            name=name,
            lifetime_seconds=given["expires"],
            network=NetworkPolicy.parse(given["ceiling"]) if given["ceiling"] is not None else None,
            **scopes,
        )
    if as_json:
        shown = {
            "id": made.id, "name": name, "key": secret, "organisation": organisation.name, "network": made.network,
            **_times(made),
        }  # fmt: skip
        click.echo(to_json(shown))
    else:
        click.echo(secret)


@key.command("list")
@data_option
@json_option
def list_keys(data_dir: Path | None, as_json: bool) -> None:
    """List the keys, with only the first characters of each."""
    with _keyring(data_dir) as keyring:
        keys, organisations = keyring.keys, keyring.organisations
    shown: list[dict[str, Any]] = [
        {
            "id": each.id,
            "name": each.name,
            "organisation": organisations[each.organisation_id].name,
            "begins": each.prefix,
            "scopes": each.scopes,
            "network": each.network,
            "state": _state(each),
            **_times(each),
        }
        for each in keys
    ]
    if as_json:
        click.echo(to_json(shown))
        return
    rows = [
        [
            each["id"][:8],
            each["name"],
            each["organisation"],
            each["begins"],
            _scopes(each["scopes"]),
            each["network"] or "as serve",
            _until(each),
        ]
        for each in shown
    ]
    print_table(rows, headers=("id", "name", "organisation", "begins", "scopes", "network", "state"))


def _scopes(scopes: list[str]) -> str:
    return "all" if set(scopes) == set(_SCOPES) else ",".join(scopes)


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time.time() else "good"


def _until(shown: dict[str, Any]) -> str:
    """The state for a table, with the expiry date."""
    if shown["state"] != "good" or shown["expires"] is None:
        return str(shown["state"])
    return f"until {shown['expires'][:10]}"


def _times(key: Key) -> dict[str, str | None]:
    times = {"created": key.created_at, "expires": key.expires_at, "revoked": key.revoked_at}
    return {name: None if seconds is None else timestamp(seconds) for name, seconds in times.items()}


def _free_name(taken: set[str]) -> str:
    return next(name for name in chain(["key"], (f"key-{number}" for number in count(2))) if name not in taken)


@key.command()
@click.argument("wanted", metavar="KEY")
@data_option
def revoke(wanted: str, data_dir: Path | None) -> None:
    """Revoke a key, by its name or the beginning of its id."""
    with _keyring(data_dir) as keyring:
        ended = keyring.revoke(wanted)
    click.echo(f"{plain(ended.name)} ({ended.id}) is revoked")
