"""The secrets of organisations: stored, found, and given to the sandboxes that use them."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from corral.errors import CorralError
from corral.network.rules import RuleError
from corral.network.substitution import ANY_HEADER, check_header, check_value, read_hosts
from corral.secret import MAX_SECRETS
from corral.secret import Secret as SpecSecret
from corral.server import log
from corral.server.faults import Fault, bad_request, conflict, not_found
from corral.server.store.database import Database
from corral.server.store.rows import Sandbox, Secret, load_all, new_id
from corral.server.store.vault import Vault
from corral.server.wire.secrets import CreateSecret, UpdateSecret

if TYPE_CHECKING:
    from corral.server.lifecycle import Lifecycle
    from corral.server.living import LivingSandbox

MAX_PER_ORGANISATION = 1000
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")


class Secrets:
    """All secrets of a server. Values are decrypted only for the sandboxes that use them."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self._rows = {row.id: row for row in load_all(Secret, database)}

    def of(self, organisation_id: str) -> list[Secret]:
        """An organisation's."""
        return [row for row in self._rows.values() if row.organisation_id == organisation_id]

    def find(self, secret_id: str, *, organisation_id: str) -> Secret:
        """By id. Raises: Fault 404."""
        row = self._rows.get(secret_id)
        if row is None or row.organisation_id != organisation_id:
            raise not_found(f"secret {secret_id[:200]!r} not found")
        return row

    def add(self, wanted: CreateSecret, *, organisation_id: str) -> Secret:
        """Store a new one. Raises: Fault 400, 403 and 409."""
        if not _NAME.fullmatch(wanted.name):
            raise bad_request("name: must begin with a letter or '_', and have only letters, digits, '_' and '-'")
        mine = self.of(organisation_id)
        if any(row.name == wanted.name for row in mine):
            raise conflict(f"a secret named {wanted.name!r} already exists")
        if len(mine) >= MAX_PER_ORGANISATION:
            raise Fault(403, f"quota exceeded: the organisation's limit is {MAX_PER_ORGANISATION} secrets")
        row = Secret(
            id=new_id(),
            organisation_id=organisation_id,
            name=wanted.name,
            placeholder=f"dtn_secret_{secrets.token_hex(16)}",
            header=ANY_HEADER,
            sealed=b"",
        )
        given = {name: getattr(wanted, name) for name in ("value", "description", "hosts", "header")}
        self.change(row, UpdateSecret(**given))
        return row

    def change(self, row: Secret, wanted: UpdateSecret) -> None:
        """Change what is given, and save it. Raises: Fault 400."""
        what = "hosts"
        try:
            if wanted.hosts is not None:
                row.hosts = [str(rule) for rule in read_hosts(wanted.hosts)] if wanted.hosts else []
            what = "header"
            if wanted.header is not None:
                row.header = check_header(wanted.header)
            what = "value"
            if wanted.value is not None:
                row.sealed = self._vault.seal(check_value(wanted.value), about=row.id)
        except RuleError as error:
            raise bad_request(f"{what}: {error}") from None
        if wanted.description is not None:
            row.description = wanted.description
        row.updated_at = time.time()
        row.save(self._database)
        self._rows[row.id] = row

    def remove(self, row: Secret) -> None:
        """Delete one."""
        row.erase(self._database)
        self._rows.pop(row.id, None)

    def read(self, entries: Iterable[Mapping[str, str]] | None, *, organisation_id: str) -> dict[str, str]:
        """The ids of secrets by variable, from the names that a request gives.

        Raises: Fault 400, also for a secret without hosts: its value would go to everyone.
        """
        by_name = {row.name: row for row in self.of(organisation_id)}
        found: dict[str, str] = {}
        for entry in entries or ():
            if len(entry) != 1:
                raise bad_request("secrets: each entry has one variable and the name of one secret")
            ((variable, name),) = entry.items()
            row = by_name.get(name)
            if row is None:
                raise bad_request(f"secrets: there is no secret {name[:200]!r}")
            if not row.hosts:
                raise bad_request(
                    f"secrets: {name!r} names no hosts, so programs could have its value sent anywhere: set `hosts`"
                )
            if variable in found:
                raise bad_request(f"secrets: the variable {variable[:200]!r} is given twice")
            found[variable] = row.id
        if len(found) > MAX_SECRETS:
            raise bad_request(f"secrets: more than {MAX_SECRETS}")
        return found

    def for_sandbox(self, row: Sandbox) -> tuple[SpecSecret, ...]:
        """The secrets of a sandbox with their values, without those that were deleted. Raises: SpecError."""
        found = []
        for variable, secret_id in row.secrets.items():
            secret = self._rows.get(secret_id)
            if secret is None or secret.organisation_id != row.organisation_id or not secret.hosts:
                continue
            value = self._vault.open(secret.sealed, about=secret.id)
            hosts = [host for rule in secret.hosts for host in _with_its_top(rule)]
            found.append(SpecSecret(variable, value, hosts, secret.header, secret.placeholder))
        return tuple(found)

    def users_of(self, secret_id: str, rows: Iterable[Sandbox]) -> list[Sandbox]:
        """The running sandboxes that use a secret."""
        return [row for row in rows if secret_id in row.secrets.values() and row.state == "started"]


def _with_its_top(rule: str) -> tuple[str, ...]:
    """In Daytona, `*.example.org` is for example.org as well; in our rules it is for the names below."""
    return (rule, rule.removeprefix("*.")) if rule.startswith("*.") else (rule,)


async def push(lifecycle: Lifecycle, sandboxes: Iterable[LivingSandbox]) -> None:
    """Give sandboxes that run their secrets as they are now. A sandbox that can't take them is logged."""
    await asyncio.gather(*(_push_one(lifecycle, sandbox) for sandbox in sandboxes))


async def _push_one(lifecycle: Lifecycle, sandbox: LivingSandbox) -> None:
    try:
        async with sandbox.locked():
            if sandbox.row.state == "started":
                await apply(lifecycle, sandbox)
    except (CorralError, Fault) as error:
        log.event("secrets not changed", level=30, sandbox=sandbox.id, error=error)


async def apply(lifecycle: Lifecycle, sandbox: LivingSandbox) -> None:
    """Give a running sandbox its secrets. Its lock is held. Raises: CorralError."""
    handle = await lifecycle.sandboxes.connect_now(sandbox)
    await handle.box.set_secrets(lifecycle.secrets.for_sandbox(sandbox.row))
