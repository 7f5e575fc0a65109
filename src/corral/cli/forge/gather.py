"""The contest that a command line asks for: from flags, `contest.toml`, and the folder of a run that is resumed.

Flags win. CORRAL_* variables and config.toml are for contests without a file: they change neither a contest.toml nor a
run that is resumed. Both of these may come from a stranger: what they ask for beyond a sandbox on this machine has to
be granted by a flag (`corral.forge.consent`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from corral.cli import options
from corral.cli.forge.runs import find_run
from corral.errors import CorralError, RunFolderError, SandboxGoneError, SpecError
from corral.forge.candidate import Candidate, as_candidates
from corral.forge.consent import (
    SAFE_BACKEND,
    TRUST,
    Granted,
    Permission,
    flags_for,
    permission_for_backend,
    permissions_of_candidates,
    permissions_of_contest,
    permissions_of_run,
    refuse,
    show,
)
from corral.forge.contestfile import NAME, ContestFile, find_contest_file, read_contest_file
from corral.forge.definition import rebuild_candidates, rebuild_settings
from corral.forge.judge.judge import Judge
from corral.forge.judgefile import find_judge, recognise_judge
from corral.forge.runfolder import Run
from corral.forge.service import DOTENV, describe_service, find_lack, find_service, open_service
from corral.forge.settings import Settings
from corral.forge.shipped import OBJECTIVE, find_scripts
from corral.protocol import Backend
from corral.spec import NetworkPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The arguments of `Contest`, and what to print."""

    candidates: tuple[Candidate, ...]
    objective: str
    judge: Judge
    backend: str | Backend
    settings: Settings
    artifacts: Path
    resumed: Run | None
    notes: tuple[str, ...]
    """Printed before it starts."""
    remarks: tuple[str, ...] = ()
    """The same, about the service."""
    says_where: bool = False
    """Whether to print where candidates run: with `--daytona` that may be the service or this machine."""
    is_dream_foundry: bool = False
    """Whether it is the command of Dream Foundry: `--daytona`, its candidates and its rubric."""
    again: tuple[str, ...]
    """The flags that are needed to resume it, because the run's folder does not have or grant them."""

    @property
    def is_remote(self) -> bool:
        """Whether it runs on a service."""
        return (self.backend if isinstance(self.backend, str) else self.backend.name) == "daytona"


class Flags:
    """The command's values, and which of them are on the command line."""

    def __init__(self, context: click.Context, values: Mapping[str, Any]) -> None:
        self._context = context
        self._values = values
        self.weak = True
        """Whether variables and the configuration file count."""

    def __getitem__(self, name: str) -> Any:
        value = self._values.get(name)
        return value if self.weak or self.typed(name) else None

    def configured(self, name: str) -> Any:
        """The value, whether typed or from the user's own variables and configuration file."""
        return self._values.get(name)

    def typed(self, name: str) -> bool:
        """Whether it was given on the command line."""
        return self._context.get_parameter_source(name) == ParameterSource.COMMANDLINE

    @property
    def env(self) -> dict[str, str]:
        """Variables for every candidate."""
        return options.read_environment(self._values.get("env", ()), self._values.get("env_file", ()))


def gather(names: Sequence[str], flags: Flags) -> Gathered:
    """Gather everything that the contest needs.

    Raises:
        SpecError, RunFolderError: invalid values, and permissions that no flag grants.
        click.UsageError: arguments that exclude each other.
    """
    names, told = _find_objective(names, flags)
    artifacts = flags["artifacts"]
    file = _find_file(names, resumed=bool(flags["resume"]))
    contest = read_contest_file(file) if file is not None else None
    if artifacts is None:
        artifacts = contest.artifacts if contest is not None and contest.artifacts else Path("artifacts")
    resumed = find_run(flags["resume"], artifacts) if flags["resume"] else None
    flags.weak = contest is None and resumed is None
    usual: str | None = None
    judge = flags["judge"] or (contest.judge if contest is not None else None)
    if contest is not None and judge is not None and judge == contest.judge and ":" in judge:
        judge = str(contest.path.parent / judge)
    granted = _read_granted(flags)
    backend, permissions = _name_backend(flags, contest, resumed)
    if contest is not None:
        candidates = _equip(contest.candidates, flags)
        permissions += permissions_of_contest(contest, candidates, granted, judge=not flags["judge"])
    elif names:
        candidates = _equip(_from_names(names), flags)
    elif resumed is not None:
        candidates = ()
        permissions += permissions_of_run(resumed.definition, granted)
    else:
        candidates = _equip(find_scripts(), flags)
        usual = OBJECTIVE
        judge = judge or "rubric"  # for any objective: these scripts write a list of events
    notes = _ask(permissions, flags, contest, resumed)
    if not candidates and resumed is not None:
        candidates = rebuild_candidates(resumed.definition, flags.env)
    objective = told or (contest.objective if contest is not None else None)
    objective = objective or (resumed.objective if resumed is not None else usual)
    if not objective:
        raise click.UsageError("missing --objective: what are the candidates asked to do?", click.get_current_context())
    opened, more = _open_backend(backend, flags)
    return Gathered(
        candidates=candidates,
        objective=objective,
        judge=_find_judge(judge, resumed),
        backend=opened,
        settings=_settings(flags, contest, resumed),
        artifacts=artifacts,
        resumed=resumed,
        notes=notes,
        remarks=more,
        says_where=bool(flags["daytona"]),
        is_dream_foundry=bool(flags["daytona"]) and usual is not None and judge == "rubric" and not resumed,
        again=_again(judge, candidates, opened, flags),
    )


def _find_objective(names: Sequence[str], flags: Flags) -> tuple[Sequence[str], str | None]:
    """The candidates and the objective. With `--daytona` a single text may be the objective, as in Dream Foundry."""
    if flags["daytona"] and flags["objective"] is None and len(names) == 1:
        (name,) = names
        if " " in name.strip() and not name.startswith("git+") and not Path(name).exists():
            return (), name
    return names, flags["objective"]


def _ask(
    permissions: list[Permission], flags: Flags, contest: ContestFile | None, resumed: Run | None
) -> tuple[str, ...]:
    """Refuse permissions that files ask for, unless `--trust` grants them. Returns what to print about them."""
    who = ".env in this folder"
    if contest is not None:
        who = str(contest.path)
    elif resumed is not None:
        who = f"run {resumed.run_id!r}"
    if not flags["trust"]:
        refuse(permissions, who=who, error=SpecError if contest is not None or resumed is None else RunFolderError)
    return (f"as {who} asks: {show(permissions)}",) if permissions else ()


def _read_granted(flags: Flags) -> Granted:
    network = flags["network"]
    return Granted(
        packages=frozenset(flags["packages"] or ()),
        image=flags["image"],
        network=NetworkPolicy.parse(network) if network is not None else None,
    )


def _again(judge: str | None, candidates: Sequence[Candidate], backend: str | Backend, flags: Flags) -> tuple[str, ...]:
    """The flags that are needed to resume it: the folder itself grants nothing."""
    words: list[str] = []
    if judge is not None and ":" in judge:
        words += ["--judge", judge]
    names = {*flags.env, *(name for candidate in candidates for name in candidate.env)}
    for name in sorted(names):
        words += ["--env", f"{name}=…"]
    permissions = permissions_of_candidates(candidates, Granted())
    url = click.get_current_context().meta.get("corral.url")
    name = backend if isinstance(backend, str) else backend.name
    if url and name == "daytona":
        words += ["--url", url]
    elif name != SAFE_BACKEND and not flags["trust"]:
        words += permission_for_backend(name).words
    return (*words, TRUST) if flags["trust"] else (*words, *flags_for(permissions))


def _find_file(names: Sequence[str], *, resumed: bool) -> Path | None:
    if not names:
        here = Path(NAME)
        return here if here.is_file() and not resumed else None
    found = [file for name in names if (file := find_contest_file(Path(name))) is not None]
    if found and len(names) > 1:
        raise click.UsageError(
            f"{found[0]} is a whole contest: give it alone, or candidates without it", click.get_current_context()
        )
    return found[0] if found else None


def _from_names(names: Sequence[str]) -> tuple[Candidate, ...]:
    for name in names:
        if name.startswith("git+") or Path(name).exists():
            continue
        if " " in name.strip():
            raise SpecError(f"no such file: {name!r}", hint=f"if it is the objective: --objective {name!r}")
        raise SpecError(
            f"no such candidate: {name!r}",
            hint=f"give scripts, folders, git+PATH@REF or a contest.toml; if it is the objective: --objective {name!r}",
        )
    return as_candidates(names)


def _equip(candidates: Sequence[Candidate], flags: Flags) -> tuple[Candidate, ...]:
    """The candidates with the variables, packages, image and network of the flags."""
    env, packages = flags.env, tuple(flags["packages"] or ())
    more: dict[str, Any] = {name: flags[name] for name in ("image", "network") if flags[name] is not None}
    return tuple(
        replace(
            each, env={**each.env, **env}, packages=tuple(dict.fromkeys((*each.packages, *packages))), **more
        )
        for each in candidates
    )  # fmt: skip


def _name_backend(
    flags: Flags, contest: ContestFile | None, resumed: Run | None
) -> tuple[str | Backend, list[Permission]]:
    """The backend, and the permissions that a file needs for it."""
    permissions: list[Permission] = []
    chosen: str | Backend | None = None
    if flags.typed("backend") or flags.typed("url"):
        if flags["daytona"]:
            raise click.UsageError(
                "--daytona chooses a backend already: give either --daytona or --backend", click.get_current_context()
            )
        chosen = flags["backend"]
    elif flags["daytona"]:
        chosen = "daytona"
    elif flags.weak:
        chosen = flags["backend"]
    else:
        wanted = contest.backend if contest is not None else None
        if wanted is None and resumed is not None:
            wanted = resumed.definition.get("settings", {}).get("backend")
        if wanted is not None and not isinstance(wanted, str):
            raise RunFolderError(f"the run's backend {wanted!r} is not a backend name", hint="give --backend")
        own = flags.configured("backend")
        if wanted is not None and wanted == (own if isinstance(own, str) else own.name):
            chosen = own  # the user's own configuration says the same
        elif wanted is not None and wanted != SAFE_BACKEND:
            chosen = wanted
            permissions.append(permission_for_backend(wanted))
    chosen = chosen or SAFE_BACKEND
    if chosen == "daytona":
        service = None if flags["daytona"] and find_lack() else find_service()
        if service is not None and service.source == DOTENV and service.api_url is not None:
            permissions.append(Permission(f"address {service.url} (in .env)"))
    return chosen, permissions


def _open_backend(chosen: str | Backend, flags: Flags) -> tuple[str | Backend, tuple[str, ...]]:
    if chosen != "daytona":
        return chosen, ()
    lack = find_lack() if flags["daytona"] else None
    if lack is not None:
        return "embedded", (f"{lack}, falling back to local",)
    backend = open_service()
    click.get_current_context().call_on_close(lambda: options.close_server(backend))
    if flags["daytona"] and (reason := asyncio.run(_find_fault(backend))) is not None:
        return "embedded", (f"{reason}: falling back to local",)
    return backend, tuple(filter(None, [describe_service()]))


async def _find_fault(backend: Backend) -> str | None:
    """Why a service can't be used: it can't be reached, or refuses the key. None if it answers."""
    try:
        await backend.connect(f"corral-{secrets.token_hex(8)}")  # no sandbox has such a name
    except CorralError as error:
        return None if isinstance(error, SandboxGoneError) else error.message
    return None


def _find_judge(name: str | None, resumed: Run | None) -> Judge:
    if name is None and resumed is not None:
        return recognise_judge(resumed.definition.get("judge", {}))
    return find_judge("default" if name is None else name)


def _settings(flags: Flags, contest: ContestFile | None, resumed: Run | None) -> Settings:
    base = rebuild_settings(resumed.definition) if resumed is not None and contest is None else Settings()
    if contest is not None:
        base = replace(base, **contest.settings)
    change: dict[str, Any] = {
        name: flags[name] for name in ("jobs", "repeat", "seed", "output") if flags[name] is not None
    }
    if flags["pin"]:
        change["pin"] = True
    if flags["setup"] is not None:
        change["setup"] = _read_setup(flags["setup"])
    if flags["timeout"] is not None:
        change["timeouts"] = replace(base.timeouts, run=flags["timeout"])
    if limits := options.read_limits(flags.__getitem__):
        change["resources"] = replace(base.resources, **limits)
    return replace(base, **change)


def _read_setup(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--setup {text}: can't be read", hint="give a file with text for /bin/sh") from error
