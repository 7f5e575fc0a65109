"""From a request to create a sandbox to its row and its Spec; requests that can't be met are refused here."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence

from corral.results import OWNER_ID_LABEL, OWNER_LABEL, OWNER_NAME_LABEL
from corral.secret import Secret
from corral.server.faults import Fault, bad_request, unsupported
from corral.server.settings import GIB, Defaults
from corral.server.snapshots import PACKAGES_HINT
from corral.server.store.rows import Sandbox, Snapshot, new_id
from corral.server.volumes import mounts_of
from corral.server.wire.control import CreateBuildInfo, CreateSandbox, ResizeSandbox
from corral.spec import HOME, USER, NetworkPolicy, Resources, Spec, check_env, check_sizes

LANGUAGE_LABEL = "code-toolbox-language"
LANGUAGES = ("python", "javascript", "typescript")
WORKDIR_LABEL = "corral.workdir"
"""The label for the working directory, which Daytona's API has no field for."""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}")
_FROM = re.compile(r"\s*FROM\s+(?:--platform=\S+\s+)?(\S+)\s*", re.IGNORECASE)
_TAKEN = frozenset({"paginated", "for-runner", "ssh-access"})
"""Words that mean something else where a path has a sandbox's name."""
MAX_LABELS, MAX_ENV = 100, 1000


def refuse_unsupported(wanted: CreateSandbox) -> None:
    """Raises: Fault 501 for features that this server does not support; 400 for options that contradict each other."""
    if wanted.outbound_proxy_url:
        raise unsupported(
            "outboundProxyUrl (sandboxes use the proxy that the server itself is configured for; "
            "networkAllowList and domainAllowList restrict what they reach)"
        )
    if wanted.gpu:
        raise unsupported("GPUs")
    if wanted.kvm:
        raise unsupported("KVM")
    if wanted.linked_sandbox:
        raise unsupported("linking sandboxes")
    if wanted.auto_pause_interval and wanted.auto_stop_interval:
        raise bad_request("at most one of autoStopInterval and autoPauseInterval can be other than 0")


def digest_token(given: str | None) -> str | None:
    """A digest of the client's token for a request; None without one."""
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest() if given else None


def image_of(build: CreateBuildInfo | None) -> str | None:
    """The image of a Dockerfile with a single `FROM` line. Raises: Fault 501 for any other."""
    if build is None:
        return None
    lines = [line for line in build.dockerfile_content.splitlines() if line.strip() and line.strip()[0] != "#"]
    found = _FROM.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        raise unsupported(f"building images; {PACKAGES_HINT}")
    return found[1]


def make_row(
    wanted: CreateSandbox,
    *,
    organisation_id: str,
    snapshot: Snapshot,
    defaults: Defaults,
    secrets: Mapping[str, str] | None = None,
    volumes: Sequence[Mapping[str, str]] = (),
) -> Sandbox:
    """The row of the new sandbox; `secrets` are the ids of secrets by variable.

    Raises: Fault 400; SpecError for env and labels, which is answered with 400 too.
    """
    sandbox_id = new_id()
    name = wanted.name if wanted.name is not None else sandbox_id
    if not name.isprintable() or name != name.strip() or "/" in name or name in (".", ".."):
        raise bad_request("name: must not contain slashes or control characters, nor begin or end with a space")
    if name in _TAKEN:
        raise bad_request(f"name: {name!r} is reserved")
    user = wanted.user or snapshot.user or USER
    if not _USER.fullmatch(user):
        raise bad_request(f"user: {user[:100]!r} is not a valid user name")
    labels, env = wanted.labels or {}, wanted.env or {}
    if len(env) > MAX_ENV:
        raise bad_request(f"env: more than {MAX_ENV} variables")
    check_env(env)
    check_sizes({}, env)
    check_labels(labels)
    auto_stop = 0 if wanted.auto_pause_interval else defaults.auto_stop_minutes
    return Sandbox(
        id=sandbox_id,
        organisation_id=organisation_id,
        name=name,
        snapshot=snapshot.name,
        user=user,
        env=env,
        labels=labels,
        public=bool(wanted.public),
        target=wanted.target or defaults.target,
        cpu=wanted.cpu or snapshot.cpu,
        memory=wanted.memory or snapshot.memory,
        disk=wanted.disk or snapshot.disk,
        state="creating",
        desired_state="started",
        intent="create",
        auto_stop=_or(wanted.auto_stop_interval, auto_stop),
        auto_pause=wanted.auto_pause_interval or 0,
        auto_archive=archive_after(_or(wanted.auto_archive_interval, defaults.auto_archive_minutes), defaults=defaults),
        auto_delete=max(-1, _or(wanted.auto_delete_interval, defaults.auto_delete_minutes)),
        secrets=dict(secrets or {}),
        volumes=[dict(each) for each in volumes],
        destroy_at=time.time() + 60 * wanted.ttl_minutes if wanted.ttl_minutes else None,
    )


def check_snapshot_name(name: str) -> None:
    """Raises: Fault 400. Slashes and colons are allowed: snapshots are named like images."""
    if not name.isprintable() or name != name.strip() or name in (".", ".."):
        raise bad_request("name: must not contain control characters, nor begin or end with a space")


def archive_after(minutes: int, *, defaults: Defaults) -> int:
    """The interval in minutes after which a stopped sandbox is archived; 0 means the longest."""
    return min(minutes or defaults.max_auto_archive_minutes, defaults.max_auto_archive_minutes)


def check_labels(labels: dict[str, str]) -> None:
    """Raises: Fault 400 for too many labels, or an unknown language; SpecError for labels that are too large."""
    if len(labels) > MAX_LABELS:
        raise bad_request(f"labels: more than {MAX_LABELS}")
    check_sizes(labels, {})
    language_of(labels)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def make_spec(
    row: Sandbox,
    *,
    snapshot: Snapshot | None,
    organisation: str,
    defaults: Defaults,
    network: NetworkPolicy,
    secrets: tuple[Secret, ...] = (),
) -> Spec:
    """The Spec for the backend; `organisation` is the owner's name for `corral sandbox list`. Raises: SpecError.

    Labels of clients stay in the server's database: those at the backend are the server's own. The name is one of them,
    for `corral sandbox list`; nothing is found by it.
    """
    known = {
        "DAYTONA_SANDBOX_ID": row.id,
        "DAYTONA_SANDBOX_USER": row.user,
        "DAYTONA_SANDBOX_SNAPSHOT": row.snapshot or "",
        "DAYTONA_ORGANIZATION_ID": row.organisation_id,
        "DAYTONA_REGION_ID": row.target,
    }
    # As defaults: clients send all three with every sandbox, and a machine that can't limit CPUs must still work.
    resources = Resources(cpus=row.cpu, memory_bytes=row.memory * GIB, disk_bytes=row.disk * GIB).as_usual()
    env = {**known, **row.env}
    workdir = row.labels.get(WORKDIR_LABEL, HOME)
    labels = {OWNER_LABEL: f"server:{organisation}", OWNER_ID_LABEL: row.id, OWNER_NAME_LABEL: row.name}
    engine_id = snapshot.engine_id if snapshot is not None else None
    return Spec(
        resources=resources,
        env=env,
        workdir=workdir,
        labels=labels,
        snapshot=engine_id,
        packages=defaults.packages,
        venv=defaults.venv,
        secrets=secrets,
        network=network,
        mounts=mounts_of(row.volumes),
    )


def intent_of_resize(resize: ResizeSandbox) -> str:
    """New limits as an intent, so that a restarted server can finish an interrupted resize."""
    return " ".join(["resize", *(str(value or "-") for value in (resize.cpu, resize.memory, resize.disk))])


def resize_of_intent(intent: str | None) -> ResizeSandbox | None:
    """The new limits of an intent; None if it is another intent."""
    words = (intent or "").split()
    if len(words) != 4 or words[0] != "resize":
        return None
    cpu, memory, disk = (None if word == "-" else int(word) for word in words[1:])
    return ResizeSandbox(cpu=cpu, memory=memory, disk=disk)


def language_of(labels: dict[str, str]) -> str:
    """The language in the labels; python by default. Raises: Fault 400 for an unknown one."""
    language = labels.get(LANGUAGE_LABEL, "python")
    if language not in LANGUAGES:
        raise Fault(400, f"labels: {LANGUAGE_LABEL} must be one of {', '.join(LANGUAGES)}")
    return language


def home_of(user: str) -> str:
    """The home directory of a user in the sandbox."""
    return {"daytona": HOME, "1000": HOME, "root": "/root", "0": "/root"}.get(user, "/tmp")
