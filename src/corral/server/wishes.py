"""From a wish on the wire to a row and a Spec: what is refused is refused here, before anything is made."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self

from corral.errors import SpecError
from corral.server.faults import Fault, bad_request, not_here
from corral.server.settings import GIB, Defaults
from corral.server.store.rows import Sandbox, Snapshot, new_id
from corral.server.wire.control import CreateSandbox
from corral.spec import HOME, USER, Resources, Spec, check_env

LANGUAGE_LABEL = "code-toolbox-language"
LANGUAGES = ("python", "javascript", "typescript")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}")
_FROM = re.compile(r"\s*FROM\s+(?:--platform=\S+\s+)?(\S+)\s*", re.IGNORECASE)
MAX_LABELS, MAX_ENV = 100, 1000


def refuse_what_is_missing(wish: CreateSandbox) -> None:
    """Raises: Fault 501 for parts of the wire that are not here."""
    if wish.volumes:
        raise not_here("mounting volumes")
    if wish.secrets:
        raise not_here("secrets")
    if wish.network_allow_list or wish.domain_allow_list or wish.outbound_proxy_url:
        raise not_here("opening the network to some hosts")
    if wish.gpu:
        raise not_here("a GPU")
    if wish.kvm:
        raise not_here("KVM inside a sandbox")
    if wish.linked_sandbox:
        raise not_here("linking sandboxes")


def image_of(wish: CreateSandbox) -> str | None:
    """The image that a Dockerfile of one line names. Raises: Fault 501 for any longer one."""
    if wish.build_info is None:
        return None
    lines = [
        line for line in wish.build_info.dockerfile_content.splitlines() if line.strip() and line.strip()[0] != "#"
    ]
    found = _FROM.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        raise not_here("building images")
    return found[1]


def make_row(wish: CreateSandbox, *, organisation_id: str, snapshot: Snapshot, defaults: Defaults) -> Sandbox:
    """The sandbox as it will be known. Raises: Fault 400."""
    sandbox_id = new_id()
    name = wish.name if wish.name is not None else sandbox_id
    if not name.isprintable() or name != name.strip() or "/" in name:
        raise bad_request("a name has no slash, no control characters and no space around it")
    user = wish.user or USER
    if not _USER.fullmatch(user):
        raise bad_request(f"{user[:100]!r} is no user")
    labels, env = wish.labels or {}, wish.env or {}
    if len(labels) > MAX_LABELS or len(env) > MAX_ENV:
        raise bad_request(f"at most {MAX_LABELS} labels and {MAX_ENV} variables")
    try:
        check_env(env)
    except SpecError as error:
        raise bad_request(str(error)) from None
    language_of(labels)
    now = time.time()
    return Sandbox(
        id=sandbox_id,
        organisation_id=organisation_id,
        name=name,
        snapshot=snapshot.name,
        user=user,
        env=env,
        labels=labels,
        public=bool(wish.public),
        target=wish.target or defaults.target,
        cpu=wish.cpu or snapshot.cpu,
        memory=wish.memory or snapshot.memory,
        disk=wish.disk or snapshot.disk,
        state="creating",
        desired_state="started",
        intent="create",
        network_block_all=bool(wish.network_block_all),
        auto_stop=_or(wish.auto_stop_interval, defaults.auto_stop_minutes),
        auto_pause=wish.auto_pause_interval or 0,
        auto_archive=_or(wish.auto_archive_interval, defaults.auto_archive_minutes),
        auto_delete=_or(wish.auto_delete_interval, defaults.auto_delete_minutes),
        destroy_at=now + 60 * wish.ttl_minutes if wish.ttl_minutes else None,
        created_at=now,
        updated_at=now,
        active_at=now,
        state_at=now,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def make_spec(row: Sandbox, *, snapshot: Snapshot | None) -> Spec:
    """What the backend is asked for. Raises: SpecError."""
    told = {
        "DAYTONA_SANDBOX_ID": row.id,
        "DAYTONA_SANDBOX_USER": row.user,
        "DAYTONA_SANDBOX_SNAPSHOT": row.snapshot or "",
        "DAYTONA_ORGANIZATION_ID": row.organisation_id,
        "DAYTONA_REGION_ID": row.target,
    }
    resources = Resources(cpus=row.cpu, memory_bytes=row.memory * GIB, disk_bytes=row.disk * GIB)
    env = {**told, **row.env}
    if snapshot is None or snapshot.engine_id is None:
        return Spec(resources=resources, env=env, workdir=HOME)
    return Spec(resources=resources, env=env, workdir=HOME, snapshot=snapshot.engine_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWish:
    """New limits. They stand in the intent, so that a server that was ended in the middle can do it again."""

    cpu: int | None
    memory: int | None
    disk: int | None

    def to_intent(self) -> str:
        """For the database."""
        return " ".join(["resize", *(str(value or "-") for value in (self.cpu, self.memory, self.disk))])

    @classmethod
    def from_intent(cls, intent: str | None) -> Self | None:
        """None if it is another intent."""
        words = (intent or "").split()
        if len(words) != 4 or words[0] != "resize":
            return None
        cpu, memory, disk = (None if word == "-" else int(word) for word in words[1:])
        return cls(cpu=cpu, memory=memory, disk=disk)


def language_of(labels: dict[str, str]) -> str:
    """The label that carries it. Raises: Fault 400 for one that no client could read back."""
    language = labels.get(LANGUAGE_LABEL, "python")
    if language not in LANGUAGES:
        raise Fault(400, f"the label {LANGUAGE_LABEL} must be one of {', '.join(LANGUAGES)}")
    return language


def home_of(user: str) -> str:
    """Where a user is at home, inside."""
    return {"daytona": HOME, "1000": HOME, "root": "/root", "0": "/root"}.get(user, "/tmp")
