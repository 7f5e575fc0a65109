"""What the policy `packages` means on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.engine.base import ToolFolder
from corral.network.settings import Alias, GateCredential

MISSING = "not there inside"
"""The beginning of a note."""


@dataclass(frozen=True, slots=True)
class Source:
    """One registry, for people: without its login."""

    tool: str
    url: str
    note: str = ""
    """Why it is not there inside, or under which name it is."""


@dataclass(frozen=True, slots=True)
class Registries:
    """What the policy `packages` means on this machine."""

    rules: tuple[str, ...] = ()
    """What is permitted, as the rules of `corral.network.rules`."""
    credentials: tuple[GateCredential, ...] = ()
    """Logins, which the gate adds to requests, and which never go inside."""
    aliases: tuple[Alias, ...] = ()
    """Each registry's name leads to its address, also if that is a private one: whoever configured it chose it. One on
    the loopback of this machine has another name inside."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for pip, uv and npm inside, without logins."""
    folders: tuple[ToolFolder, ...] = ()
    """Indexes in folders of this machine, which sandboxes see read-only."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings files inside, by path."""
    sources: tuple[Source, ...] = ()
    problems: tuple[str, ...] = ()
    """Tools that gave no answer, with the reason."""
