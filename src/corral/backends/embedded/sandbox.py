"""One embedded sandbox, owned or detached."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shlex
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from corral.backends.embedded import certificates, recorded, seam, settings, window, withheld
from corral.backends.embedded.dialling import dial
from corral.backends.embedded.files import AgentClient, EmbeddedFiles
from corral.backends.embedded.origins import find_origin
from corral.backends.embedded.process import EmbeddedProcess, describe, get_pump, spawn
from corral.backends.embedded.registries import find_registries_of
from corral.backends.embedded.seam import mapped
from corral.base.changes import Origin
from corral.base.process import Clear
from corral.client.sandbox import AsyncSandbox
from corral.engine import sweep, wire
from corral.engine.base import OWN_AUTHORITY, OWN_CERTIFICATES
from corral.engine.client import LauncherClient, ask, check
from corral.engine.errors import EngineError, GoneError, RefusedError
from corral.engine.layers import LayerStore, process_mark
from corral.engine.recipe import CODE_GID, CODE_UID
from corral.engine.state import DataFolder, read_state
from corral.engine.window import DENIALS
from corral.errors import (
    CapabilityError,
    InvalidCommandError,
    SandboxFileError,
    SandboxGoneError,
    SandboxStoppedError,
)
from corral.inside.nolinks import opened
from corral.languages import Language
from corral.network import denials
from corral.network.settings import Authority, GateSettings
from corral.protocol import SandboxPrimitives, SpawnRequest
from corral.results import Denial, SandboxInfo, SandboxState, SandboxUsage
from corral.secret import Secret, place_secrets, placeholders
from corral.sessions.record import Recorded, RecordInfo
from corral.spec import HOME, LimitOptions, NetworkPolicy, Resources, Spec, as_another, check_name, given_limits

_AGENT_SECONDS = 10.0
_JUDGED_SECONDS = 5.0
"""How long a result waits for a gate that starts."""

log = logging.getLogger("corral.embedded")


class Grip:
    """The holder of a sandbox on the host: our launcher, or its keeper."""

    def __init__(self, sandbox_id: str, holder: LauncherClient | socket.socket) -> None:
        self._sandbox_id = sandbox_id
        self._holder = holder

    @property
    def owned(self) -> bool:
        return self.keeper is None

    @property
    def keeper(self) -> socket.socket | None:
        """The connection to a keeper: readable when the keeper has gone, and at no other time."""
        return self._holder if isinstance(self._holder, socket.socket) else None

    @property
    def _peer(self) -> socket.socket:
        return self._holder if isinstance(self._holder, socket.socket) else self._holder.peer

    def request(self, message: wire.Message, *, wait: bool) -> socket.socket:
        """Ask the holder something about the sandbox. If the holder is busy, this waits in the kernel; without `wait`
        it raises BlockingIOError."""
        return ask(self._peer, {**message, "id": self._sandbox_id}, (), wait=wait)

    async def ask(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> socket.socket:
        """The same, in an event loop."""
        return await seam.ask(self._peer, {**message, "id": self._sandbox_id}, descriptors)

    def close(self) -> None:
        """Close the connection to a keeper; the launcher belongs to the process."""
        if self.keeper is not None:
            self.keeper.close()


class EmbeddedSandbox(SandboxPrimitives):
    """A sandbox of the engine, as `corral.protocol.SandboxPrimitives`."""

    exposes = "dial"
    maker: Callable[..., Awaitable[EmbeddedSandbox]] | None = None
    """Creates another one, for a fork."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        spec: Spec,
        control: socket.socket,
        env: Mapping[str, str],
        grip: Grip,
        data_folder: Path,
        root: bool,
        proxy_port: int | None,
    ) -> None:
        super().__init__(sandbox_id=sandbox_id, spec=spec, backend="embedded")
        self._control = control
        self._env = dict(env)
        self._grip = grip
        self._data_folder = data_folder
        self._root = root
        self._network_env = _network_env(spec.network, proxy_port)
        self._folder = DataFolder(data_folder).folder(sandbox_id)
        self._denials = self._folder / DENIALS
        self._made_by = os.getpid()
        self._created = time.time()
        self._deadline: float | None = None
        self._last_use = time.monotonic()
        self._idle_key = object()
        self._processes: weakref.WeakSet[EmbeddedProcess] = weakref.WeakSet()
        agent = AgentClient(
            sandbox_id=sandbox_id, open_agent=self._open_agent, ping=self._ping, ensure_open=self._ensure_open
        )
        self._files = EmbeddedFiles(
            agent, workdir=spec.workdir, sandbox_id=sandbox_id, guard=self._ensure_open,
            disk_bytes=lambda: self.spec.resources.disk,
        )  # fmt: skip

    @property
    def files(self) -> EmbeddedFiles:
        self._last_use = time.monotonic()
        return self._files

    def _ensure_open(self) -> None:
        if self.closed:
            self.refuse_closed()

    def arm_deadline(self) -> None:
        """End an owned sandbox at its deadline, or when it is idle for too long, even if its owner forgets it."""
        lifetime = self.spec.lifetime
        if lifetime.seconds is not None:
            self._deadline = time.monotonic() + lifetime.seconds
            get_pump().call_at(self, self._deadline, self._give_up)
        if lifetime.idle_seconds is not None:
            get_pump().call_at(self._idle_key, time.monotonic() + lifetime.idle_seconds, self._look_idle)

    def _look_idle(self) -> None:
        idle_seconds = self.spec.lifetime.idle_seconds
        if idle_seconds is None or self.closed:
            return
        now = time.monotonic()
        if any(not process.ended for process in self._processes):
            self._last_use = now
        if now - self._last_use >= idle_seconds:
            self._give_up()
        else:
            get_pump().call_at(self._idle_key, self._last_use + idle_seconds, self._look_idle)

    @property
    def owned(self) -> bool:
        return self._grip.owned

    # Primitives.

    async def spawn(self, request: SpawnRequest) -> EmbeddedProcess:
        uid, gid = self._ids(request.user)
        self._last_use = time.monotonic()
        with mapped(sandbox_id=self.id, op="exec"), self._noticing_stop("exec"):
            process = await spawn(self._control, request, sandbox_id=self.id, uid=uid, gid=gid, give_up=self._give_up)
        self._processes.add(process)
        return process

    def _ids(self, user: str) -> tuple[int, int]:
        if user == "daytona" or user == str(CODE_UID):
            return CODE_UID, CODE_GID
        if not self._root:
            raise CapabilityError(
                f"user={user!r}: without root there is only the user 'daytona'",
                sandbox_id=self.id,
                op="exec",
                hint="run Corral as root to use other users",
            )
        if user == "root" or user == "0":
            return 0, 0
        if user == "nobody":
            return 65534, 65534
        if user.isdigit() and int(user) < 65536:
            return int(user), int(user)
        raise InvalidCommandError(f"unknown user {user!r}", hint="use daytona, root, nobody, or a user id")

    def base_env(self, user: str) -> Mapping[str, str]:
        uid, _ = self._ids(user)
        name, home = {0: ("root", "/root"), CODE_UID: ("daytona", HOME)}.get(uid, (user, "/tmp"))
        return {
            "PATH": settings.PATH,
            "HOME": home,
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONUNBUFFERED": "1",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **self._network_env,
            **self._env,
            **placeholders(self.spec.secrets),
        }

    def hint_for(self, language: Language) -> str:
        # Sandboxes have the programs of this machine, and what was set up in the data folder.
        if language.name != "typescript":
            return language.hint.replace(" inside", " on this machine")
        command = ["corral", "setup", "typescript"]
        if self._data_folder != settings.default_data_folder(configured=False):
            command[1:1] = ["--data-dir", str(self._data_folder)]
        return f"run `{shlex.join(command)}`, or {language.hint.replace(' inside', ' on this machine')}"

    async def dial(self, port: int) -> socket.socket:
        self._ensure_open()
        self._last_use = time.monotonic()
        with mapped(sandbox_id=self.id, op="dial"), self._noticing_stop("dial"):
            return await dial(lambda message: seam.ask(self._control, message), port, sandbox_id=self.id)

    async def _ping(self) -> None:
        """Raises: GoneError if init has ended."""
        with self._noticing_stop("ping"):
            check(await seam.answer(await seam.ask(self._control, {"op": "ping"})))

    async def _open_agent(self) -> socket.socket:
        """The connection to a new file agent inside."""
        with wire.offering(socket.socket) as (ours, theirs):
            with await seam.ask(self._control, {"op": "files"}, (theirs.fileno(),)) as answer:
                message, descriptors = await seam.receive_within(answer, _AGENT_SECONDS)
            wire.close_all(descriptors)
            check(message)
        return ours

    def _give_up(self) -> None:
        """End it from the host, without asking init. From any thread; does not wait."""
        try:
            self._order_end(wait=False)
        except BlockingIOError:  # a thread waits, not the pump, which reads for all programs
            threading.Thread(target=self._order_end, kwargs={"wait": True}, name="corral-end", daemon=True).start()

    def _order_end(self, *, wait: bool) -> None:
        """Raises: BlockingIOError without `wait`, if its holder is busy."""
        try:
            self._grip.request({"op": "destroy"}, wait=wait).close()
        except BlockingIOError:
            raise
        except (EngineError, OSError):
            return  # its holder has ended, and the sandbox with it

    def release(self) -> Awaitable[None]:
        get_pump().cancel(self)
        get_pump().cancel(self._idle_key)
        self._files.close()
        answer: socket.socket | None = None
        busy = False
        # In a forked child the sandbox belongs to the parent: only close the handle. The request is sent now, not when
        # awaited, unless the launcher is so busy that sending would block this event loop.
        if self._made_by == os.getpid() and self._grip.owned:
            try:
                answer = self._grip.request({"op": "destroy"}, wait=False)
            except BlockingIOError:
                busy = True
            except EngineError:
                pass  # it is gone already
        self._control.close()
        self._grip.close()
        return self._await_end(answer, busy=busy)

    async def _await_end(self, answer: socket.socket | None, *, busy: bool) -> None:
        with contextlib.suppress(EngineError):
            if busy:
                answer = await self._grip.ask({"op": "destroy"})
            if answer is not None:
                await seam.answer(answer)

    async def is_alive(self) -> bool:
        try:
            await self._ping()
        except (GoneError, SandboxGoneError):
            return False
        return True

    async def wait_until_gone(self) -> None:
        # A detached sandbox is gone when its keeper is, the last to end; an owned one, when its init is. With a
        # descriptor of our own: the handle may be closed before this call notices that it is cancelled.
        with opened(os.dup((self._grip.keeper or self._control).fileno())) as descriptor:
            await seam.wait_readable(descriptor)

    async def kill(self) -> None:
        with contextlib.suppress(GoneError):
            await seam.answer(await self._grip.ask({"op": "destroy"}))

    async def usage(self) -> SandboxUsage:
        with mapped(sandbox_id=self.id, op="usage"), self._noticing_stop("usage"):
            usage = check(await seam.answer(await self._grip.ask({"op": "usage"})))["usage"]
            inside = check(await seam.answer(await seam.ask(self._control, {"op": "usage"})))
        # The host's counters if it has them, else what init could add up.
        counted = {**inside, **{name: value for name, value in usage.items() if value is not None}}
        return SandboxUsage(
            cpu_seconds=counted.get("cpu_seconds"),
            memory_bytes=counted.get("memory_bytes"),
            peak_memory_bytes=counted.get("peak_memory_bytes"),
            processes=inside.get("processes"),
            disk_bytes=counted.get("disk_bytes"),
            oom_kills=counted.get("oom_kills", 0),
        )

    async def info(self) -> SandboxInfo:
        labels = dict(self.spec.labels)
        if self._grip.owned:
            with mapped(sandbox_id=self.id, op="info"):
                await self._ping()
            left = self._deadline - time.monotonic() if self._deadline is not None else None
            state: SandboxState = "paused" if self.is_paused else "running"
            network = str(self.spec.network)
            return SandboxInfo(self.id, self.backend, self.spec.name, state, self._created, left, labels, network)
        with mapped(sandbox_id=self.id, op="info"), self._noticing_stop("info"):
            answer = check(await seam.answer(await self._grip.ask({"op": "info"})))
        info = answer["info"]
        state = "paused" if answer.get("paused") else "running"
        left, network = answer["seconds_left"], str(window.policy_from(info.get("spec", {}).get("network")))
        return SandboxInfo(self.id, self.backend, info["name"], state, info["created"], left, labels, network)

    # Recorded programs: the keeper writes their records, so that they outlive this process.

    @property
    def keeps_records(self) -> bool:
        return not self._grip.owned

    async def start_recorded(
        self, request: SpawnRequest, *, name: str, limit_bytes: int, note: bytes | None, clear: Clear | None
    ) -> Recorded:
        uid, gid = self._ids(request.user)
        return await recorded.start(
            self._ask_keeper, self._folder, describe(request, uid, gid), name=name, limit_bytes=limit_bytes, note=note,
            sandbox_id=self.id, clear=clear,
        )  # fmt: skip

    async def find_recorded(self, name: str) -> Recorded:
        return await recorded.find(self._ask_keeper, self._folder, name, sandbox_id=self.id)

    async def list_recorded(self) -> Sequence[RecordInfo]:
        return await recorded.list_all(self._ask_keeper, sandbox_id=self.id)

    async def _ask_keeper(self, message: wire.Message) -> tuple[wire.Message, list[int]]:
        self._ensure_open()
        with await self._grip.ask(message) as reply:
            return await seam.receive(reply)

    async def detach(self, *, name: str | None = None, lifetime_seconds: float | None = None) -> str:
        from corral.backends.embedded import keepers  # imported here: it creates sandboxes of this class

        if not self._grip.owned:
            return self.id
        info = keepers.describe(self.spec, name=name, lifetime_seconds=lifetime_seconds, env=self._env)
        with mapped(sandbox_id=self.id, op="detach"):
            async with keepers.claiming_name(self._data_folder, info["name"]):
                check(await seam.answer(await self._grip.ask({"op": "detach", "info": info})))
            get_pump().cancel(self)
            get_pump().cancel(self._idle_key)  # its keeper watches the deadlines from now on
            self._grip = Grip(self.id, await asyncio.to_thread(keepers.dial, self._data_folder, self.id))
        return self.id

    # Other powers, all by requests to its holder.

    async def snapshot(self, name: str | None = None) -> str:
        check_name(name)
        return await self._ask_for_snapshot(name=name)

    async def fork(self, spec: Spec | None = None) -> AsyncSandbox:
        assert self.maker is not None  # set by the backend
        snapshot_id = await self.snapshot_for_fork()
        make = partial(self.maker, parent_id=self.id)
        made = await make_from(self._data_folder, make, spec or as_another(self.spec), snapshot_id)
        return AsyncSandbox.around(made, event="created")

    async def snapshot_for_fork(self) -> str:
        """A snapshot that is not listed, and is removed with this process at the latest."""
        return await self._ask_for_snapshot(name=None, passing=process_mark(os.getpid()))

    async def _ask_for_snapshot(self, **options: object) -> str:
        def forget(answer: wire.Message) -> None:
            if "snapshot" in answer:
                forget_snapshot(self._data_folder, str(answer["snapshot"]))

        return str((await self._ask_holder("snapshot", forget, **options))["snapshot"])

    async def stop(self) -> None:
        with contextlib.suppress(SandboxStoppedError):
            if self._grip.owned:
                if self.spec.ephemeral:
                    with mapped(sandbox_id=self.id, op="stop"):
                        raise RefusedError(
                            "an ephemeral sandbox can't be stopped: its files are in memory", code="ephemeral"
                        )
                await self.detach()
            await self._ask_holder("stop")
        self.is_stopped = True

    async def pause(self) -> None:
        await self._ask_holder("pause")
        self.is_paused = True

    async def resume(self) -> None:
        await self._ask_holder("resume")
        self.is_paused = False

    async def resize(self, **limits: Unpack[LimitOptions]) -> None:
        resources, changed = check_limits(self.spec.resources, limits)
        if changed:
            await self._ask_holder("resize", limits=changed)
            self.spec = dataclasses.replace(self.spec, resources=resources)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await self._change_window(lambda now: dataclasses.replace(now, network=policy), op="set_network")

    async def set_secrets(self, secrets: Sequence[Secret]) -> None:
        def change(now: Spec) -> Spec:
            return dataclasses.replace(now, secrets=place_secrets(secrets, placeholders(now.secrets)))

        await self._change_window(change, op="set_secrets")

    async def _change_window(self, change: Callable[[Spec], Spec], *, op: str) -> None:
        """Another network policy, or other secrets. In force when this returns."""
        self._ensure_open()
        with mapped(sandbox_id=self.id, op=op), self._noticing_stop(op):
            before = await self.ask_settings()
            spec = change(self._look_again(before))
            registries = await find_registries_of(spec.network)
            told = window.make_settings(spec, registries, before=before)
            env = certificates.with_authority(self._env | dict(registries.env), own=told.authority is not None)
            message = {
                "op": "network",
                "redirect": spec.network.mode != "none",
                "network": window.describe(spec.network),
                "env": env,
                "secrets": withheld.describe(spec.secrets),
            }
            with opened(told.to_memfd()) as given:
                reply = await self._grip.ask(message, (given,))
            answer = check(await seam.answer(reply))
        self._network_env = _network_env(spec.network, answer["proxy_port"])
        self._env = env
        self.spec = spec
        if told.authority is not None and told.authority != before.authority:
            await self.renew_authority(told.authority)

    async def ask_settings(self) -> GateSettings:
        """What the gate is told, with the values of secrets: from the holder, which alone keeps them."""
        with await self._grip.ask({"op": "settings"}) as reply:
            answer, descriptors = await seam.receive(reply)
        try:
            check(answer)
            return GateSettings.from_memfd(descriptors[0])
        finally:
            wire.close_all(descriptors)

    def _look_again(self, settings: GateSettings) -> Spec:
        """The spec with the network and the secrets that it has now: other handles may have changed them."""
        info = (read_state(self._folder) or {}).get("info")
        if self._grip.owned or info is None:
            return self.spec
        network = window.policy_from(info["spec"].get("network"))
        secrets = withheld.recall(withheld.read(info["spec"].get("secrets", ())), settings)
        return dataclasses.replace(self.spec, network=network, secrets=secrets)

    async def recall(self) -> None:
        """Know the values of secrets again, in a sandbox that another process has made."""
        if self.spec.secrets:
            self.spec = self._look_again(await self.ask_settings())

    async def renew_authority(self, authority: Authority) -> None:
        """As `show_authority`, in a sandbox whose programs may have spoiled its files: what that breaks is their own
        TLS, and they must not keep a secret by it."""
        try:
            await self.show_authority(authority)
        except SandboxFileError as error:
            log.warning("sandbox %s: its programs can't trust the hosts of its secrets: %s", self.id, error)

    async def show_authority(self, authority: Authority) -> None:
        """Have programs that start from now on trust the sandbox's own authority. Raises: SandboxFileError."""
        bundle = await asyncio.to_thread(certificates.make_bundle, authority.certificate)
        await self._files.write(OWN_CERTIFICATES, bundle)
        await self._files.write(OWN_AUTHORITY, authority.certificate)

    async def find_origin(self, path: str | None) -> Origin:
        return await asyncio.to_thread(find_origin, self._data_folder, self.id, path)

    async def settle_denials(self) -> None:
        if self.closed or not self.spec.network.permits_something:
            return
        with contextlib.suppress(EngineError, OSError):  # a busy gate, or the end: the result does not wait for it
            reply = await self._grip.ask({"op": "judged"})
            with reply:
                await seam.receive_within(reply, _JUDGED_SECONDS)

    def count_denials(self) -> int:
        return denials.count(self._denials)

    def denials_since(self, count: int) -> Sequence[Denial]:
        return window.read_denials(self._denials, since=count)

    async def _ask_holder(
        self, operation: str, lost: Callable[[wire.Message], object] | None = None, **message: object
    ) -> wire.Message:
        self._ensure_open()
        with mapped(sandbox_id=self.id, op=operation), self._noticing_stop(operation):
            return check(await seam.answer(await self._grip.ask({"op": operation, **message}), lost=lost))

    @contextlib.contextmanager
    def _noticing_stop(self, operation: str) -> Iterator[None]:
        """A sandbox that does not answer may be deleted, or only stopped: then raise `SandboxStoppedError`."""
        try:
            yield
        except GoneError:
            if not self._grip.owned and (read_state(self._folder) or {}).get("stopped"):
                raise stopped_error(self.id, operation) from None
            raise


def _network_env(policy: NetworkPolicy, proxy_port: int | None) -> dict[str, str]:
    """What programs inside need to know of their network; the same for each, until the network changes."""
    return {**certificates.variables(policy), **window.variables(policy, proxy_port)}


def check_limits(resources: Resources, limits: LimitOptions) -> tuple[Resources, dict[str, Any]]:
    """The new resources, and the limits to change, parsed. Raises: SpecError."""
    wanted = given_limits(limits)
    changed = dataclasses.replace(resources, **wanted)
    return changed, {name: getattr(changed, name) for name in wanted}


async def make_from(
    data_folder: Path, make: Callable[[Spec], Awaitable[EmbeddedSandbox]], spec: Spec, snapshot_id: str
) -> EmbeddedSandbox:
    """A sandbox from a temporary snapshot, which is then deleted."""
    try:
        return await make(dataclasses.replace(spec, snapshot=snapshot_id))
    finally:
        forget_snapshot(data_folder, snapshot_id)


def forget_snapshot(data_folder: Path, snapshot_id: str) -> None:
    """Delete a snapshot whose id was never returned."""
    with contextlib.suppress(EngineError, OSError):
        delete_snapshot(data_folder, snapshot_id)


def delete_snapshot(data_folder: Path, wanted: str) -> None:
    """Delete a snapshot, and remove unused layers. Raises: RefusedError."""
    data = DataFolder(data_folder)
    data.prepare()
    LayerStore(data).delete(wanted)
    sweep.empty_trash(data, patience_seconds=sweep.PATIENCE_SECONDS)


def stopped_error(sandbox_id: str, operation: str) -> SandboxStoppedError:
    """The error for an operation that needs a running sandbox."""
    hint = "start it: `corral sandbox start`, or backend.start(id)"
    return SandboxStoppedError("the sandbox is stopped", sandbox_id=sandbox_id, op=operation, hint=hint)
