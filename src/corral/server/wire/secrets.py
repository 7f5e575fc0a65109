"""Models of secrets. A value is only ever received."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from corral.server.wire.base import Answer, Model, Query
from corral.server.wire.control import ShortText

SecretName = Annotated[str, Meta(min_length=1, max_length=256)]
SecretValue = Annotated[str, Meta(min_length=1, max_length=32 * 1024)]
Hosts = Annotated[list[str], Meta(max_length=100)]


class CreateSecret(Model, kw_only=True):
    """A request to store a secret. `header` is an addition of this server: the only header that it is put into."""

    name: SecretName
    value: SecretValue
    description: ShortText | None = None
    hosts: Hosts | None = None
    header: ShortText | None = None


class UpdateSecret(Model, kw_only=True):
    """Changes of a secret; omitted fields stay."""

    value: SecretValue | None = None
    description: ShortText | None = None
    hosts: Hosts | None = None
    header: ShortText | None = None


class SecretDto(Answer, kw_only=True):
    """A secret, without its value."""

    id: str
    name: str
    description: str | None
    created_at: str
    updated_at: str
    placeholder: str
    hosts: list[str]
    header: str


class ListSecretsResponse(Answer, kw_only=True):
    """A page of secrets, and the cursor of the next."""

    items: list[SecretDto]
    total: int
    next_cursor: str | None


class UpdateSandboxSecrets(Model, kw_only=True):
    """The secrets of a sandbox: for each variable the name of a secret, one of them in each entry."""

    secrets: Annotated[list[dict[str, str]], Meta(max_length=100)]


class SecretsQuery(Query, kw_only=True):
    """A list of secrets."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    name: str | None = None
    sort: Literal["name", "createdAt", "updatedAt"] = "createdAt"
    order: Literal["asc", "desc"] = "desc"
