"""What sandboxes of the embedded backend are built on: the host's tools, packages, and the generated base."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from corral.backends.embedded import packages, settings, venv
from corral.backends.embedded.datafolder import open_data
from corral.backends.embedded.pipoutput import Tell
from corral.backends.embedded.programs import find_programs
from corral.backends.embedded.registries import find_registries_of
from corral.backends.embedded.resolving import Make, resolve_in_sandbox
from corral.backends.embedded.seam import mapped
from corral.backends.embedded.typescript import setup as typescript
from corral.engine.base import OWN_FOLDERS, BaseDescription, ToolFolder, build, identify
from corral.engine.recipe import Overlaid
from corral.spec import Spec


@dataclass(frozen=True, slots=True)
class Ground:
    """The base of one sandbox: its trees, initial files and environment."""

    trees: tuple[Overlaid, ...]
    files: dict[str, str]
    env: dict[str, str]


class Grounds:
    """The bases in one data folder."""

    def __init__(self, data_folder: Path, make: Make) -> None:
        """`make` makes the sandboxes in which packages that are not kept yet are resolved."""
        self.data_folder = data_folder
        self._make = make
        self._bases: dict[str, tuple[Overlaid, ...]] = {}

    async def prepare(self, spec: Spec, *, tell: Tell | None = None) -> Ground:
        """The base of a sandbox of this spec. `tell` gets what takes a while. Raises: as `create`."""
        tools = await self._find_tools(spec, tell or packages.tell_as_events(None))
        trees = await self._build_base(tools.description)
        targets = [tool.target for tool in tools.description.tools]
        modules = [target for target in targets if target in (settings.PACKAGES_AT, settings.VENV_AT)]
        files = {packages.path_file(): "".join(f"{target}\n" for target in modules)} if modules else {}
        if spec.workdir.strip("/") not in OWN_FOLDERS:
            files[spec.workdir.rstrip("/") + "/"] = ""
        registries = await find_registries_of(spec.network)
        return Ground(trees, {**files, **registries.files}, {**tools.env, **registries.env})

    async def renew(self, spec: Spec, trees: Sequence[Overlaid]) -> dict[str, tuple[str, ...]]:
        """New lowers for the trees of a stopped sandbox whose old ones are gone or not trusted. Raises: as `create`."""
        # The trees themselves do not change, since what the sandbox wrote is stored by their numbers.
        mine = f"{self.data_folder}/"
        if None not in self.identify(trees):
            return {}
        tools = await self._find_tools(spec, packages.tell_as_events(None))
        shown = {tool.target: tool for tool in tools.description.tools}
        kept = (ToolFolder(old.lowers[0], old.target) for old in trees if not old.writable and old.target not in shown)
        outside = [tool for tool in kept if not tool.source.startswith(mine) and tool.target.startswith("/opt/")]
        description = dataclasses.replace(tools.description, tools=(*shown.values(), *outside))
        return {tree.target: tree.lowers for tree in await self._build_base(description)}

    async def _find_tools(self, spec: Spec, tell: Tell) -> settings.HostTools:
        """The host's tools, and the packages and the virtual environment of a spec."""
        open_data(self.data_folder, op="create")
        tools = settings.find_host_tools(owned=os.geteuid() == 0, typescript=typescript.installed(self.data_folder))
        extra: list[ToolFolder] = []
        commands: dict[str, str] = {}
        python = settings.python_inside()
        if spec.packages:
            resolve = partial(resolve_in_sandbox, self._make, hosts=spec.network.hosts, tell=tell)
            folder = await packages.provide_packages(self.data_folder, spec.packages, resolve, tell=tell)
            extra.append(ToolFolder(str(folder), settings.PACKAGES_AT))
            at = f"{settings.PACKAGES_AT}/bin"
            commands |= await asyncio.to_thread(find_programs, folder / "bin", shown_at=at, python=python)
        if spec.venv is not None:
            extra.append(ToolFolder(str(venv.venv_site_packages(spec.venv)), settings.VENV_AT))
            folder, at = venv.venv_programs(spec.venv), settings.VENV_PROGRAMS_AT
            programs = await asyncio.to_thread(find_programs, folder, shown_at=at, python=python)
            if any(command.startswith(at) for command in programs.values()):
                extra.append(ToolFolder(str(folder), at))
            commands = programs | commands
        extra += (await find_registries_of(spec.network)).folders
        own = tools.description
        # What a package brings never takes the place of Corral's own python, pip or node.
        described = dataclasses.replace(own, tools=(*own.tools, *extra), commands=commands | own.commands)
        return dataclasses.replace(tools, description=described)

    async def _build_base(self, description: BaseDescription) -> tuple[Overlaid, ...]:
        """The trees of a base. Examining the host takes longer than creating a sandbox, so they are kept."""
        key = repr(description)
        trees = self._bases.get(key)
        if trees is None or identify(trees[0].lowers[0]) is None:
            with mapped(op="create"):
                trees = await asyncio.to_thread(build, self.data_folder, description)
            self._bases[key] = trees
        return trees

    def identify(self, trees: Sequence[Overlaid]) -> list[tuple[int, int] | None]:
        """The folders of a sandbox's base in the data folder, by their identity."""
        mine = f"{self.data_folder}/"
        return [identify(lower) for tree in trees for lower in tree.lowers if lower.startswith(mine)]

    def stands(self, trees: Sequence[Overlaid], before: Sequence[tuple[int, int] | None]) -> bool:
        """True if the base exists, and was not replaced meanwhile. Another version of Corral that starts with this data
        folder removes our base as an old one, unless a running sandbox uses it."""
        return None not in before and self.identify(trees) == before
