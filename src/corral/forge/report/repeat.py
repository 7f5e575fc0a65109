"""How to repeat a run: the command line, and remarks on what a command line can't express."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from corral.forge.overview import Overview
from corral.forge.pages.text import clean_line
from corral.forge.settings import Settings

_MAX_NAMED = 30
_FLAGS = ("repeat", "seed", "output", "setup")
"""Settings that have an option of the same name."""
_RESOURCES = {"cpus": "--cpus", "memory_bytes": "--memory", "disk_bytes": "--disk", "processes": "--processes"}


def make_command(overview: Overview) -> str:
    """Lines for a shell; lines that begin with # are remarks for the reader."""
    words = ["corral", "forge", "run"]
    remarks: list[str] = []
    named = [_name(row.definition.get("source")) for row in overview.rows]
    if all(named) and len(named) <= _MAX_NAMED:
        words += [name for name in named if name]
        remarks += _own_needs(overview)
    else:
        words.append("CONTEST")
        remarks.append("some candidates can't be named on a command line: CONTEST is the contest.toml that lists them")
    if overview.run.objective:
        words += ["--objective", overview.run.objective]
    words += _settings(overview.settings, overview.run.definition.get("jobs"))
    remarks.append("the judge is described below; name a custom one with --judge FILE.py:NAME")
    again = f"corral forge replay {shlex.quote(clean_line(overview.run.run_id))}"
    said = [f"# {remark}" for remark in remarks]
    return "\n".join([_shell(words), *said, "", "# replay this run:", again])


def _shell(words: list[str]) -> str:
    """The command as text; a long one has one option per line."""
    text = shlex.join(words)
    if len(text) <= 100:
        return text
    found, line = [], ""
    for word in words:
        quoted = shlex.quote(word)
        if word.startswith("--") and line:
            found.append(line)
            line = f"  {quoted}"
        else:
            line = f"{line} {quoted}" if line else quoted
    return " \\\n".join([*found, line])


def _name(source: object) -> str | None:
    if not isinstance(source, Mapping):
        return None
    kind, path = source.get("kind"), source.get("path")
    if kind in ("script", "folder") and path:
        return str(path)
    return f"git+{path}@{source.get('commit')}" if kind == "git" and path else None


def _own_needs(overview: Overview) -> list[str]:
    own = [
        clean_line(row.id)
        for row in overview.rows
        if any(row.definition.get(key) for key in ("packages", "resources", "env", "image"))
    ]
    return [f"with options of their own, which need a contest.toml: {', '.join(own[:10])}"] if own else []


def _settings(settings: Mapping[str, Any], jobs: object) -> list[str]:
    usual = Settings()
    words: list[str] = []
    for key in _FLAGS:
        if settings.get(key, getattr(usual, key)) != getattr(usual, key):
            words += [f"--{key}", str(settings[key])]
    if jobs is not None:
        words += ["--jobs", str(jobs)]
    if settings.get("pin"):
        words.append("--pin")
    if (backend := settings.get("backend", usual.backend)) != usual.backend:
        words += ["--backend", str(backend)]
    timeouts, resources = settings.get("timeouts"), settings.get("resources")
    if isinstance(timeouts, Mapping) and timeouts.get("run", usual.timeouts.run) != usual.timeouts.run:
        words += ["--timeout", f"{timeouts['run']:g}"]
    for key, option in _RESOURCES.items():
        given = resources.get(key) if isinstance(resources, Mapping) else None
        if given is not None and given != getattr(usual.resources, key):
            words += [option, f"{given:g}" if key == "cpus" else str(given)]
    return words
