"""What a function that drives an agent gets: a sandbox, the objective, and where its artifact belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corral.client.sandbox import AsyncSandbox

if TYPE_CHECKING:
    from corral.client.sync import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """For an async function."""

    objective: str
    sandbox: AsyncSandbox
    """Its own. The contest closes it."""
    output: str
    """Path inside that the artifact must have. Everything beside it in that folder is an artifact as well."""
    log: Callable[[str], None] = field(repr=False)
    """Says something in the candidate's log. From any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSeat:
    """For a plain function, which runs in a thread."""

    objective: str
    sandbox: Sandbox
    output: str
    log: Callable[[str], None] = field(repr=False)
