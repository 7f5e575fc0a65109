"""Rows as wire models."""

from __future__ import annotations

from typing import Any

from corral.results import timestamp
from corral.server.settings import TOOLBOX
from corral.server.store.rows import Sandbox as Row
from corral.server.store.rows import Snapshot
from corral.server.wire import control

DAEMON_VERSION = "corral"


def _common(row: Row, base_url: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "organization_id": row.organisation_id,
        "name": row.name,
        "snapshot": row.snapshot,
        "user": row.user,
        "labels": row.labels,
        "public": row.public,
        "network_block_all": row.network_block_all,
        "network_allow_list": row.network_allow_list,
        "domain_allow_list": row.domain_allow_list,
        "target": row.target,
        "cpu": row.cpu,
        "gpu": 0,
        "memory": row.memory,
        "disk": row.disk,
        "state": row.state,
        "desired_state": row.desired_state,
        "error_reason": row.error_reason,
        "recoverable": row.is_recoverable,
        "auto_stop_interval": row.auto_stop,
        "auto_pause_interval": row.auto_pause,
        "auto_archive_interval": row.auto_archive,
        "auto_delete_interval": row.auto_delete,
        "auto_destroy_at": timestamp(row.destroy_at) if row.destroy_at is not None else None,
        "created_at": timestamp(row.created_at),
        "updated_at": timestamp(row.updated_at),
        "last_activity_at": timestamp(row.active_at),
        "sandbox_class": "container",
        "daemon_version": DAEMON_VERSION,
        "toolbox_proxy_url": base_url + TOOLBOX,
    }


def sandbox(row: Row, *, base_url: str) -> control.Sandbox:
    """A sandbox."""
    volumes = [
        control.SandboxVolume(
            volume_id=each["volume_id"], mount_path=each["mount_path"], subpath=each["subpath"] or None
        )
        for each in row.volumes
    ]
    return control.Sandbox(**_common(row, base_url), env=row.env, kvm=False, volumes=volumes)


def list_item(row: Row, *, base_url: str) -> control.SandboxListItem:
    """A sandbox in a list."""
    return control.SandboxListItem(**_common(row, base_url))


def snapshot(row: Snapshot, *, target: str) -> control.SnapshotDto:
    """A snapshot."""
    return control.SnapshotDto(
        id=row.id,
        organization_id=row.organisation_id,
        general=row.organisation_id is None,
        name=row.name,
        image_name=row.image_name,
        state=row.state,
        size=None,
        entrypoint=row.entrypoint,
        cpu=row.cpu,
        gpu=0,
        mem=row.memory,
        disk=row.disk,
        error_reason=row.error_reason,
        created_at=timestamp(row.created_at),
        updated_at=timestamp(row.updated_at),
        last_used_at=timestamp(row.used_at) if row.used_at is not None else None,
        region_ids=[target],
        ref=row.name,
        source_sandbox_id=row.source_sandbox_id,
        sandbox_class="container",
    )
