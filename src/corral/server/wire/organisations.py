"""Models of organisations, regions and keys. Clients check for every field, so each is sent; those for features
that this server does not have say that the feature is off."""

from __future__ import annotations

from typing import Any

from corral.server.wire.base import Model


class OrganizationDto(Model, kw_only=True):
    """An organisation. Clients need the dates of a suspension even if it is not suspended."""

    id: str
    name: str
    created_by: str
    personal: bool
    created_at: str
    updated_at: str
    suspended: bool
    suspended_at: str
    suspension_reason: str
    suspended_until: str
    suspension_cleanup_grace_period_hours: int
    max_cpu_per_sandbox: int
    max_memory_per_sandbox: int
    max_disk_per_sandbox: int
    secret_quota: int
    max_secrets_per_sandbox: int
    snapshot_deactivation_timeout_minutes: int
    default_queue_timeout: int | None
    sandbox_limited_network_egress: bool
    preview_warning_enabled: bool
    sso_enabled: bool
    scim_enabled: bool
    default_region_id: str
    experimental_config: dict[str, Any]
    otel_config: dict[str, Any] | None
    authenticated_rate_limit: float | None
    sandbox_create_rate_limit: float | None
    sandbox_lifecycle_rate_limit: float | None
    authenticated_rate_limit_ttl_seconds: float | None
    sandbox_create_rate_limit_ttl_seconds: float | None
    sandbox_lifecycle_rate_limit_ttl_seconds: float | None
    total_cpu_quota: int | None
    total_memory_quota: int | None
    total_disk_quota: int | None


class RegionDto(Model, kw_only=True):
    """A region: this server."""

    id: str
    name: str
    organization_id: str | None
    region_type: str
    created_at: str
    updated_at: str


class SandboxClassDto(Model, kw_only=True):
    """A class of sandboxes in a region."""

    region_id: str
    sandbox_class: str
    gpu_available: bool


class ApiKeyDto(Model, kw_only=True):
    """An API key, without its secret."""

    name: str
    value: str
    created_at: str
    permissions: list[str]
    last_used_at: str | None
    expires_at: str | None
    user_id: str
    organization_id: str


class Check(Model, kw_only=True):
    """The health of one component."""

    status: str


class HealthDto(Model, kw_only=True):
    """The health of the server."""

    status: str
    info: dict[str, Check]
    error: dict[str, Check]
    details: dict[str, Check]
