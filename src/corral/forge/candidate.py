"""A candidate: its source, and what it needs beyond the settings of the contest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

from corral.errors import SpecError
from corral.forge.ids import check_id, id_from_name
from corral.forge.sources import (
    AgentSource,
    CommandSource,
    FolderSource,
    GitSource,
    ScriptSource,
    Seat,
    Source,
    SyncSeat,
    as_argv,
)
from corral.image import Image
from corral.requirement import check_packages
from corral.spec import NetworkPolicy, Resources, check_env


class Needs(TypedDict, total=False):
    """The options of a candidate. Each is a field of `Candidate`."""

    id: str
    name: str
    description: str
    packages: Sequence[str]
    resources: Resources | None
    env: Mapping[str, str]
    image: str | Image | None
    network: NetworkPolicy | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A participant of a contest. Usually created by one of the class methods."""

    source: Source
    id: str = ""
    """Letters, digits, '_' and '-'. Without one: from the source's name."""
    name: str = ""
    """The display name. Without one: the id."""
    description: str = ""
    packages: tuple[str, ...] = ()
    resources: Resources | None = None
    """None: those of the contest."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    image: str | Image | None = None
    network: NetworkPolicy | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", check_id(self.id) if self.id else id_from_name(_name_of(self.source)))
        object.__setattr__(self, "name", self.name or self.id)
        object.__setattr__(self, "env", check_env(self.env))
        object.__setattr__(self, "network", NetworkPolicy.parse(self.network))
        object.__setattr__(self, "packages", check_packages(self.packages))

    @classmethod
    def script(cls, path: Path | str, **needs: Unpack[Needs]) -> Candidate:
        """A single file: Python, shell, JavaScript … by its ending, anything else by its first line."""
        return cls._made(ScriptSource(Path(path)), needs)

    @classmethod
    def folder(cls, path: Path | str, command: str | Sequence[str] = (), **needs: Unpack[Needs]) -> Candidate:
        """A folder, and the command that is run in it."""
        return cls._made(FolderSource(Path(path), as_argv(command)), needs)

    @classmethod
    def git(
        cls, path: Path | str, ref: str = "HEAD", command: str | Sequence[str] = (), **needs: Unpack[Needs]
    ) -> Candidate:
        """A commit of a repository on this machine."""
        return cls._made(GitSource(Path(path), ref, as_argv(command)), needs)

    @classmethod
    def command(cls, command: str | Sequence[str], **needs: Unpack[Needs]) -> Candidate:
        """A command; a text is for /bin/sh, with the objective as $1 and the output file as $2."""
        return cls._made(CommandSource(as_argv(command)), needs)

    @classmethod
    def agent(
        cls, function: Callable[[Seat], Awaitable[object]] | Callable[[SyncSeat], object], **needs: Unpack[Needs]
    ) -> Candidate:
        """A function that drives an agent with a sandbox."""
        return cls._made(AgentSource(function), needs)

    @classmethod
    def _made(cls, source: Source, needs: Needs) -> Candidate:
        return cls(source=source, **needs)  # type: ignore[arg-type] # a list of packages becomes a tuple there

    @property
    def network_policy(self) -> NetworkPolicy:
        """Its network policy, parsed."""
        return NetworkPolicy.parse(self.network)


def as_candidate(value: object, *, folder: Path = Path()) -> Candidate:
    """A candidate from a path (relative to the folder), a list of words, `git+PATH@REF`, a function, or a `Candidate`.

    Raises:
        SpecError: anything else, or a path that does not exist.
    """
    if isinstance(value, Candidate):
        return value
    if isinstance(value, str) and value.startswith("git+"):
        path, _, ref = value.removeprefix("git+").partition("@")
        return Candidate.git(folder / path, ref or "HEAD")
    if isinstance(value, str | Path):
        path_ = folder / value
        return Candidate.folder(path_) if path_.is_dir() else Candidate.script(path_)
    if isinstance(value, list | tuple):
        return Candidate.command(value)
    if callable(value):
        return Candidate.agent(value)
    raise SpecError(f"{value!r} is not a candidate", hint="give a path, a list of words, a function, or a Candidate")


def as_candidates(values: Iterable[object]) -> tuple[Candidate, ...]:
    """All candidates. Derived ids that come twice are numbered; explicit ids may not come twice.

    Raises:
        SpecError: no candidates, or an id twice.
    """
    if isinstance(values, str | Path | Candidate):
        raise SpecError(f"candidates={values!r} is a single candidate", hint="give a list of candidates")
    found: dict[str, Candidate] = {}
    for value in values:
        candidate = as_candidate(value)
        if candidate.id.lower() in found:  # lower: some file systems ignore case
            if isinstance(value, Candidate):
                raise SpecError(f"two candidates have the id {candidate.id!r}", hint="give each its own: id=…")
            candidate = _numbered(candidate, found)
        found[candidate.id.lower()] = candidate
    if not found:
        raise SpecError("a contest needs candidates", hint="give at least one")
    return tuple(found.values())


def _numbered(candidate: Candidate, taken: Mapping[str, Candidate]) -> Candidate:
    number = 2
    while (name := f"{candidate.id[:58]}-{number}").lower() in taken:
        number += 1
    return replace(candidate, id=name, name=name)


def _name_of(source: Source) -> str:
    if isinstance(source, ScriptSource):
        return source.path.stem
    if isinstance(source, FolderSource | GitSource):
        return source.path.resolve().name
    if isinstance(source, CommandSource):
        words = source.argv[2].split() if source.argv[:2] == ("/bin/sh", "-c") else source.argv
        return Path(words[0]).name
    return getattr(source.function, "__name__", type(source.function).__name__)
