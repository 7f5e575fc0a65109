"""Creates, finds and deletes sandboxes of a Daytona service: the hosted one, `corral serve`, or another of your own."""

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

from corral.backends.daytona import detached, life, powers
from corral.backends.daytona.address import Address
from corral.backends.daytona.client import Client
from corral.backends.daytona.creations import Creation, closed_meanwhile, get_book
from corral.backends.daytona.network import network_settings
from corral.backends.daytona.params import make_params, make_workdir, refuse_unsupported, set_limits
from corral.backends.daytona.remote import Remote
from corral.backends.daytona.sandbox import NAME, DaytonaSandbox
from corral.backends.daytona.seam import ServiceError, mapped, reading, repeat, state_error
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.concurrency.waiting import wait_for
from corral.errors import CapabilityError, CorralError, SandboxGoneError, SnapshotNotFoundError, SpecError
from corral.protocol import Backend, Command, DetachedOptions, OnEvent, lacking
from corral.results import DERIVED_POWERS, Capabilities, SandboxInfo, SnapshotInfo
from corral.sessions.detached import DetachedProgram
from corral.spec import HOME, LimitOptions, NetworkPolicy, Resources, Spec, as_another, check_name, given_limits

POWERS = DERIVED_POWERS | {
    "detach", "pty", "images", "snapshot", "fork", "stop", "pause", "resize", "expose", "set_network",
}  # fmt: skip
_SHORT_SECONDS = 10.0
_OURS = "corral"
"""What `corral serve` calls its environment."""

log = logging.getLogger("corral.daytona")


class DaytonaBackend(Backend):
    """A Daytona service, as `corral.protocol.Backend`. Usable after a fork.

    Arguments default to DAYTONA_API_KEY, DAYTONA_API_URL and DAYTONA_TARGET of the process, as in the SDK; unlike the
    SDK, this reads no `.env`.
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
        self._client = Client(address)
        self._target = target
        self._os_user = os_user
        self._create_timeout = create_timeout
        self._tokens: TokenBook[DaytonaSandbox] = TokenBook()
        self._owned: weakref.WeakSet[DaytonaSandbox] = weakref.WeakSet()
        self._undoing: list[tuple[str | None, concurrent.futures.Future[None]]] = []
        self._prepared: dict[str, Remote] = {}
        self._environment: str | None = None
        get_book()  # so that sandboxes are deleted at exit, whichever thread creates the first

    # Creating.

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        return AsyncSandbox.around(await self._make(spec), on_event=on_event, event="created")

    async def _make(self, spec: Spec) -> DaytonaSandbox:
        refuse_unsupported(spec)
        await self.network_settings(spec.network)  # refused before anything else
        if spec.snapshot is not None:
            spec = replace(spec, snapshot=(await powers.find_snapshot(self._client, spec.snapshot)).name)
        return await self._tokens.make_once(spec.client_token, lambda: self._make_new(spec))

    async def _make_new(self, spec: Spec) -> DaytonaSandbox:
        if spec.client_token is not None:
            # Wait until a cancelled one of the same token is deleted: otherwise it could be found, and then disappear.
            for undoing in [future for token, future in list(self._undoing) if token == spec.client_token]:
                await asyncio.wait([asyncio.wrap_future(undoing)])
        return await self._complete(Creation(self._client), lambda creation: self._ask_for_one(creation, spec), spec)

    async def _complete(
        self, creation: Creation, ask: Callable[[Creation], Awaitable[Any]], spec: Spec
    ) -> DaytonaSandbox:
        """Send a request on our own loop, to its end; if the caller is cancelled, the sandbox is deleted again."""
        get_book().begin(creation, ask)
        try:
            with mapped(op="create"):
                box = await wait_for(creation.answer)
            if creation.undoing is not None:
                raise closed_meanwhile()
            sandbox = self.hold(box, spec, owned=True)
        except BaseException as error:
            given_up = creation.undoing is not None  # not by this caller
            # Cancelled, or its event loop has ended, or refused; or the answer was lost.
            if creation.asked or not creation.answer.done():
                self._give_up(creation, spec.client_token)
            else:
                get_book().remove(creation)
            if given_up and isinstance(error, Exception):
                raise closed_meanwhile() from error
            if spec.image is None or not isinstance(error, SpecError | SandboxGoneError):
                raise
            raise CapabilityError(
                f"the service can't create a sandbox from this image: {error.message}",
                op="create",
                hint="name an image that it can fetch; `corral serve` has none: leave image= out, and start it with "
                "--package NAME for packages",
            ) from error
        get_book().remove(creation)
        return sandbox

    def _give_up(self, creation: Creation, token: str | None) -> None:
        undoing = (token, get_book().give_up(creation))
        self._undoing.append(undoing)
        undoing[1].add_done_callback(lambda _: self._undoing.remove(undoing))

    def hold(self, box: Any, spec: Spec, *, owned: bool) -> DaytonaSandbox:
        """The primitives of a sandbox of the service."""
        deadline = life.deadline_of(box.labels or {})
        if owned and spec.lifetime.seconds is not None:
            deadline = time.time() + spec.lifetime.seconds  # counted from when it can be used
        remote = self._prepared.pop(box.id, None) or Remote(self._client, box.id, box)
        sandbox = DaytonaSandbox(remote, spec, owned=owned, deadline=deadline, maker=self)
        if owned:
            remote.oom_kills = 0  # it is new
            self._owned.add(sandbox)
            get_book().own(sandbox)
        return sandbox

    async def _ask_for_one(self, creation: Creation, spec: Spec) -> Any:
        sdk = await self._client.sdk()
        deadline = time.time() + spec.lifetime.seconds if spec.lifetime.seconds is not None else None
        params = self._params(spec, life.owned_labels(spec, deadline, mark=creation.mark), deadline)
        by_token = spec.client_token is not None and spec.name is None
        creation.asked = True
        while True:
            try:
                # With a token, the name makes a second sandbox impossible, so the request may be repeated.
                box = await self._client.repeat(lambda: sdk.create(params, timeout=self._create_timeout), safe=by_token)
                break
            except ServiceError as error:
                if not by_token or error.tries == 1:
                    creation.note_refusal(error)
                if error.status != 409 or not by_token:
                    raise
                found = await self._find_by_token(sdk, params.name)
                if found is not None:
                    creation.is_others = (found.labels or {}).get(life.MARK) != creation.mark
                    return found
        if spec.workdir != HOME:
            await make_workdir(box, spec.workdir)
        await set_limits(box, spec)
        if spec.lifetime.seconds is not None and spec.lifetime.seconds < _SHORT_SECONDS:
            remote = Remote(self._client, box.id, box)
            await remote.channels.here()  # opened now, so that it does not take from a short lifetime
            self._prepared[box.id] = remote
        return box

    @staticmethod
    async def _find_by_token(sdk: Any, name: str) -> Any | None:
        """The sandbox that another caller created with our token; None once it is gone and its name is free."""
        try:
            box = await repeat(lambda: sdk.get(name), safe=True)
        except ServiceError as error:
            if error.status != 404:
                raise
            return None
        deadline = life.deadline_of(box.labels or {})
        over = deadline is not None and deadline <= time.time()  # its owner or the service is deleting it
        if life.state_of(box) == "started" and not over:
            return box
        await asyncio.sleep(0.1)
        return None

    def _params(self, spec: Spec, labels: dict[str, str], deadline: float | None) -> Any:
        network = network_settings(spec.network, ours=self._environment == _OURS)
        return make_params(spec, labels, deadline, os_user=self._os_user, target=self._target, network=network)

    async def network_settings(self, policy: NetworkPolicy) -> dict[str, Any]:
        """The service's settings for a policy. Raises: CapabilityError."""
        ours = policy.permits_something and await self._is_ours()
        return network_settings(policy, ours=ours)

    async def _is_ours(self) -> bool:
        """True if the service is `corral serve`, which says so."""
        if self._environment is None:

            async def ask(sdk: Any) -> str:
                from daytona_api_client_async import ConfigApi

                return str((await ConfigApi(sdk._api_client).config_controller_get_config()).environment)  # noqa: SLF001 - no public way

            self._environment = await self._client.call(ask, op="capabilities", safe=True)
        return self._environment == _OURS

    # Finding.

    async def find(self, wanted: str, op: str) -> Any:
        """The SDK's object for a detached sandbox, by id or name. Raises: SandboxGoneError."""
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
            from daytona import ListSandboxesQuery  # here, the SDK is known to be installed

            query = ListSandboxesQuery(labels=labels, limit=100) if labels else ListSandboxesQuery(limit=100)
            return [box async for box in sdk.list(query)]

        return await self._client.call(ask, op="list", safe=True)

    async def ensure_free(self, name: str, sandbox_id: str) -> None:
        """Raises: SpecError if another sandbox has that name."""
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
        # Including those that were created without Corral.
        return [
            life.describe(box, backend=NAME)
            for box in await self._all()
            if not life.is_owned(box) and life.state_of(box) not in life.GONE
        ]

    async def delete(self, sandbox_id: str) -> None:
        box = await self.find(sandbox_id, "delete")
        with mapped(sandbox_id=box.id, op="delete"):
            await asyncio.wrap_future(Remote(self._client, box.id, box).end())

    # Powers.

    async def start(self, sandbox_id: str) -> AsyncSandbox:
        box = await self.find(sandbox_id, "start")
        remote = Remote(self._client, box.id, box)
        if life.state_of(box) != "started":
            await remote.call(lambda box: box.start(timeout=powers.CHANGE_SECONDS), op="start", finish=True)
        return AsyncSandbox.around(self.hold(await remote.look("start"), life.spec_of(box), owned=False))

    async def stop(self, sandbox_id: str) -> None:
        box = await self.find(sandbox_id, "stop")
        if life.state_of(box) not in ("stopped", "archived"):
            remote = Remote(self._client, box.id, box)
            await remote.call(lambda box: box.stop(timeout=powers.CHANGE_SECONDS), op="stop", finish=True)

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> str:
        check_name(name)
        remote, _ = await self._reach(sandbox_id, "snapshot")
        return await powers.take_snapshot(remote, name)

    async def list_snapshots(self) -> Sequence[SnapshotInfo]:
        return await powers.list_snapshots(self._client)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await powers.delete_snapshot(self._client, snapshot_id)

    async def rollback(self, sandbox_id: str, snapshot_id: str) -> None:
        # The service has no such call.
        hint = f"create a new sandbox from the snapshot: Spec(snapshot={snapshot_id!r})"
        raise lacking(NAME, "rollback", sandbox_id=sandbox_id, hint=hint)

    async def fork(self, sandbox_id: str, spec: Spec | None = None) -> AsyncSandbox:
        remote, source = await self._reach(sandbox_id, "fork")
        return await self.fork_remote(remote, source, spec)

    async def fork_remote(self, remote: Remote, source: Spec, spec: Spec | None) -> AsyncSandbox:
        """A second sandbox with the files of one; with a `spec`, by way of a snapshot."""
        if spec is None:
            fork = await self._fork_live(remote, replace(as_another(source), snapshot=None))
        else:
            snapshot_id = await powers.take_snapshot(remote, None)
            try:
                fork = await self._make(replace(spec, snapshot=snapshot_id))
            finally:
                with contextlib.suppress(SnapshotNotFoundError):
                    await asyncio.shield(asyncio.ensure_future(self.delete_snapshot(snapshot_id)))
        return AsyncSandbox.around(fork, event="created")

    async def _fork_live(self, remote: Remote, another: Spec) -> DaytonaSandbox:
        async def ask(creation: Creation) -> Any:
            sdk = await self._client.sdk()
            with reading():
                source = await sdk.get(remote.id)
            creation.asked = True
            try:
                with reading():
                    copy = await source.fork(life.token_name(creation.mark), timeout=powers.CHANGE_SECONDS)
            except ServiceError as error:
                creation.note_refusal(error)
                raise
            with reading():
                # The service copied the labels, which name another owner, or no owner.
                await copy.set_labels(life.owned_labels(another, None, mark=creation.mark))
                await copy.set_autostop_interval(life.OWNER_MINUTES)
                await copy.set_auto_delete_interval(0)
            return copy

        return await self._complete(Creation(self._client, forked=True), ask, another)

    async def resize(self, sandbox_id: str, **limits: Unpack[LimitOptions]) -> None:
        given = given_limits(limits)
        if "processes" in given:
            raise lacking(NAME, "a limit on processes", sandbox_id=sandbox_id, op="resize", hint="leave it out")
        remote, _ = await self._reach(sandbox_id, "resize")
        await powers.change_limits(remote, Resources(**given), given)

    # Detached programs.

    async def start_detached(self, sandbox_id: str, command: Command, **options: Unpack[DetachedOptions]) -> int:
        remote, spec = await self._reach(sandbox_id, "exec")
        return await detached.start(remote, spec, command, **options)

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        remote, _ = await self._reach(sandbox_id, "exec")
        return await detached.list_all(remote)

    async def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        remote, _ = await self._reach(sandbox_id, "exec")
        async for data in detached.follow_one(remote, sandbox_id, number, follow=follow):
            yield data

    async def _reach(self, sandbox_id: str, op: str) -> tuple[Remote, Spec]:
        box = await self.find(sandbox_id, op)
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
            network=("none", "allow", "open"),
            powers=POWERS - {"images"} if ours else POWERS,
            notes=notes,
        )

    async def aclose(self) -> None:
        owned = [box for box in list(self._owned) if box.is_left and box.is_of_this_process]
        endings = [*get_book().give_up_all(self._client), *(box.end_now() for box in owned)]
        results = await asyncio.gather(*map(asyncio.wrap_future, endings), return_exceptions=True)
        for result in results:
            if isinstance(result, ServiceError | CorralError):
                log.warning("a sandbox could not be deleted: %s", result)
        await self._client.aclose()
