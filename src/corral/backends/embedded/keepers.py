"""Detached sandboxes: they are found in the data folder, and reached through their keepers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corral.backends.embedded import seam, window, withheld
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.mounting import describe_mount
from corral.backends.embedded.sandbox import EmbeddedSandbox, Grip, stopped_error
from corral.backends.embedded.seam import mapped
from corral.engine import sweep, wire
from corral.engine.client import ask, check, receive_within
from corral.engine.errors import EngineError, GoneError
from corral.engine.layers import LayerStore
from corral.engine.state import SOCKET_NAME, DataFolder, is_held, read_state
from corral.errors import SandboxGoneError, SpecError
from corral.inside.nolinks import on_error, opened
from corral.mount import Mount
from corral.requirement import check_packages
from corral.results import SandboxInfo, SandboxState
from corral.spec import Lifetime, NetworkPolicy, Resources, Spec

_KEEPER_SECONDS = 10.0
_AT_ONCE = 100
"""How many keepers are asked at the same time; each takes three descriptors meanwhile."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def describe(spec: Spec, *, name: str | None, lifetime_seconds: float | None, env: Mapping[str, str]) -> dict[str, Any]:
    """What a keeper stores about a sandbox, for later clients."""
    checked = Spec(name=name) if name is not None else spec
    lifetime = Lifetime(seconds=lifetime_seconds if lifetime_seconds is not None else spec.lifetime.seconds)
    return {
        "name": checked.name,
        "labels": dict(spec.labels),
        "created": time.time(),
        "lifetime_seconds": lifetime.seconds,
        "idle_seconds": spec.lifetime.idle_seconds,
        "env": dict(env),
        "root": os.geteuid() == 0,
        "spec": {
            "env": dict(spec.env),
            "workdir": spec.workdir,
            "exec_timeout": spec.exec_timeout,
            "hostname": spec.hostname,
            "output_limit_bytes": spec.output_limit_bytes,
            "ephemeral": spec.ephemeral,
            "packages": list(spec.packages),
            "resources": asdict(spec.resources),
            # Earlier versions know none of these.
            **({"mounts": [describe_mount(mount) for mount in spec.mounts]} if spec.mounts else {}),
            **({"network": window.describe(spec.network)} if spec.network != NetworkPolicy() else {}),
            **({"secrets": withheld.describe(spec.secrets)} if spec.secrets else {}),
        },
    }


@dataclass(frozen=True, slots=True)
class DetachedFolder:
    """A detached sandbox's folder and what its keeper wrote there."""

    sandbox_id: str
    folder: Path
    state: dict[str, Any]

    @property
    def name(self) -> str | None:
        """Its name, if it has one."""
        info = self.state.get("info")
        return info.get("name") if isinstance(info, dict) else None

    @property
    def is_stopped(self) -> bool:
        """True if the sandbox is stopped: its files are kept, and no process runs."""
        return bool(self.state.get("stopped")) and not is_held(self.folder)

    @property
    def is_there(self) -> bool:
        """True if the sandbox runs or is stopped, and is not just the remains of one."""
        return bool(self.state.get("stopped")) or is_held(self.folder)


def find_all(data_folder: Path) -> list[DetachedFolder]:
    """Every detached sandbox that has a folder, alive or not."""
    data = open_data(data_folder, op="list")
    return [found for sandbox_id in data.ids() if (found := _look(data, sandbox_id)) is not None]


def glance(data_folder: Path) -> frozenset[str]:
    """The ids of all folders of sandboxes. Raises: as `open_data`."""
    return frozenset(open_data(data_folder, op="list").ids())


def _look(data: DataFolder, sandbox_id: str) -> DetachedFolder | None:
    state = read_state(data.folder(sandbox_id))
    if state is None or not state.get("detached"):
        return None
    return DetachedFolder(sandbox_id, data.folder(sandbox_id), state)


def find(data_folder: Path, wanted: str, *, op: str = "connect") -> DetachedFolder:
    """Find a sandbox by id, by name, or by the unambiguous beginning of an id.

    Raises:
        SandboxGoneError: not found, or more than one found.
    """
    if _ID.fullmatch(wanted):  # the common case, without a look at every sandbox
        known = _look(open_data(data_folder, op=op), wanted)
        if known is not None and known.is_there:
            return known
    everything = [found for found in find_all(data_folder) if found.is_there]
    exact = [found for found in everything if wanted in (found.sandbox_id, found.name)]
    close = exact or [found for found in everything if len(wanted) >= 4 and found.sandbox_id.startswith(wanted)]
    if len(close) != 1:
        how = "not found" if not close else "matches several sandboxes"
        raise SandboxGoneError(f"sandbox {wanted!r} {how}", op=op, hint="`corral sandbox list` lists the existing ones")
    return close[0]


@contextlib.asynccontextmanager
async def claiming_name(data_folder: Path, name: str | None) -> AsyncIterator[None]:
    """A lock on names of sandboxes. Raises: SpecError if the name is taken."""
    if name is None:
        yield
        return
    with opened(os.open(data_folder / "names.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(0.01)  # never blocking: the holder may be another task of this very loop
            else:
                break
        if any(found.name == name and found.is_there for found in find_all(data_folder)):
            raise SpecError(f"a sandbox named {name!r} already exists", hint="use another name, or remove that one")
        yield


async def connect(data_folder: Path, wanted: str) -> EmbeddedSandbox:
    """A detached sandbox by id, name, or the beginning of an id. Raises: as `Backend.connect`."""
    found = find(data_folder, wanted)
    if found.is_stopped:
        raise stopped_error(found.sandbox_id, "connect")
    try:
        with mapped(sandbox_id=found.sandbox_id, op="connect"):
            keeper = dial(data_folder, found.sandbox_id)
            with on_error(keeper.close):
                with await seam.ask(keeper, {"op": "control"}) as reply:
                    answer, descriptors = await seam.receive(reply)
                if len(descriptors) != 1:
                    wire.close_all(descriptors)
                    raise GoneError("no control socket")
                check(answer)
    except SandboxGoneError as error:
        if (read_state(found.folder) or {}).get("stopped"):
            raise stopped_error(found.sandbox_id, "connect") from error  # another process is starting or stopping it
        raise
    info = found.state["info"]
    sandbox = EmbeddedSandbox(
        sandbox_id=found.sandbox_id,
        spec=spec_from(info),
        control=socket.socket(fileno=descriptors[0]),
        env=info["env"],
        grip=Grip(found.sandbox_id, keeper),
        data_folder=data_folder,
        root=bool(info["root"]),
        proxy_port=answer.get("proxy_port"),
    )
    with mapped(sandbox_id=found.sandbox_id, op="connect"), on_error(sandbox.release):
        await sandbox.recall()
    return sandbox


def _is_named(package: str) -> bool:
    """False for URLs, which earlier versions accepted: their sandboxes must still open, to be deleted."""
    try:
        check_packages([package])
    except SpecError:
        return False
    return True


def spec_from(info: dict[str, Any]) -> Spec:
    """The spec of a detached sandbox, as far as its keeper has stored it."""
    kept = dict(info["spec"])
    kept["secrets"] = withheld.read(kept.get("secrets", ()))
    kept["packages"] = tuple(filter(_is_named, kept.get("packages", ())))
    kept["mounts"] = tuple(Mount(**mount) for mount in kept.get("mounts", ()))
    resources = Resources(**kept.pop("resources")).as_usual()  # unsupported limits were refused at its creation
    lifetime = Lifetime(seconds=info.get("lifetime_seconds"), idle_seconds=info.get("idle_seconds"))
    kept["network"] = window.policy_from(kept.get("network"))
    return Spec(**kept, name=info.get("name"), labels=info.get("labels", {}), resources=resources, lifetime=lifetime)


def list_all(data_folder: Path) -> list[SandboxInfo]:
    """All detached sandboxes."""
    everything = find_all(data_folder)
    infos = []
    for start in range(0, len(everything), _AT_ONCE):
        infos += _list_some(data_folder, everything[start : start + _AT_ONCE])
    return infos


def _list_some(data_folder: Path, some: list[DetachedFolder]) -> list[SandboxInfo]:
    """Ask all keepers before reading any answer: they work in parallel, and slow ones are waited for together."""
    infos: list[SandboxInfo] = []
    with contextlib.ExitStack() as stack:
        replies: list[tuple[DetachedFolder, socket.socket]] = []
        for found in some:
            if found.is_stopped:
                infos.append(_describe(found.sandbox_id, found.state["info"], "stopped", None))
                continue
            with contextlib.suppress(EngineError, OSError):
                connection = stack.enter_context(dial(data_folder, found.sandbox_id))
                replies.append((found, stack.enter_context(ask(connection, {"op": "info"}, ()))))
        deadline = time.monotonic() + _KEEPER_SECONDS
        for found, reply in replies:
            with contextlib.suppress(EngineError, OSError):
                answer = check(receive_within(reply, max(0.0, deadline - time.monotonic())))
                state: SandboxState = "paused" if answer.get("paused") else "running"
                infos.append(_describe(found.sandbox_id, answer["info"], state, answer["seconds_left"]))
    return infos


def _describe(sandbox_id: str, info: dict[str, Any], state: SandboxState, seconds_left: float | None) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=sandbox_id,
        backend="embedded",
        name=info.get("name"),
        state=state,
        created=float(info["created"]),
        deadline=seconds_left,
        labels=info.get("labels", {}),
        network=str(window.policy_from(info.get("spec", {}).get("network"))),
    )


def dial(data_folder: Path, sandbox_id: str) -> socket.socket:
    """A connection to the keeper of a sandbox. Raises: GoneError."""
    path = DataFolder(data_folder).folder(sandbox_id)
    with opened(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # A keeper that was stopped by a signal accepts nothing after a while.
            connection.settimeout(_KEEPER_SECONDS)
            # Through the descriptor: the path of a data folder may be too long for a socket's name.
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        except OSError as error:
            connection.close()
            raise GoneError("its keeper does not respond") from error
    connection.settimeout(None)
    return connection


def sweep_now(data_folder: Path) -> list[str]:
    """Remove what dead processes left behind; returns the ids of the removed sandboxes. Raises: as `open_data`."""
    data = open_data(data_folder, op="gc")
    with mapped(op="gc"):
        data.prepare()
    removed = sweep.discard_dead(data)
    LayerStore(data).collect()
    sweep.empty_trash(data)
    return removed
