"""`EmbeddedBackend`: creates, finds and deletes embedded sandboxes."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from corral.backends.embedded import detached, keepers, packages, settings
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.programs import find_programs
from corral.backends.embedded.sandbox import EmbeddedSandbox, Grip
from corral.backends.embedded.seam import mapped
from corral.backends.embedded.stopped import GROUND_ATTEMPTS, StoppedSandboxes
from corral.backends.embedded.typescript import setup as typescript
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.engine import wire
from corral.engine.base import OWN_FOLDERS, BaseDescription, Tool, build, identify
from corral.engine.client import check
from corral.engine.recipe import Layer, Limits, Recipe, Tree
from corral.errors import BackendUnavailableError, CapabilityError, SandboxStoppedError
from corral.protocol import Command, DetachedOptions, OnEvent
from corral.results import DERIVED_POWERS, Capabilities, SandboxInfo
from corral.sessions.detached import DetachedProgram
from corral.spec import Resources, Spec

NAME = "embedded"
POWERS = DERIVED_POWERS | {
    "detach", "pty", "views", "users", "watch", "packages", "venv", "ephemeral", "snapshot", "fork", "stop", "pause",
    "resize",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ground:
    """The base of one sandbox: its trees, initial files and environment."""

    trees: tuple[Tree, ...]
    files: dict[str, str]
    env: dict[str, str]


class EmbeddedBackend(StoppedSandboxes):
    """The engine of this machine, as `corral.protocol.Backend`. One per data folder and process."""

    name = NAME

    def __init__(self, data_folder: Path | str | None = None) -> None:
        folder = Path(data_folder).absolute() if data_folder is not None else settings.default_data_folder()
        super().__init__(folder)
        self._tokens: TokenBook[EmbeddedSandbox] = TokenBook()
        self._bases: dict[str, tuple[Tree, ...]] = {}
        self._lock = threading.Lock()
        self._exit_registered = False

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        return AsyncSandbox.around(await self.make(spec), on_event=on_event, event="created")

    async def make(self, spec: Spec) -> EmbeddedSandbox:
        _refuse_what_is_missing(spec)
        self._clean_up_at_exit()
        return await self._tokens.make_once(spec.client_token, lambda: self._make(spec))

    async def _make(self, spec: Spec) -> EmbeddedSandbox:
        await self.refuse_unkept(spec.resources, op="create")
        for patience in reversed(range(GROUND_ATTEMPTS)):
            ground = await self.prepare_ground(spec)
            sandbox_id = str(uuid.uuid4())
            recipe = self.make_recipe(spec, sandbox_id, ground, layers=self.find_layers(spec))
            before = self.identify(ground.trees)
            try:
                ours = await self._launch(recipe)
            except BackendUnavailableError:
                if not patience or self.stands(ground.trees, before):
                    raise
                continue
            if not patience or self.stands(ground.trees, before):
                break
            ours.close()  # init ends: its base is being deleted
        sandbox = EmbeddedSandbox(
            sandbox_id=sandbox_id,
            spec=spec,
            control=ours,
            env=ground.env,
            grip=Grip(sandbox_id, self._launcher),
            data_folder=self.data_folder,
            root=os.geteuid() == 0,
        )
        sandbox.maker = self.make
        sandbox.arm_deadline()
        return sandbox

    async def _launch(self, recipe: Recipe) -> socket.socket:
        """Its control socket. Raises: as `create`."""
        ours, theirs = wire.make_pair()
        try:
            with mapped(op="create"):
                # If this is cancelled, `ours` is closed below: init sees its owner gone and the launcher clears up.
                check(await self.ask_launcher({"op": "create", "recipe": recipe.to_json()}, theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        return AsyncSandbox.around(await self.adopt(sandbox_id))

    async def adopt(self, sandbox_id: str) -> EmbeddedSandbox:
        sandbox = await keepers.connect(self.data_folder, sandbox_id)
        sandbox.maker = self.make
        return sandbox

    async def list(self) -> Sequence[SandboxInfo]:
        return await asyncio.to_thread(keepers.list_all, self.data_folder)

    async def glance(self) -> frozenset[str]:
        return await asyncio.to_thread(keepers.glance, self.data_folder)

    async def delete(self, sandbox_id: str) -> None:
        try:
            sandbox = await self.adopt(sandbox_id)
        except SandboxStoppedError:
            await self.delete_stopped(sandbox_id)
        else:
            await sandbox.kill()
            await sandbox.aclose()

    async def start_detached(self, sandbox_id: str, command: Command, **options: Unpack[DetachedOptions]) -> int:
        async with contextlib.aclosing(await self.connect(sandbox_id)) as box:
            return await detached.start(box, self.data_folder, command, **options)

    async def list_detached(self, sandbox_id: str) -> Sequence[DetachedProgram]:
        return await asyncio.to_thread(detached.list_all, self.data_folder, sandbox_id)

    def follow_detached(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        return detached.follow_one(self.data_folder, sandbox_id, number, follow=follow)

    async def capabilities(self) -> Capabilities:
        with mapped(op="capabilities"):
            hello = check(await self.ask_launcher({"op": "hello"}))
        limited = set(hello["limited"])
        root = bool(hello["root"])
        notes = {
            "one user id: /usr can't be changed inside, and user='root' is not there": not root,
            "memory is added up ten times a second: mapped pages and page tables, not pipes or unmapped files": (
                "memory" not in limited
            ),
            "processors are not limited: cpus= is refused, and the usual two are not kept": "cpu" not in limited,
            "disk is measured now and then, deleted files left out; ephemeral=True makes it hard": (
                not hello["hard_disk"]
            ),
            "file locks are counted four times a second; more than 4,096 end the programs of a sandbox": True,
            "one user id: pipes, descriptors in flight and inotify instances are taken from yours, each sandbox's "
            "part of them bounded": not root,
            "/dev has shared with the host: programs inside can see when others open them, and lock them": (
                not hello["own_devices"]
            ),
            "no folder for locks in /run or /var/lib: any local user can take the ranges of user ids": (
                not hello["uid_locks"]
            ),
            "pause stops processes by SIGSTOP: their parents can see it": hello["trees"] != "cgroup",
        }
        shares = {"user": not root, "devices": not hello["own_devices"]}
        return Capabilities(
            isolation="namespaces" if root else "namespaces, rootless",
            memory="hard" if "memory" in limited else "soft",
            processes="hard",
            cpu="hard" if "cpu" in limited else "none",
            disk="hard" if hello["hard_disk"] else "soft",
            powers=POWERS if root else POWERS - {"users"},
            notes=tuple(text for text, applies in notes.items() if applies),
            locks="soft",
            shares=frozenset(name for name, applies in shares.items() if applies),
        )

    async def aclose(self) -> None:
        await asyncio.to_thread(self._launcher.shutdown)

    # Parts.

    async def refuse_unkept(self, resources: Resources, *, op: str) -> None:
        if "cpus" not in resources.asked:
            return
        with mapped(op=op):
            hello = check(await self.ask_launcher({"op": "hello"}))
        if "cpu" not in hello["limited"]:
            raise CapabilityError(
                f"a limit of {resources.cpus:g} processor(s) is not supported on this machine: no cgroup is available",
                op=op,
                hint="leave it out, run as root, or get a cgroup from systemd: "
                "systemd-run --user --scope -p Delegate=yes YOUR-COMMAND",
            )

    def _clean_up_at_exit(self) -> None:
        with self._lock:
            if not self._exit_registered:
                # Straight to the launcher's socket: at exit there may be no event loop any more.
                atexit.register(self._launcher.shutdown)
                os.register_at_fork(after_in_child=self._launcher.abandon)
                self._exit_registered = True

    async def prepare_ground(self, spec: Spec) -> Ground:
        """The base of a sandbox of this spec. Raises: as `create`."""
        tools, extra = await self._find_tools(spec)
        description = tools.description
        if extra:
            description = dataclasses.replace(description, tools=(*description.tools, *extra))
        trees = await self._build_base(description)
        modules = [tool.target for tool in extra if tool.target in (settings.PACKAGES_AT, settings.VENV_AT)]
        files = {packages.path_file(): "".join(f"{target}\n" for target in modules)} if modules else {}
        if spec.workdir.strip("/") not in OWN_FOLDERS:
            files[spec.workdir.rstrip("/") + "/"] = ""
        return Ground(trees, files, tools.env)

    async def renew_ground(self, spec: Spec, trees: Sequence[Tree]) -> dict[str, tuple[str, ...]]:
        # The trees themselves do not change, since what the sandbox wrote is stored by their numbers.
        mine = f"{self.data_folder}/"
        if None not in self.identify(trees):
            return {}
        tools, extra = await self._find_tools(spec)
        shown = {tool.target: tool for tool in (*tools.description.tools, *extra)}
        kept = (Tool(tree.lowers[0], tree.target) for tree in trees if not tree.writable and tree.target not in shown)
        outside = [tool for tool in kept if not tool.source.startswith(mine) and tool.target.startswith("/opt/")]
        description = dataclasses.replace(tools.description, tools=(*shown.values(), *outside))
        return {tree.target: tree.lowers for tree in await self._build_base(description)}

    async def _find_tools(self, spec: Spec) -> tuple[settings.HostTools, Sequence[Tool]]:
        open_data(self.data_folder, op="create")
        tools = settings.find_host_tools(owned=os.geteuid() == 0, typescript=typescript.installed(self.data_folder))
        extra: list[Tool] = []
        commands: dict[str, str] = {}
        python = settings.python_inside()
        if spec.packages:
            folder = await packages.provide_packages(self.data_folder, spec.packages)
            extra.append(Tool(str(folder), settings.PACKAGES_AT))
            at = f"{settings.PACKAGES_AT}/bin"
            commands |= await asyncio.to_thread(find_programs, folder / "bin", shown_at=at, python=python)
        if spec.venv is not None:
            extra.append(Tool(str(packages.venv_site_packages(spec.venv)), settings.VENV_AT))
            folder, at = packages.venv_programs(spec.venv), settings.VENV_PROGRAMS_AT
            own = await asyncio.to_thread(find_programs, folder, shown_at=at, python=python)
            if any(command.startswith(at) for command in own.values()):
                extra.append(Tool(str(folder), at))
            commands = own | commands
        if commands:
            # What a package brings never takes the place of Corral's own python, pip or node.
            described = dataclasses.replace(tools.description, commands=commands | tools.description.commands)
            tools = dataclasses.replace(tools, description=described)
        return tools, extra

    async def _build_base(self, description: BaseDescription) -> tuple[Tree, ...]:
        """The trees of a base. Examining the host takes longer than creating a sandbox, so they are kept."""
        key = repr(description)
        trees = self._bases.get(key)
        if trees is None or identify(trees[0].lowers[0]) is None:
            with mapped(op="create"):
                trees = await asyncio.to_thread(build, self.data_folder, description)
            self._bases[key] = trees
        return trees

    def make_recipe(self, spec: Spec, sandbox_id: str, ground: Ground, *, layers: tuple[Layer, ...] = ()) -> Recipe:
        """The request to the engine."""
        resources = spec.resources
        shared_memory_bytes = max(1 << 20, min(resources.memory // 2, 64 << 20))
        limits = Limits(**dataclasses.asdict(resources), shared_memory_bytes=shared_memory_bytes)
        return Recipe(
            sandbox_id=sandbox_id,
            folder=str(self.data_folder / "sandboxes" / sandbox_id),
            trees=ground.trees,
            limits=limits,
            hostname=spec.hostname,
            ephemeral=spec.ephemeral,
            files=ground.files,
            layers=layers,
        )


def _refuse_what_is_missing(spec: Spec) -> None:
    if spec.image is not None:
        raise CapabilityError(
            "the embedded backend does not support image= yet",
            op="create",
            hint="use packages=[…] or venv= for Python packages, or backend='docker' for images",
        )
    if spec.network.mode != "none":
        raise CapabilityError(
            f"network={spec.network.mode!r}: the embedded backend does not support network access yet",
            op="create",
            hint="bring files with files.upload, Python packages with packages=[…]",
        )
