"""Models of organisations, regions and keys. Clients check for every field, so each is sent; those for features
that this server does not have say that the feature is off."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.results import timestamp
from corral.server.wire.base import Answer

NEVER = timestamp(0)


class OrganizationDto(Answer, kw_only=True):
    """An organisation. Clients need the dates of a suspension even if it is not suspended."""

    id: str
    name: str
    created_by: str = "corral"
    personal: bool = False
    created_at: str
    updated_at: str
    suspended: bool = False
    suspended_at: str = NEVER
    suspension_reason: str = ""
    suspended_until: str = NEVER
    suspension_cleanup_grace_period_hours: int = 0
    max_cpu_per_sandbox: int
    max_memory_per_sandbox: int
    max_disk_per_sandbox: int
    secret_quota: int
    max_secrets_per_sandbox: int
    snapshot_deactivation_timeout_minutes: int = 0
    default_queue_timeout: int | None = None
    sandbox_limited_network_egress: bool = False
    preview_warning_enabled: bool = False
    sso_enabled: bool = False
    scim_enabled: bool = False
    default_region_id: str
    experimental_config: dict[str, Any] = msgspec.field(default_factory=dict)
    otel_config: dict[str, Any] | None = None
    authenticated_rate_limit: float | None
    sandbox_create_rate_limit: float | None = None
    sandbox_lifecycle_rate_limit: float | None = None
    authenticated_rate_limit_ttl_seconds: float | None = 1
    sandbox_create_rate_limit_ttl_seconds: float | None = None
    sandbox_lifecycle_rate_limit_ttl_seconds: float | None = None
    total_cpu_quota: int | None
    total_memory_quota: int | None
    total_disk_quota: int | None


class RegionDto(Answer, kw_only=True):
    """A region: this server."""

    id: str
    name: str
    organization_id: str | None = None
    region_type: str = "shared"
    created_at: str
    updated_at: str


class SandboxClassDto(Answer, kw_only=True):
    """A class of sandboxes in a region."""

    region_id: str
    sandbox_class: str = "container"
    gpu_available: bool = False


class ApiKeyDto(Answer, kw_only=True):
    """An API key, without its secret."""

    name: str
    value: str
    created_at: str
    permissions: list[str]
    last_used_at: str | None = None
    expires_at: str | None
    user_id: str = "corral"
    organization_id: str


class Check(Answer, kw_only=True):
    """The health of one component."""

    status: str


class HealthDto(Answer, kw_only=True):
    """The health of the server."""

    status: str
    info: dict[str, Check]
    error: dict[str, Check]
    details: dict[str, Check]
