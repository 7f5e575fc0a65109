"""`contest.toml`: a contest as a file. An unknown key is an error, which suggests the nearest known key.

    objective = "Summarise the data"
    judge = "judge.py:judge"            # or "rubric", or "default"
    candidates = ["candidates/*.py"]    # or [[candidates]] tables, each with what it needs

Paths in it are relative to the file. docs/forge.md has every key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from corral.errors import SpecError, did_you_mean
from corral.forge.candidate import Candidate, as_candidate
from corral.forge.settings import Settings, Take, Timeouts
from corral.forge.shipped import find_scripts
from corral.spec import Resources

T = TypeVar("T")

NAME = "contest.toml"
_PLAIN = ("output", "jobs", "repeat", "seed", "pin", "retries", "setup", "meter_seconds")
_TOP = ("objective", "judge", "backend", "artifacts", "candidates", "env", "resources", "timeouts", "take", *_PLAIN)
_SOURCES = ("script", "folder", "git", "command")
_NEEDS = ("id", "name", "description", "packages", "resources", "env", "image", "network")
_SIZES = {"memory": "memory_bytes", "disk": "disk_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestFile:
    """The content of the file; None for keys that it lacks."""

    path: Path
    objective: str | None
    candidates: tuple[Candidate, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `Settings`."""
    judge: str | None = None
    backend: str | None = None
    artifacts: Path | None = None


def find_contest_file(path: Path) -> Path | None:
    """The file itself, or the one in the folder; None without one."""
    if path.is_dir():
        inside = path / NAME
        return inside if inside.is_file() else None
    return path if path.suffix == ".toml" and path.is_file() else None


def read_contest_file(path: Path) -> ContestFile:
    """Read it.

    Raises:
        SpecError: not TOML, an unknown key, or an invalid value.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path.name} can't be read: {error.strerror}", hint="give a contest.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path.name} is not TOML: {error}", hint="`corral forge init` writes one") from error
    return _Reader(path).read(values)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent

    def read(self, values: Mapping[str, Any]) -> ContestFile:
        self._known(values, _TOP, where="")
        settings: dict[str, Any] = {key: values[key] for key in _PLAIN if key in values}
        if "timeouts" in values:
            settings["timeouts"] = self._fill(Timeouts, values["timeouts"], where="timeouts")
        if "take" in values:
            settings["take"] = self._fill(Take, values["take"], where="take")
        if "resources" in values:
            settings["resources"] = self._resources(values["resources"], where="resources")
        self._made(lambda: Settings(**settings), where="")
        env = self._table(values.get("env", {}), where="env")
        artifacts = self._text(values, "artifacts")
        return ContestFile(
            path=self._path,
            objective=self._text(values, "objective"),
            candidates=tuple(self._candidates(values.get("candidates"), env)),
            settings=settings,
            judge=self._text(values, "judge"),
            backend=self._text(values, "backend"),
            artifacts=self._folder / artifacts if artifacts is not None else None,
        )

    # Candidates.

    def _candidates(self, given: object, env: Mapping[str, Any]) -> Iterable[Candidate]:
        if given is None:
            if not any((self._folder / "candidates").glob("*.py")):
                raise self._wrong("there are no candidates", "list them, or put scripts into candidates/")
            return [self._with(candidate, env) for candidate in find_scripts(self._folder)]
        if not isinstance(given, list) or not given:
            raise self._wrong("candidates is not a list", 'write candidates = ["candidates/*.py"]')
        found: list[Candidate] = []
        for number, item in enumerate(given, start=1):
            if isinstance(item, str):
                found += [self._with(each, env) for each in self._by_path(item)]
            elif isinstance(item, dict):
                found.append(self._by_table(item, env, where=f"candidates {number}"))
            else:
                raise self._wrong(f"candidates {number} is neither a path nor a table", "give one of the two")
        return found

    def _by_path(self, pattern: str) -> Iterable[Candidate]:
        if pattern.startswith("git+") or not any(mark in pattern for mark in "*?["):
            return [as_candidate(pattern, folder=self._folder)]
        if Path(pattern).is_absolute():
            raise self._wrong(f"{pattern!r} is an absolute pattern", "write it relative to the file")
        paths = sorted(path for path in self._folder.glob(pattern) if not path.name.startswith((".", "_")))
        if not paths:
            raise self._wrong(f"nothing matches {pattern!r}", "patterns are relative to the file")
        return [as_candidate(path) for path in paths]

    def _by_table(self, item: Mapping[str, Any], env: Mapping[str, Any], *, where: str) -> Candidate:
        self._known(item, (*_SOURCES, "ref", *_NEEDS), where=where)
        kinds = [key for key in ("script", "folder", "git") if key in item]
        if len(kinds) > 1 or not (kinds or "command" in item):
            raise self._wrong(f"{where}: give one of {', '.join(_SOURCES)}", 'such as script = "alpha.py"')
        needs: dict[str, Any] = {key: item[key] for key in _NEEDS if key in item}
        needs["env"] = {**env, **self._table(item.get("env", {}), where=f"{where}: env")}
        if "resources" in item:
            needs["resources"] = self._resources(item["resources"], where=f"{where}: resources")
        command = item.get("command", ())
        path = self._folder / str(item[kinds[0]]) if kinds else self._folder

        def make() -> Candidate:
            if kinds == ["script"]:
                if command:
                    raise SpecError("a script has no command", hint="use folder for that")
                return Candidate.script(path, **needs)
            if kinds == ["folder"]:
                return Candidate.folder(path, command, **needs)
            if kinds == ["git"]:
                return Candidate.git(path, str(item.get("ref", "HEAD")), command, **needs)
            return Candidate.command(command, **needs)

        return self._made(make, where=where)

    @staticmethod
    def _with(candidate: Candidate, env: Mapping[str, Any]) -> Candidate:
        return replace(candidate, env={**env, **candidate.env}) if env else candidate

    # Values.

    def _resources(self, value: object, *, where: str) -> Resources:
        table = {_SIZES.get(key, key): each for key, each in self._table(value, where=where).items()}
        return self._fill(Resources, table, where=where, extra=tuple(_SIZES))

    def _fill(self, kind: Callable[..., T], value: object, *, where: str, extra: tuple[str, ...] = ()) -> T:
        table = self._table(value, where=where)
        self._known(table, (*(each.name for each in fields(kind)), *extra), where=where)  # type: ignore[arg-type] # a dataclass
        return self._made(lambda: kind(**table), where=where)

    def _made(self, make: Callable[[], T], *, where: str) -> T:
        try:
            return make()
        except SpecError as error:
            raise self._wrong(f"{where}: {error.message}" if where else error.message, error.hint) from error
        except (TypeError, ValueError) as error:
            raise self._wrong(f"{where}: {error}" if where else str(error), "check the type of the value") from error

    def _table(self, value: object, *, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(f"{where} is not a table", f"write [{where}]")
        return value

    def _text(self, values: Mapping[str, Any], key: str) -> str | None:
        value = values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(f"{key} = {value!r} is not a text", f'write {key} = "…"')
        return value

    def _known(self, values: Mapping[str, Any], known: Iterable[str], *, where: str) -> None:
        names = list(dict.fromkeys(known))
        for key in values:
            if key not in names:
                hint = did_you_mean(key, names, otherwise=f"known keys: {', '.join(names)}")
                raise self._wrong(f"{where}: unknown key {key!r}" if where else f"unknown key {key!r}", hint)

    def _wrong(self, message: str, hint: str) -> SpecError:
        return SpecError(f"{self._path.name}: {message}", hint=hint)
