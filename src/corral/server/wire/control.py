"""The control plane's models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from corral.server.wire.base import Model, Query

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Cores = Annotated[int, Meta(ge=1, le=1024)]
Gibibytes = Annotated[int, Meta(ge=1, le=65536)]
Minutes = Annotated[int, Meta(ge=0, le=10_000_000)]
MinutesOrNever = Annotated[int, Meta(ge=-10_000_000, le=10_000_000)]
"""Any number below 0 means never."""
AllowList = Annotated[str, Meta(max_length=8192)]
"""Entries separated by commas."""
ShortText = Annotated[str, Meta(max_length=4096)]

SandboxState = Literal[
    "creating", "restoring", "destroyed", "destroying", "started", "stopped", "starting", "stopping", "error",
    "build_failed", "pending_build", "building_snapshot", "unknown", "pulling_snapshot", "archived", "archiving",
    "resizing", "snapshotting", "forking", "pausing", "paused", "resuming",
]  # fmt: skip


class CreateBuildInfo(Model, kw_only=True):
    """A Dockerfile to build an image from; only a single `FROM` line is supported."""

    dockerfile_content: str
    context_hashes: list[str] | None = None


class SandboxVolume(Model, kw_only=True):
    """A volume that a sandbox mounts, by id or name, whole or a folder of it."""

    volume_id: Name
    mount_path: ShortText
    subpath: ShortText | None = None


class CreateVolume(Model, kw_only=True):
    """A request to create a volume."""

    name: Name


class VolumeDto(Model, kw_only=True):
    """A volume."""

    id: str
    name: str
    organization_id: str
    state: Literal["creating", "ready", "pending_create", "pending_delete", "deleting", "deleted", "error"]
    created_at: str
    updated_at: str
    last_used_at: str | None = None
    error_reason: str | None = None


class CreateSandbox(Model, kw_only=True):
    """A request to create a sandbox."""

    name: Name | None = None
    snapshot: Name | None = None
    user: ShortText | None = None
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    public: bool | None = None
    network_block_all: bool | None = None
    kvm: bool | None = None
    network_allow_list: AllowList | None = None
    domain_allow_list: AllowList | None = None
    outbound_proxy_url: str | None = None
    otel_endpoint_override: str | None = None
    target: ShortText | None = None
    cpu: Cores | None = None
    gpu: Count | None = None
    gpu_type: list[str] | None = None
    spot: bool | None = None
    memory: Gibibytes | None = None
    disk: Gibibytes | None = None
    auto_stop_interval: Minutes | None = None
    auto_pause_interval: Minutes | None = None
    auto_archive_interval: Minutes | None = None
    auto_delete_interval: MinutesOrNever | None = None
    ttl_minutes: Minutes | None = None
    queue_timeout: int | None = None
    volumes: list[SandboxVolume] | None = None
    build_info: CreateBuildInfo | None = None
    linked_sandbox: str | None = None
    secrets: list[dict[str, str]] | None = None


class UpdateSandboxNetworkSettings(Model, kw_only=True):
    """What a sandbox may reach; omitted fields stay, as far as they agree with those that are given."""

    network_block_all: bool | None = None
    network_allow_list: AllowList | None = None
    domain_allow_list: AllowList | None = None


class SandboxListItem(Model, kw_only=True):
    """A sandbox in a list."""

    id: str
    organization_id: str
    name: str
    snapshot: str | None = None
    user: str
    labels: dict[str, str]
    public: bool
    network_block_all: bool
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    target: str
    cpu: int
    gpu: int
    memory: int
    disk: int
    state: SandboxState
    desired_state: str
    error_reason: str | None = None
    recoverable: bool
    auto_stop_interval: int
    auto_pause_interval: int
    auto_archive_interval: int
    auto_delete_interval: int
    auto_destroy_at: str | None = None
    created_at: str
    updated_at: str
    last_activity_at: str
    sandbox_class: str
    daemon_version: str
    toolbox_proxy_url: str


class Sandbox(SandboxListItem, kw_only=True):
    """A sandbox."""

    env: dict[str, str]
    kvm: bool
    volumes: list[SandboxVolume]


class ListSandboxesResponse(Model, kw_only=True):
    """A page of sandboxes, and the cursor of the next."""

    items: list[SandboxListItem]
    next_cursor: str | None


class PaginatedSandboxes(Model, kw_only=True):
    """A numbered page of sandboxes, for older clients."""

    items: list[Sandbox]
    total: int
    page: int
    total_pages: int


class SandboxLabels(Model, kw_only=True):
    """The labels of a sandbox."""

    labels: dict[str, str]


class ResizeSandbox(Model, kw_only=True):
    """New limits for a sandbox; omitted ones stay."""

    cpu: Cores | None = None
    memory: Gibibytes | None = None
    disk: Gibibytes | None = None


class ForkSandbox(Model, kw_only=True):
    """A request to fork a sandbox."""

    name: Name | None = None


class CreateSandboxSnapshot(Model, kw_only=True):
    """A request to create a snapshot of a sandbox."""

    name: Name
    include_memory: bool | None = None


class UpdateLastActivity(Model, kw_only=True):
    """A request to record activity."""

    activity_type: ShortText | None = None


class PortPreviewUrl(Model, kw_only=True):
    """The URL of a port of the sandbox; clients append a path."""

    sandbox_id: str
    url: str
    token: str


class SignedPortPreviewUrl(Model, kw_only=True):
    """The URL of a port of the sandbox, with access for a limited time."""

    sandbox_id: str
    port: int
    token: str
    url: str


class SignedPreviewQuery(Query, kw_only=True):
    """The query for a signed URL."""

    expires_in_seconds: Annotated[int, Meta(ge=1, le=86400)] = 60


class Url(Model, kw_only=True):
    """A URL."""

    url: str


class SnapshotDto(Model, kw_only=True):
    """A snapshot. Fields without a default are always sent, even if null: some clients need the key."""

    id: str
    organization_id: str | None = None
    general: bool
    name: str
    image_name: str | None = None
    state: str
    size: float | None
    entrypoint: list[str] | None
    cpu: int
    gpu: int
    mem: int
    disk: int
    error_reason: str | None
    created_at: str
    updated_at: str
    last_used_at: str | None
    region_ids: list[str]
    ref: str | None = None
    source_sandbox_id: str | None
    sandbox_class: str


class PaginatedSnapshots(Model, kw_only=True):
    """A page of snapshots."""

    items: list[SnapshotDto]
    total: int
    page: int
    total_pages: int


class CreateSnapshot(Model, kw_only=True):
    """A request to create a snapshot."""

    name: Name
    image_name: Name | None = None
    entrypoint: list[str] | None = None
    cpu: Cores | None = None
    gpu: Count | None = None
    gpu_type: list[str] | None = None
    memory: Gibibytes | None = None
    disk: Gibibytes | None = None
    build_info: CreateBuildInfo | None = None
    region_id: str | None = None
    sandbox_class: str | None = None


class OidcConfig(Model, kw_only=True):
    """Empty: OpenID Connect is not supported, but clients need the fields."""

    issuer: str
    client_id: str
    audience: str
    provider: str


class DaytonaConfiguration(Model, kw_only=True):
    """The configuration of the server."""

    version: str
    oidc: OidcConfig
    linked_accounts_enabled: bool
    announcements: dict[str, Any]
    proxy_template_url: str
    proxy_toolbox_url: str
    default_snapshot: str
    dashboard_url: str
    max_auto_archive_interval: int
    maintanance_mode: bool
    environment: str
    analytics_api_url: str | None = None


class MetricDataPoint(Model, kw_only=True):
    """A value at a time."""

    timestamp: str
    value: float


class MetricSeries(Model, kw_only=True):
    """The values of one metric."""

    metric_name: str
    data_points: list[MetricDataPoint]


class MetricsResponse(Model, kw_only=True):
    """Metrics of a sandbox."""

    series: list[MetricSeries]


class ErrorResponse(Model, kw_only=True):
    """The body of every error response."""

    path: str
    timestamp: str
    status_code: int
    error: str
    message: str
    code: str | None = None
    source: str | None = None
    method: str


# Queries.


class Filters(Query, kw_only=True):
    """Filters of a list of sandboxes."""

    id: str | None = None
    name: str | None = None
    labels: str | None = None
    include_errored_deleted: bool = False
    states: list[str] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    region_ids: list[str] = field(default_factory=list)
    sandbox_classes: list[str] = field(default_factory=list)
    min_cpu: float | None = None
    max_cpu: float | None = None
    min_memory: float | None = field(default=None, name="minMemoryGiB")
    max_memory: float | None = field(default=None, name="maxMemoryGiB")
    min_disk: float | None = field(default=None, name="minDiskGiB")
    max_disk: float | None = field(default=None, name="maxDiskGiB")
    min_gpu: float | None = None
    max_gpu: float | None = None
    is_public: bool | None = None
    is_recoverable: bool | None = None
    created_at_after: datetime | None = None
    created_at_before: datetime | None = None
    last_event_after: datetime | None = None
    last_event_before: datetime | None = None
    auto_destroy_at_after: datetime | None = None
    auto_destroy_at_before: datetime | None = None


class SandboxesQuery(Filters, kw_only=True):
    """A list of sandboxes by cursor."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    include_warm: bool = False
    sort: Literal["name", "cpu", "memoryGib", "diskGib", "lastActivityAt", "createdAt"] = "createdAt"
    order: Literal["asc", "desc"] = "desc"


class PageQuery(Filters, kw_only=True):
    """A list of sandboxes by numbered pages, for older clients."""

    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    regions: list[str] = field(default_factory=list)
    sort: Literal["id", "name", "state", "snapshot", "region", "updatedAt", "createdAt", "lastActivityAt"] = "createdAt"
    order: Literal["asc", "desc"] = "desc"


class SnapshotsQuery(Query, kw_only=True):
    """Filters of the list of snapshots."""

    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    name: str | None = None
    source_sandbox_id: str | None = None
    sort: Literal["name", "state", "lastUsedAt", "createdAt"] = "lastUsedAt"
    order: Literal["asc", "desc"] = "desc"


class VolumesQuery(Query, kw_only=True):
    """Options of the list of volumes."""

    include_deleted: bool = False


class GetQuery(Query, kw_only=True):
    """Options for getting a sandbox."""

    verbose: bool = False


class RecoverQuery(Query, kw_only=True):
    """Options for recovering a sandbox."""

    skip_start: bool = False


class ForceQuery(Query, kw_only=True):
    """An option for stopping or deleting a sandbox; ignored."""

    force: bool = False


class MetricsQuery(Query, kw_only=True):
    """Names of metrics and a time range."""

    metric_names: list[str] = field(default_factory=list)
    since: datetime | None = field(default=None, name="from")
    until: datetime | None = field(default=None, name="to")
