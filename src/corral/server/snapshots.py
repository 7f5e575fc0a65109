"""The snapshots of a server: the default one, which all organisations can use, and those of each organisation."""

from __future__ import annotations

import time
import uuid

from corral.server.faults import Fault, conflict, not_found
from corral.server.settings import Defaults
from corral.server.store.database import Database
from corral.server.store.rows import Snapshot, load_all

BASE = "default"
BASE_ID = str(uuid.uuid5(uuid.NAMESPACE_DNS, "default.snapshot.corral"))
_ALSO_BASE = ("daytonaio/sandbox", "daytona-small", "daytona-medium", "daytona-large")
"""Names that Daytona has for its default snapshots; with any tag."""

PACKAGES_HINT = (
    "`corral serve --package NAME`, where it runs, brings Python packages into every sandbox, and `--network packages` "
    "lets programs inside install them"
)


class Snapshots:
    """All snapshots of a server."""

    def __init__(self, database: Database, defaults: Defaults) -> None:
        self._database = database
        self._rows = {row.id: row for row in load_all(Snapshot, database)}
        if BASE_ID not in self._rows:
            self.put(
                Snapshot(
                    id=BASE_ID,
                    organisation_id=None,
                    name=BASE,
                    cpu=defaults.cpu,
                    memory=defaults.memory_gib,
                    disk=defaults.disk_gib,
                )
            )

    def all(self) -> list[Snapshot]:
        """Those of all organisations."""
        return list(self._rows.values())

    def seen_by(self, organisation_id: str) -> list[Snapshot]:
        """The organisation's own, and the default one."""
        return [row for row in self._rows.values() if row.organisation_id in (None, organisation_id)]

    def look_up(self, wanted: str, *, organisation_id: str) -> Snapshot | None:
        """By id, name, or another name of the default one; None if not found."""
        mine = self.seen_by(organisation_id)
        known = {row.name: row for row in mine} | {row.id: row for row in mine}  # an id counts before a name
        return known.get(wanted, self._rows[BASE_ID] if wanted.partition(":")[0] in _ALSO_BASE else None)

    def find(self, wanted: str, *, organisation_id: str) -> Snapshot:
        """As `look_up`. Raises: Fault 404."""
        row = self.look_up(wanted, organisation_id=organisation_id)
        if row is None:
            raise not_found(f"snapshot {wanted[:200]!r} not found")
        return row

    def find_image(self, image: str, *, organisation_id: str) -> Snapshot:
        """The snapshot for an image. Raises: Fault 422."""
        row = self.look_up(image, organisation_id=organisation_id)
        if row is None:
            raise Fault(
                422,
                f"there is no snapshot {image[:200]!r}, and this server does not pull or build images: use one of its "
                f"snapshots, such as {BASE!r}; {PACKAGES_HINT}",
            )
        return row

    def put(self, row: Snapshot) -> None:
        """Add or change one. Raises: Fault 409 if the name is taken."""
        for other in self._rows.values():
            if other.name == row.name and other.id != row.id and other.organisation_id in (None, row.organisation_id):
                raise conflict(f"a snapshot named {row.name!r} already exists")
        row.updated_at = time.time()
        row.save(self._database)
        self._rows[row.id] = row

    def remove(self, row: Snapshot) -> None:
        """Delete one."""
        row.erase(self._database)
        self._rows.pop(row.id, None)

    def is_used_at_backend(self, engine_id: str, *, but_for: Snapshot) -> bool:
        """Whether another snapshot uses the same one of the backend."""
        return any(row.engine_id == engine_id for row in self._rows.values() if row.id != but_for.id)
