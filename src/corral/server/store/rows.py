"""The rows of the database as objects, and how they get there."""

from __future__ import annotations

import functools
import secrets
import time
import uuid
from typing import Any, ClassVar, TypeVar

import msgspec

from corral.server.store.database import Database

T = TypeVar("T", bound="Row")


def new_id() -> str:
    """A new random id."""
    return str(uuid.uuid4())


def new_signing_key() -> bytes:
    """A key for signed URLs."""
    return secrets.token_urlsafe(32).encode()


class Row(msgspec.Struct, kw_only=True):
    """A row; its fields are the columns, and maps and lists are JSON there."""

    table: ClassVar[str]
    id: str

    def save(self, database: Database) -> None:
        """Insert or update it."""
        database.run(_upsert(type(self)), [_to_column(getattr(self, name)) for name in self.__struct_fields__])

    def erase(self, database: Database) -> None:
        """Delete it."""
        database.run(f"DELETE FROM {self.table} WHERE id = ?", (self.id,))  # noqa: S608 - the table's name is ours


def load_all(kind: type[T], database: Database) -> list[T]:
    """Every row of a table."""
    names = kind.__struct_fields__
    found = database.rows(f"SELECT {', '.join(names)} FROM {kind.table}")  # noqa: S608 - names are ours
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return [
        kind(**{name: _from_column(types[name], value) for name, value in zip(names, row, strict=True)})
        for row in found
    ]


@functools.cache
def _upsert(kind: type[Row]) -> str:
    names = kind.__struct_fields__
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
    marks = ", ".join("?" * len(names))
    return (
        f"INSERT INTO {kind.table} ({', '.join(names)}) VALUES ({marks}) "  # noqa: S608 - names are ours
        f"ON CONFLICT (id) DO UPDATE SET {changes}"
    )


def _to_column(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


def _from_column(kind: Any, value: Any) -> Any:
    if kind is bool:
        return bool(value)
    if isinstance(value, str) and kind not in (str, str | None):
        return msgspec.json.decode(value, type=kind)
    return value


class Organisation(Row, kw_only=True):
    """The owner of keys, sandboxes and snapshots, and its limits. None: no limit."""

    table = "organisations"
    name: str
    created_at: float
    max_sandboxes: int | None = None
    max_cpu: int | None = None
    max_memory_gib: int | None = None
    max_disk_gib: int | None = None


class Key(Row, kw_only=True):
    """An API key; only its digest is stored."""

    table = "keys"
    organisation_id: str
    name: str
    prefix: str
    digest: bytes
    scopes: list[str]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    network: str | None = None
    """What its sandboxes may reach at most, as `network=` takes it; None is the server's own."""


class Sandbox(Row, kw_only=True):
    """A sandbox: what clients see, and the intent."""

    table = "sandboxes"
    organisation_id: str
    name: str
    engine_id: str | None = None
    """Its name at the backend; None before it was created."""
    snapshot: str | None = None
    user: str
    env: dict[str, str]
    set_env: dict[str, str | None] = {}
    """Variables that `POST /env` of the toolbox has set for later programs; None for those it has unset."""
    git_hosts: list[str] = []
    """Where git credentials may be sent: scheme, host and port of every URL that callers have named for git."""
    volumes: list[dict[str, str]] = []
    """What it mounts: `volume_id`, `mount_path` and `subpath` of each."""
    labels: dict[str, str]
    public: bool = False
    target: str
    cpu: int
    memory: int
    disk: int
    state: str
    desired_state: str
    intent: str | None = None
    """A change that was not finished; undone or repeated at the next start."""
    error_reason: str | None = None
    network_block_all: bool = False
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    network_ceiling: str | None = None
    """What the key that asked may reach at most, as `network=` takes it; None is the server's own."""
    auto_stop: int
    auto_pause: int = 0
    auto_archive: int
    auto_delete: int
    destroy_at: float | None = None
    created_at: float = msgspec.field(default_factory=time.time)
    updated_at: float = msgspec.field(default_factory=time.time)
    active_at: float = msgspec.field(default_factory=time.time)
    state_at: float = msgspec.field(default_factory=time.time)
    """Since when it is in its state."""
    signing_key: bytes = msgspec.field(default_factory=new_signing_key)
    """The secret that the keys for signing URLs are derived from."""
    request_token: str | None = None
    """A digest of the client's token for the request that created it: a repeated request gets this sandbox."""
    secrets: dict[str, str] = {}
    """Variables that hold placeholders, and the ids of their secrets."""

    @property
    def is_recoverable(self) -> bool:
        """Whether it is in state `error`, and the backend may still have it."""
        return self.state == "error" and self.engine_id is not None


class Snapshot(Row, kw_only=True):
    """A snapshot that sandboxes can be created from."""

    table = "snapshots"
    organisation_id: str | None
    """None for the default snapshot, which all organisations can use."""
    name: str
    engine_id: str | None = None
    """Its name at the backend; None is the backend's own base."""
    image_name: str | None = None
    user: str | None = None
    """The user that programs run as in sandboxes created from it; None for the default user."""
    state: str = "active"
    cpu: int
    memory: int
    disk: int
    entrypoint: list[str] | None = None
    source_sandbox_id: str | None = None
    error_reason: str | None = None
    intent: str | None = None
    created_at: float = msgspec.field(default_factory=time.time)
    updated_at: float = msgspec.field(default_factory=time.time)
    used_at: float | None = None


class Secret(Row, kw_only=True):
    """A secret of an organisation; its value is encrypted."""

    table = "secrets"
    organisation_id: str
    name: str
    description: str | None = None
    placeholder: str
    hosts: list[str] = []
    header: str
    sealed: bytes
    created_at: float = msgspec.field(default_factory=time.time)
    updated_at: float = msgspec.field(default_factory=time.time)


class Preview(Row, kw_only=True):
    """A port of a sandbox that has a loopback address of its own; `id` is made of both."""

    table = "previews"
    sandbox_id: str
    port: int
    address: str
    created_at: float = msgspec.field(default_factory=time.time)


class PreviewLink(Row, kw_only=True):
    """A signed link to a port of a sandbox; its token is not stored, `id` is the token's digest."""

    table = "preview_links"
    sandbox_id: str
    port: int
    key_id: str
    """The key that it was created with, and ends with."""
    user: int | None = None
    """The user of this machine who may use the port's loopback address without the token, while the link is valid."""
    expires_at: float
