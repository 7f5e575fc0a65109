"""Makes, finds and ends sandboxes of a Daytona service: the hosted one, `corral serve`, or another of your own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from corral.backends.daytona import detached, life
from corral.backends.daytona.address import Address
from corral.backends.daytona.client import Client
from corral.backends.daytona.makings import Making, closed_meanwhile, get_book
from corral.backends.daytona.powers import GIB, KeepingBackend, find_snapshot, whole
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.sandbox import NAME, DaytonaSandbox
from corral.backends.daytona.seam import ServiceError, mapped, repeat, state_error
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, SandboxGoneError, SpecError
from corral.image import Image
from corral.protocol import Command, DetachedOptions, OnEvent
from corral.results import DERIVED_POWERS, Capabilities, SandboxInfo
from corral.sessions.detached import DetachedProgram
from corral.spec import HOME, Resources, Spec

POWERS = DERIVED_POWERS | {"detach", "pty", "images", "snapshot", "fork", "stop", "pause", "resize"}
_SHORT_SECONDS = 10.0

log = logging.getLogger("corral.daytona")


class DaytonaBackend(KeepingBackend):
    """A Daytona service, as `corral.protocol.Backend`. Usable after a fork.

    What is not given comes from DAYTONA_API_KEY, DAYTONA_API_URL and DAYTONA_TARGET of the process, as in the SDK
    itself; unlike it, this reads no `.env`.
    """

    name = NAME

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_url: str | None = None,
        target: str | None = None,
        organization_id: str | None = None,
        jwt_token: str | None = None,
        os_user: str | None = None,
        create_timeout: float = 300.0,
    ) -> None:
        address = Address(
            api_key=api_key, api_url=api_url, target=target, organization_id=organization_id, jwt_token=jwt_token
        )
        super().__init__(Client(address))
        self._target = target
        self._os_user = os_user
        self._create_timeout = create_timeout
        self._tokens: TokenBook[DaytonaSandbox] = TokenBook()
        self._owned: weakref.WeakSet[DaytonaSandbox] = weakref.WeakSet()
        self._undoing: list[tuple[str | None, concurrent.futures.Future[None]]] = []
        self._prepared: dict[str, Remote] = {}
        self._environment: str | None = None
        get_book()  # from now on the end of the program is prepared for, whichever thread makes the first sandbox

    # Making.

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        return AsyncSandbox.around(await self.make(spec), on_event=on_event, event="created")

    async def make(self, spec: Spec) -> DaytonaSandbox:
        """As `create`, without a handle."""
        self._refuse_what_is_missing(spec)
        await self._refuse_network(spec)
        if spec.snapshot is not None:
            spec = replace(spec, snapshot=(await find_snapshot(self._client, spec.snapshot)).name)
        return await self._tokens.make_once(spec.client_token, lambda: self._make(spec))

    async def _make(self, spec: Spec) -> DaytonaSandbox:
        if spec.client_token is not None:
            # One of that token that was cancelled is deleted first: it must not be found, and then go.
            for undoing in [future for token, future in list(self._undoing) if token == spec.client_token]:
                await asyncio.wait([asyncio.wrap_future(undoing)])
        return await self.made(Making(self._client), lambda making: self._ask_for_one(making, spec), spec)

    async def made(self, making: Making, ask: Callable[[Making], Awaitable[Any]], spec: Spec) -> DaytonaSandbox:
        """Make one on our own loop, to the end; if who waits is cancelled, it is deleted again."""
        get_book().begin(making, ask)
        try:
            with mapped(op="create"):
                box = await wait_for(making.answer)
            if making.undoing is not None:
                raise closed_meanwhile()
            sandbox = self.hold(box, spec, owned=True)
        except BaseException as error:
            given_up = making.undoing is not None  # by others than who waits here
            # Cancelled, or forgotten with the event loop it waited in, or refused; or its answer was lost.
            if making.asked or not making.answer.done():
                self._give_up(making, spec.client_token)
            else:
                get_book().strike(making)
            if given_up and isinstance(error, Exception):
                raise closed_meanwhile() from error
            if spec.image is None or not isinstance(error, SpecError | SandboxGoneError):
                raise
            raise CapabilityError(
                f"the service can't create a sandbox from this image: {error.message}",
                op="create",
                hint="name an image that it can fetch; `corral serve` supports snapshots only",
            ) from error
        get_book().strike(making)
        return sandbox

    def _give_up(self, making: Making, token: str | None) -> None:
        undoing = (token, get_book().give_up(making))
        self._undoing.append(undoing)
        undoing[1].add_done_callback(lambda _: self._undoing.remove(undoing))

    def hold(self, box: Any, spec: Spec, *, owned: bool) -> DaytonaSandbox:
        """A handle."""
        deadline = life.deadline_of(box.labels or {})
        if owned and spec.lifetime.seconds is not None:
            deadline = time.time() + spec.lifetime.seconds  # its time begins when it can be used
        remote = self._prepared.pop(box.id, None) or Remote(self._client, box.id, box)
        if owned:
            remote.oom_kills = 0  # it is new
        sandbox = DaytonaSandbox(remote, spec, owned=owned, deadline=deadline)
        sandbox.keeper = self
        if owned:
            self._owned.add(sandbox)
            get_book().own(sandbox)
        return sandbox

    async def _ask_for_one(self, making: Making, spec: Spec) -> Any:
        sdk = await self._client.sdk()
        deadline = time.time() + spec.lifetime.seconds if spec.lifetime.seconds is not None else None
        params = self._params(spec, life.owned_labels(spec, deadline, mark=making.mark), deadline)
        by_token = spec.client_token is not None and spec.name is None
        making.asked = True
        while True:
            try:
                # With a token, the name makes a second one impossible, so that it may be asked for again.
                box = await self._client.repeat(lambda: sdk.create(params, timeout=self._create_timeout), safe=by_token)
                break
            except ServiceError as error:
                if not by_token or error.tries == 1:
                    making.note_refusal(error)
                if error.status != 409 or not by_token:
                    raise
                found = await self._find_by_token(sdk, params.name)
                if found is not None:
                    making.is_others = (found.labels or {}).get(life.MARK) != making.mark
                    return found
        remote = Remote(self._client, box.id, box)
        if spec.workdir != HOME:
            await self._make_workdir(box, spec.workdir)
        await self._give_limits(box, spec)
        if spec.lifetime.seconds is not None and spec.lifetime.seconds < _SHORT_SECONDS:
            await remote.channels.here()  # a short life is not spent on waiting for a terminal
            self._prepared[box.id] = remote
        return box

    @staticmethod
    async def _find_by_token(sdk: Any, name: str) -> Any | None:
        """The one that another has made with our token; None once it is gone and its name is free."""
        try:
            box = await repeat(lambda: sdk.get(name), safe=True)
        except ServiceError as error:
            if error.status != 404:
                raise
            return None
        deadline = life.deadline_of(box.labels or {})
        over = deadline is not None and deadline <= time.time()  # who made it is deleting it, or the service will
        if life.state_of(box) == "started" and not over:
            return box
        await asyncio.sleep(0.1)
        return None

    def _params(self, spec: Spec, labels: dict[str, str], deadline: float | None) -> Any:
        from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams
        from daytona import Image as SdkImage
        from daytona import Resources as SdkResources

        name = spec.name
        if name is None and spec.client_token is not None:
            name = life.token_name(spec.client_token)
        idle = spec.lifetime.idle_seconds
        spec_options: dict[str, Any] = {
            "name": name,
            "os_user": self._os_user,
            "env_vars": dict(spec.env),
            "labels": labels,
            "auto_stop_interval": life.OWNER_MINUTES if idle is None else max(life.OWNER_MINUTES, life.minutes(idle)),
            "auto_delete_interval": 0,
            "ttl_minutes": life.minutes(deadline - time.time()) if deadline is not None else None,
            "target": self._target,
        }
        if spec.network.mode == "none":
            spec_options["network_block_all"] = True
        elif spec.network.mode == "allow":
            spec_options["domain_allow_list"] = ",".join(spec.network.hosts)
        if spec.image is None:
            return CreateSandboxFromSnapshotParams(snapshot=spec.snapshot, **spec_options)
        image: Any = spec.image
        if isinstance(image, Image):
            built = SdkImage.base("scratch")
            built._dockerfile = image.dockerfile  # noqa: SLF001 - the SDK has no way to give a text but by a file
            image = built
        resources = spec.resources
        limits = SdkResources(
            cpu=whole(resources.cpus), memory=whole(resources.memory, GIB), disk=whole(resources.disk, GIB)
        )
        return CreateSandboxFromImageParams(image=image, resources=limits, **spec_options)

    async def _make_workdir(self, box: Any, workdir: str) -> None:
        try:
            await repeat(lambda: box.fs.create_folder(workdir, "755"), safe=True)
        except ServiceError as error:
            if error.status == 409:
                return  # it is there
            if error.status in (400, 403):
                raise CapabilityError(
                    f"the sandbox's user can't create the folder {workdir!r}",
                    op="create",
                    hint=f"give a workdir below {HOME}, /workspace or /tmp, or an image that has it",
                ) from error
            raise

    @staticmethod
    async def _give_limits(box: Any, spec: Spec) -> None:
        """A snapshot brings limits of its own; those that were asked for otherwise are set afterwards."""
        from daytona import Resources as SdkResources

        usual, wanted = Resources(), spec.resources
        change = {
            "cpu": ("cpus" in wanted.asked or wanted.cpus != usual.cpus, whole(wanted.cpus), box.cpu),
            "memory": (
                "memory_bytes" in wanted.asked or wanted.memory != usual.memory,
                whole(wanted.memory, GIB),
                box.memory,
            ),
            "disk": ("disk_bytes" in wanted.asked or wanted.disk != usual.disk, whole(wanted.disk, GIB), box.disk),
        }
        # A disk can't be made smaller.
        limits: dict[str, Any] = {
            name: value
            for name, (asked, value, now) in change.items()
            if asked and (value > now if name == "disk" else value != now)
        }
        if limits:
            await repeat(lambda: box.resize(SdkResources(**limits)), safe=False)

    # What can't be.

    def _refuse_what_is_missing(self, spec: Spec) -> None:
        refused = {
            "packages=": (bool(spec.packages), "say it in the image: Image.debian_slim().pip_install('numpy')"),
            "venv=": (spec.venv is not None, "a folder of this machine is not there: use an image"),
            "ephemeral=": (spec.ephemeral, "leave it out: an owned sandbox leaves nothing behind"),
            "limit for inodes": ("inodes" in spec.resources.asked, "leave it out; disk_bytes is kept"),
            "hostname=": (spec.hostname != "corral", "leave it out"),
        }
        for wish, (wanted, hint) in refused.items():
            if wanted:
                raise CapabilityError(f"the daytona backend does not support {wish}", op="create", hint=hint)
        if spec.image is not None and spec.snapshot is not None:
            raise CapabilityError("image= and snapshot= can't be combined", op="create", hint="leave one of them out")

    async def _refuse_network(self, spec: Spec) -> None:
        if spec.network.mode != "none" and await self._is_ours():
            raise CapabilityError(
                f"network={spec.network.mode!r}: this server does not support network access",
                op="create",
                hint="bring files with files.upload, or use the hosted service",
            )

    async def _is_ours(self) -> bool:
        """Whether the service is `corral serve`, which says so."""
        if self._environment is None:

            async def ask(sdk: Any) -> str:
                from daytona_api_client_async import ConfigApi

                return str((await ConfigApi(sdk._api_client).config_controller_get_config()).environment)  # noqa: SLF001 - no public way

            self._environment = await self._client.call(ask, op="capabilities", safe=True)
        return self._environment == "corral"

    # Finding.

    async def find(self, wanted: str, op: str) -> Any:
        """What the service says of a sandbox that is nobody's own, by id or name. Raises: SandboxGoneError."""
        missing = SandboxGoneError(
            f"sandbox {wanted!r} not found", op=op, hint="backend.list() lists the existing ones"
        )
        if not wanted or "/" in wanted:
            raise missing
        try:
            box = await self._client.call(lambda sdk: sdk.get(wanted), op=op, safe=True)
        except SandboxGoneError:
            named = [box for box in await self._all({life.NAME: wanted}) if life.state_of(box) not in life.GONE]
            if not named:
                raise missing from None
            box = await self._client.call(lambda sdk: sdk.get(named[0].id), op=op, safe=True)
        if life.state_of(box) in life.GONE or life.is_owned(box):
            raise missing
        return box

    async def _all(self, labels: dict[str, str] | None = None) -> list[Any]:
        async def ask(sdk: Any) -> list[Any]:
            from daytona import ListSandboxesQuery  # here the SDK is there; without it, the client has said so

            query = ListSandboxesQuery(labels=labels, limit=100) if labels else ListSandboxesQuery(limit=100)
            return [box async for box in sdk.list(query)]

        return await self._client.call(ask, op="list", safe=True)

    async def ensure_free(self, name: str, sandbox_id: str) -> None:
        """Raises: SpecError when another has that name."""
        with contextlib.suppress(SandboxGoneError):
            if (await self.find(name, "detach")).id != sandbox_id:
                raise SpecError(f"a sandbox named {name!r} already exists", hint="use another name, or remove that one")

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        box = await self.find(sandbox_id, "connect")
        error = state_error(life.state_of(box), sandbox_id=box.id, op="connect")
        paused = life.state_of(box) in ("paused", "pausing")
        if error is not None and not paused:
            raise error
        sandbox = self.hold(box, life.spec_of(box), owned=False)
        sandbox.is_paused = paused
        return AsyncSandbox.around(sandbox)

    async def list(self) -> Sequence[SandboxInfo]:
        # Also those that others made by the service's own means.
        return [
            life.describe(box, backend=NAME)
            for box in await self._all()
            if not life.is_owned(box) and life.state_of(box) not in life.GONE
        ]

    async def delete(self, sandbox_id: str) -> None:
        box = await self.find(sandbox_id, "delete")
        with mapped(sandbox_id=box.id, op="delete"):
            await asyncio.wrap_future(Remote(self._client, box.id, box).end())

    async def start_detached(self, sandbox_id: str, command: Command, **options: Unpack[DetachedOptions]) -> int:
        remote, spec = await self._reach(sandbox_id)
        return await detached.start(remote, spec, command, **options)

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        remote, _ = await self._reach(sandbox_id)
        return await detached.list_all(remote)

    async def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        remote, _ = await self._reach(sandbox_id)
        async for data in detached.follow_one(remote, sandbox_id, number, follow=follow):
            yield data

    async def _reach(self, sandbox_id: str) -> tuple[Remote, Spec]:
        box = await self.find(sandbox_id, "exec")
        return Remote(self._client, box.id, box), life.spec_of(box)

    async def capabilities(self) -> Capabilities:
        ours = await self._is_ours()
        notes = (
            "limits are the service's, in whole processors and GiB: what is asked for is rounded up",
            "processes= and open_files= hold by the limits of the one user that programs run as",
            "deadlines of a fraction of a minute hold while this process lives; else the service's own, in minutes",
        )
        return Capabilities(
            isolation="the service's",
            memory="soft",
            processes="soft",
            cpu="soft",
            disk="soft",
            network=("none",) if ours else ("none", "allow", "open"),
            powers=POWERS - {"images"} if ours else POWERS,
            notes=notes,
        )

    async def aclose(self) -> None:
        endings = [*get_book().give_up_all(self._client), *self._end_owned()]
        results = await asyncio.gather(*map(asyncio.wrap_future, endings), return_exceptions=True)
        for result in results:
            if isinstance(result, ServiceError | CorralError):
                log.warning("a sandbox could not be deleted: %s", result)
        await self._client.aclose()

    def _end_owned(self) -> Sequence[concurrent.futures.Future[Any]]:
        return [sandbox.end_now() for sandbox in list(self._owned) if sandbox.is_left and sandbox.is_of_this_process]
