"""What handlers may use: the parts of a running server, and the sandbox that a call is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from corral.client.sandbox import AsyncSandbox
from corral.sessions.session import ShellSession

if TYPE_CHECKING:
    from corral.server.auth import Keyring
    from corral.server.events import EventHub
    from corral.server.guard import Guard
    from corral.server.metrics import Metrics
    from corral.server.roster import Roster
    from corral.server.sessionmemory import SessionMemory
    from corral.server.settings import ServerSettings
    from corral.server.shelf import Shelf
    from corral.server.sockets import OpenSockets
    from corral.server.warden import SandboxWarden


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Held:
    """A started sandbox in use by one call."""

    id: str
    organisation_id: str
    box: AsyncSandbox
    user: str
    home: str
    workdir: str
    language: str
    """From the label that carries it: python, javascript or typescript."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is deleted or stopped under the caller's feet; the app answers 404 then."""
    env: dict[str, str | None] = field(default_factory=dict)
    """What `POST /env` has set for programs to come, and, without a value, unset; shared by all calls about this
    sandbox."""
    git_hosts: list[str] = field(default_factory=list)
    """Where a git login may go: the scheme, host and port of every URL that callers have named for git here."""
    sessions: dict[str, ShellSession] = field(default_factory=dict)
    """Handles of shell sessions, by name. Each has read its session's record, and goes on where it stopped. A memory
    only, and bounded by `SessionMemory`: without it, the record is read again. It is here because a handle holds its
    sandbox, and must end with it."""
    watched_terminals: set[str] = field(default_factory=set)
    """Terminals that somebody has watched. Who comes first sees all from the beginning, later ones what comes then."""

    def __post_init__(self) -> None:
        self.withhold()

    def withhold(self) -> None:
        """Have the sandbox keep back what was unset."""
        self.box.withheld = frozenset(name for name, value in self.env.items() if value is None)


class Warden(Protocol):
    """Keeps the sandboxes: whose they are, what state they are in, and when each is due."""

    def use(
        self, sandbox_id: str, *, organisation_id: str | None, activity: bool = True
    ) -> AbstractAsyncContextManager[Held]:
        """A started sandbox for one call; counts as activity.

        `organisation_id` is None only for a call whose signature is checked later.

        Raises:
            Fault: 404 if there is none for this organisation, 400 if it is not started.
        """


@dataclass(slots=True, kw_only=True)
class Control:
    """What the control plane's handlers have beyond."""

    warden: SandboxWarden
    roster: Roster
    shelf: Shelf
    keyring: Keyring
    events: EventHub
    guard: Guard
    metrics: Metrics
    describe: Callable[[], bytes]
    """The OpenAPI document; it stands on the whole table of routes, of which that of the handlers is a part."""
    ready: bool = False


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of one running server."""

    settings: ServerSettings
    warden: Warden
    sockets: OpenSockets
    sessions: SessionMemory
    control: Control


__all__ = ["Control", "Held", "Services", "Warden"]
